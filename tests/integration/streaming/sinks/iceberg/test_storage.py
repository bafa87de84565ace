"""An Iceberg table on object stores that are emulated, with its catalog in SQLite: Azure's and Google's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_provider_exactlyonce.streaming import IcebergSink
from airflow_provider_exactlyonce.streaming.sinks.iceberg.storage import IcebergFiles
from airflow_provider_exactlyonce.testing import sink_crashes
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from tests import azurite, object_stores
from tests.clean_forks import Forks, clean_forks
from tests.integration.streaming.sinks.iceberg.lake import catalog_in
from tests.integration.streaming.sinks.iceberg.test_conformance import rows_of, table_of
from tests.integration.streaming.sinks.lake import Live, rows

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # the clients have deprecations of their own


@dataclass(frozen=True)
class Store:
    """One with the bucket ``bucket``.

    :param place: of a table's folder, as a catalog writes it
    :param properties: what pyiceberg needs to know of it
    """

    place: str
    secrets: tuple[str, ...]
    properties: Mapping[str, str]

    def catalog(self, folder: Path) -> dict[str, str]:
        """Return the properties of a folder's catalog, all of whose tables are in the store."""
        return {**catalog_in(folder), **self.properties, "warehouse": f"{self.place}{folder}"}


@contextmanager
def azure() -> Iterator[Store]:
    with azurite.azurite() as address:
        scheme, _, at = address.partition("://")
        of_adlfs = {"connection-string": azurite.options(address)["connection_string"]}
        of_arrow = {"account-key": azurite.KEY}
        for kind in ("blob", "dfs"):  # it asks the other interface whether there are directories
            of_arrow |= {f"{kind}-storage-authority": at, f"{kind}-storage-scheme": scheme}
        properties = {f"adls.{name}": value for name, value in {**of_adlfs, **of_arrow}.items()}
        yield Store(f"abfss://bucket@{azurite.ACCOUNT}.dfs.core.windows.net", (azurite.KEY,), properties)


@contextmanager
def gcs() -> Iterator[Store]:
    with object_stores.gcs_without_conditions() as address:
        token = {"token": "hunter2", "token-expires-at": str(2**42)}
        oauth = {f"gcs.oauth2.{name}": value for name, value in token.items()}
        yield Store("gs://bucket", ("hunter2",), {**oauth, "gcs.service.host": address})


@pytest.fixture(scope="module", params=[azure, gcs], ids=lambda kind: kind.__name__)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with request.param() as made:
        yield made


@pytest.fixture(scope="module")
def forks(store: Store) -> Iterator[Forks]:
    with clean_forks(__name__) as forks:
        yield forks


class TestIceberg(SinkConformance):
    kills = 3
    faults = 3
    mode: Mapping[str, Any] = {"partition_by": ["k"]}
    at: ClassVar[Store]

    @pytest.fixture(autouse=True)
    def is_there(self, store: Store, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
        type(self).at, type(self).secrets = store, store.secrets
        monkeypatch.setattr(sink_crashes, "forked", forks)

    def make_sink(self, folder: Path) -> IcebergSink:
        return IcebergSink("lake.shop.events", name="lake", catalog_properties=self.at.catalog(folder), **self.mode)

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        return rows_of(sink)

    def staged(self, sink: Any) -> Iterable[str]:
        table = table_of(sink)
        assert table is not None
        known = {task.file.file_path for task in table.scan().plan_files()}
        files = IcebergFiles(sink.catalog_properties).below(f"{table.location()}/data/exactlyonce/conformance")
        return [file for file in files if file not in known]


class TestIcebergUpserts(TestIceberg):
    kills = 1
    faults = 1
    mode: Mapping[str, Any] = {"mode": "upsert", "key": "id"}


def test_small_files_are_written_together(store: Store, tmp_path: Path) -> None:
    sink = IcebergSink("lake.shop.events", name="lake", catalog_properties=store.catalog(tmp_path), compact_every=3)
    live = Live(sink, tmp_path)
    entries = [live.commit(rows(5 * number, 5)) for number in range(3)]
    table = table_of(sink)
    assert table is not None
    assert len(list(table.scan().plan_files())) == 1
    assert sorted(row["id"] for row in rows_of(sink)) == list(range(15))
    assert live.audit(entries) == []
    assert Live(sink, tmp_path, run=2).number == 3
