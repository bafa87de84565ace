"""The Delta sink passes what every sink has to, with calls to the table's log and files that fail."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StructType, VariantType

from airflow_provider_exactlyonce.streaming import DeltaSink
from airflow_provider_exactlyonce.testing import sink_conformance
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from tests import faulty_targets
from tests.clean_forks import Forks, clean_forks


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with clean_forks(__name__) as forks:
        yield forks


def rows_of(sink: DeltaSink) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(sink.path):
        return []
    return DeltaTable(sink.path).to_pyarrow_table().to_pylist()  # type: ignore[no-any-return]


def unreferenced(sink: DeltaSink) -> list[str]:
    """Return all data files below a table's path that its newest version does not name."""
    known = set(DeltaTable(sink.path).file_uris()) if DeltaTable.is_deltatable(sink.path) else set()
    return [str(file) for file in Path(sink.path).rglob("*.parquet") if str(file) not in known]


class TestDeltaSink(SinkConformance):
    kills = 3
    faults = 6
    secrets = ("hunter2",)
    refused_columns = (StructType().add("id", LongType()).add("k", VariantType()), "'k'")

    @pytest.fixture(autouse=True)
    def calls_can_fail(self, monkeypatch: pytest.MonkeyPatch, forks: Forks) -> None:
        monkeypatch.setattr(sink_conformance, "_forked", forks)
        faulty_targets.delta(monkeypatch)

    def make_sink(self, folder: Path) -> DeltaSink:
        options = {"aws_secret_access_key": "hunter2"}
        return DeltaSink(name="lake", path=str(folder / "table"), partition_by=["k"], storage_options=options)

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        return rows_of(sink)

    def staged(self, sink: Any) -> Iterable[str]:
        return [name for name in unreferenced(sink) if "-other." not in name and "_delta_log" not in name]

    def set_back(self, sink: Any, folder: Path) -> Callable[[], None]:
        backup = shutil.copytree(sink.path, folder / "backup", dirs_exist_ok=True)

        def put_back() -> None:
            shutil.rmtree(sink.path)
            shutil.move(backup, sink.path)

        return put_back
