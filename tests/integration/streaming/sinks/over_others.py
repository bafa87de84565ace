"""Sinks of tables that take files out: those whose commits come in the place of rows, and those that compact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance


class TableConformance(SinkConformance):
    """Derive from it for a kind of table."""

    def named_files(self, sink: Any) -> set[str]:
        """Return the paths of the files that a version of the table names."""
        raise NotImplementedError


class Compactions(TableConformance):
    """After each commit its files are written together with those that are there.

    Derive from it before the conformance of a kind of table.
    """

    mode: Mapping[str, Any] = {"compact_every": 1}

    def staged(self, sink: Any) -> Iterable[str]:
        named = self.named_files(sink)
        return [name for name in super().staged(sink) if name not in named and "/compaction-" not in name]


class OverOthers(TableConformance):
    """A commit's rows come in the place of those that the table has before; some files are copied.

    Derive from it before the conformance of a kind of table.
    """

    kills = 1
    faults = 1
    OLD: ClassVar = -1.0

    def make_sink(self, folder: Path) -> Any:
        sink = super().make_sink(folder)
        self.write_old(
            sink,
            [{"id": number, "k": f"k{number % 5}", "v": self.OLD, "p": number // 1000} for number in self.old_ids()],
        )
        return sink

    def write_old(self, sink: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        """Make the table, with these rows of somebody else."""
        raise NotImplementedError

    def old_ids(self) -> Iterable[int]:
        return range(1000, 6000, 3)

    def make_rows(self, commit: int, task: int) -> pa.RecordBatch:
        rows = super().make_rows(commit, task)
        return rows.append_column("p", pa.array([commit] * rows.num_rows, pa.int64()))

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        """Return the rows of commits, and what is wrong with the others: they go with a new row, and only then."""
        (name,) = sink.key or sink.partition_by
        rows = list(super().visible(sink))
        new, old = [row for row in rows if row["v"] != self.OLD], [row for row in rows if row["v"] == self.OLD]
        replaced = {row[name] for row in new}
        assert [row for row in old if row[name] in replaced] == []
        expected = [number for number in self.old_ids() if (number if name == "id" else number // 1000) not in replaced]
        assert sorted(row["id"] for row in old) == expected
        return new

    def staged(self, sink: Any) -> Iterable[str]:
        named = self.named_files(sink)
        return [name for name in super().staged(sink) if name not in named]
