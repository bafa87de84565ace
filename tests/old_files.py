"""A sink that writes what the file sink of release 0.1.0 wrote: its log, its files, and what is left beside them."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_exactlyonce.streaming.sinks.spi import TWO_PHASE_COMMIT, Sink, SinkContext, SinkEntry
from airflow_provider_exactlyonce.streaming.sinks.staged import StagedCommitter


class OldLog:
    """The log and the files of one sink, by hand; ``tests/releases/0.1.0/file-sink`` has what 0.1.0 itself wrote."""

    def __init__(self, path: str | Path, pipeline: str, sink: str = "files") -> None:
        self.root = Path(path)
        self.folder = self.root / "_exactlyonce" / f"{pipeline}.{sink}"

    def last(self) -> dict[str, Any] | None:
        records = sorted((self.folder / "log").glob("*.json"))
        record: dict[str, Any] | None = json.loads(records[-1].read_text()) if records else None
        return record

    def rows(self) -> list[dict[str, Any]]:
        """Return what a reader of 0.1.0 sees: the files back to the newest compaction."""
        record = self.last()
        assert record is not None
        snapshot, files = record["snapshot"], list(record["files"])
        for position in range(record["position"] - 1, max(snapshot, 1) - 1, -1):
            files += json.loads((self.folder / "log" / f"{position:020d}.json").read_text())["files"]
        rows: list[dict[str, Any]] = []
        for file in files:
            with (self.root / file["name"]).open("rb") as opened:
                rows += pq.ParquetFile(opened).read().to_pylist()
        return rows

    def claim(self, run: int) -> None:
        self._append("claim", run=run)

    def commit(self, entry: SinkEntry, *tables: pa.Table, by: str | None = None) -> None:
        attempt = uuid.uuid4().hex
        files = [file for table in tables for file in self.write(attempt, table, by)]
        body = json.loads(entry.to_json())
        self._append("commit", run=entry.run, entry=body, attempt=attempt, files=files)

    def write(self, attempt: str, table: pa.Table, by: str | None = None) -> list[dict[str, Any]]:
        """Write files that no record names yet."""
        parts: dict[Any, pa.Table] = {None: table}
        if by is not None:
            texts = table[by].cast(pa.string()).to_pylist()
            places = {value: [at for at, text in enumerate(texts) if text == value] for value in texts}
            parts = {value: table.take(rows) for value, rows in places.items()}
        written = []
        for value, part in parts.items():
            name = f"{self.folder.relative_to(self.root)}/data/{attempt}/{uuid.uuid4().hex}.parquet"
            place = self.root / name
            place.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(part, place, compression="zstd")
            content = place.read_bytes()
            written.append(
                {
                    "name": name,
                    "rows": part.num_rows,
                    "size": len(content),
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "partition": {} if by is None else {by: value},
                }
            )
        return written

    def _append(self, kind: str, *, run: int, **fields: Any) -> None:
        last = self.last() or {"position": 0, "entry": None}
        position = last["position"] + 1
        fresh = {"attempt": None, "files": [], "replaced": [], "snapshot": 0, "written": 0.0, "entry": last["entry"]}
        record = {"schema": 1, "position": position, "kind": kind, "run": run, **fresh, **fields}
        place = self.folder / "log" / f"{position:020d}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("x") as file:  # one of two who want a position loses
            file.write(json.dumps(record))
            file.flush()
            os.fsync(file.fileno())


@dataclass(frozen=True, kw_only=True)
class OldFileSink(Sink):
    """What a job of 0.1.0 declared."""

    path: str
    partition_by: Sequence[str] = ()

    guarantee = TWO_PHASE_COMMIT

    @property
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        return {"path": (self.path,), "partition_by": tuple(self.partition_by)}

    def check_columns(self, columns: Any) -> None:
        """Take all."""

    def open(self, context: SinkContext) -> StagedCommitter:
        return OldCommitter(self, context)


class OldCommitter(StagedCommitter):
    """Commits a batch as one record."""

    def __init__(self, sink: OldFileSink, context: SinkContext) -> None:
        super().__init__(sink, context)
        self.log = OldLog(sink.path, *self.key)
        self.by = next(iter(sink.partition_by), None)

    def entry_of(self, commit: int | None) -> SinkEntry | None:
        last = self.log.last()
        return SinkEntry.from_json(json.dumps(last["entry"])) if last and last["entry"] else None

    def take_over(self, run: int) -> None:
        last = self.log.last()
        if last is not None and last["run"] > run:
            raise self.superseded(run, last["run"])
        self.log.claim(run)

    def publish(self, entry: SinkEntry, rows: Iterator[pa.RecordBatch]) -> None:
        batches = list(rows)
        self.log.commit(entry, *([pa.Table.from_batches(batches)] if batches else []), by=self.by)

    def close(self) -> None:
        """Nothing is held."""
