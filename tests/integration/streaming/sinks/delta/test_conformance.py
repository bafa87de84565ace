"""The Delta sink passes what every sink has to, with calls to the table's log and files that fail."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StructType, VariantType

from airflow_provider_exactlyonce.streaming import DeltaSink
from airflow_provider_exactlyonce.testing import sink_crashes
from airflow_provider_exactlyonce.testing.fault_injection import Fault, Kind
from tests import faulty_targets
from tests.clean_forks import Forks, clean_forks
from tests.integration.streaming.sinks.over_others import Compactions, OverOthers, TableConformance


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with clean_forks(__name__) as forks:
        yield forks


def rows_of(sink: DeltaSink) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(sink.path):
        return []
    return DeltaTable(sink.path).to_pyarrow_table().to_pylist()  # type: ignore[no-any-return]


def named_files(sink: DeltaSink) -> set[str]:
    """Return the files that a version of the table names."""
    newest = DeltaTable(sink.path).version()
    return {uri for version in range(newest + 1) for uri in DeltaTable(sink.path, version=version).file_uris()}


def unreferenced(sink: DeltaSink) -> list[str]:
    """Return all data files below a table's path that its newest version does not name."""
    known = set(DeltaTable(sink.path).file_uris()) if DeltaTable.is_deltatable(sink.path) else set()
    return [str(file) for file in Path(sink.path).rglob("*.parquet") if str(file) not in known]


class TestDeltaSink(TableConformance):
    kills = 3
    faults = 2
    secrets = ("hunter2",)
    refused_columns = (StructType().add("id", LongType()).add("k", VariantType()), "'k'")
    mode: Mapping[str, Any] = {"partition_by": ["k"]}

    @pytest.fixture(autouse=True)
    def calls_can_fail(self, monkeypatch: pytest.MonkeyPatch, forks: Forks) -> None:
        monkeypatch.setattr(sink_crashes, "forked", forks)
        faulty_targets.delta(monkeypatch)

    def make_sink(self, folder: Path) -> DeltaSink:
        options = {"aws_secret_access_key": "hunter2"}
        return DeltaSink(name="lake", path=str(folder / "table"), storage_options=options, **self.mode)

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        return rows_of(sink)

    def named_files(self, sink: Any) -> set[str]:
        return named_files(sink)

    def staged(self, sink: Any) -> Iterable[str]:
        return [name for name in unreferenced(sink) if "-other." not in name and "_delta_log" not in name]

    def set_back(self, sink: Any, folder: Path) -> Callable[[], None]:
        backup = shutil.copytree(sink.path, folder / "backup", dirs_exist_ok=True)

        def put_back() -> None:
            shutil.rmtree(sink.path)
            shutil.move(backup, sink.path)

        return put_back


@pytest.mark.slow
class TestDeltaCompactions(Compactions, TestDeltaSink):
    """Its table is made by the sink."""

    def test_what_a_successor_reads_while_a_run_is_frozen_meets_none_of_the_runs_faults(self, tmp_path: Path) -> None:
        frozen = Fault(step="ledger.claim", kind=Kind.FROZEN)
        lost = Fault(step="storage.log-open", kind=Kind.REQUEST_LOST, call=2)
        self.rehearse(tmp_path, "frozen", [frozen, lost], set_back=True)


class RestoredDelta(TestDeltaSink):
    """Its table is set back by Delta's own ``RESTORE``, which leaves the sink's transactions as they are."""

    def staged(self, sink: Any) -> Iterable[str]:
        known = self.named_files(sink) if DeltaTable.is_deltatable(sink.path) else set()
        return [name for name in super().staged(sink) if name not in known]

    def set_back(self, sink: Any, folder: Path) -> Callable[[], None]:
        version = DeltaTable(sink.path).version()

        def restore() -> None:
            DeltaTable(sink.path).restore(version)

        return restore


@pytest.mark.slow
class TestDeltaRestores(RestoredDelta):
    """Its table is made by the sink."""


class OverOthersInDelta(OverOthers, RestoredDelta):
    def write_old(self, sink: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        write_deltalake(sink.path, pa.Table.from_pylist(list(rows)), partition_by=list(sink.partition_by))


class TestDeltaUpserts(OverOthersInDelta):
    mode: Mapping[str, Any] = {"mode": "upsert", "key": "id", "partition_by": ["k"]}


@pytest.mark.slow
class TestDeltaPartitions(OverOthersInDelta):
    mode: Mapping[str, Any] = {"mode": "overwrite partitions", "partition_by": ["p"]}


# pytest would take them for tests of their own
del Compactions, OverOthers, OverOthersInDelta, RestoredDelta, TableConformance
