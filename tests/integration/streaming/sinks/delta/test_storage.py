"""A Delta table on HDFS, and on object stores that are emulated: S3, Google's and Azure's.

S3 and Google's are moto, without whose package ``moto[server]`` all are skipped. Of Google's two interfaces delta-rs
has the one that is nearly S3's (``tests/moto_in_turns.py``).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import TableNotFoundError

from airflow_provider_exactlyonce.hooks import connections
from airflow_provider_exactlyonce.streaming import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import DeltaFiles
from airflow_provider_exactlyonce.testing import sink_crashes
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from tests import azurite, object_stores
from tests.clean_forks import Forks, clean_forks
from tests.hadoop_cluster import HadoopCluster
from tests.integration.streaming.sinks.lake import Live, rows

pytest.importorskip("moto.server")

# Their clients have deprecations of their own.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@dataclass(frozen=True)
class Store:
    """One with the bucket ``bucket``, or HDFS.

    :param url: of the bucket, or of the root
    :param secret: that nothing may show, None when there is none
    :param options: what delta-rs needs to know of it
    """

    url: str
    secret: str | None
    options: Mapping[str, str]

    def place(self, path: Path) -> str:
        return f"{self.url}{path}"


@contextmanager
def s3() -> Iterator[Store]:
    with object_stores.moto() as address:
        keys = {"aws_access_key_id": object_stores.KEY, "aws_secret_access_key": object_stores.SECRET}
        options = {**keys, "aws_endpoint_url": address, "aws_region": "us-east-1", "aws_allow_http": "true"}
        yield Store("s3://bucket", object_stores.SECRET, options)


@contextmanager
def azure() -> Iterator[Store]:
    with azurite.azurite() as address:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("AIRFLOW_CONN_LAKE", json.dumps(azurite.connection(address)))
            options = json.loads(connections.stores(["lake"]))["lake"]
        yield Store(f"abfss://bucket@{azurite.ACCOUNT}.dfs.core.windows.net", azurite.KEY, options)


@contextmanager
def google() -> Iterator[Store]:
    with object_stores.moto() as address:
        key = {"gcs_base_url": address, "disable_oauth": True, "client_email": "", "private_key_id": ""}
        key["private_key"] = object_stores.SECRET
        options = {"google_service_account_key": json.dumps(key), "allow_http": "true"}
        yield Store("gs://bucket", object_stores.SECRET, options)


KINDS = {"s3": s3, "azure": azure, "google": google}
HDFS = "hdfs"


@pytest.fixture(scope="module", params=[*KINDS, HDFS])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == HDFS:
        hadoop: HadoopCluster = request.getfixturevalue("hadoop")
        yield Store(hadoop.hdfs, None, {})
    else:
        with KINDS[request.param]() as made:
            yield made


@pytest.fixture(scope="module")
def forks(store: Store) -> Iterator[Forks]:
    """Give what makes children, which have the connection to the store as a driver has it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("EXACTLYONCE_STORES", json.dumps({"emulated": dict(store.options)}))
        with clean_forks(__name__) as forks:
            yield forks


class TestDelta(SinkConformance):
    kills = 3
    faults = 3
    mode: Mapping[str, Any] = {"partition_by": "k"}
    at: ClassVar[Store]

    @pytest.fixture(autouse=True)
    def is_there(self, store: Store, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
        type(self).at, type(self).secrets = store, () if store.secret is None else (store.secret,)
        monkeypatch.setattr(sink_crashes, "forked", forks)

    def make_sink(self, folder: Path) -> DeltaSink:
        return DeltaSink(name="lake", path=self.at.place(folder / "table"), conn_id="emulated", **self.mode)

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        try:
            table = DeltaTable(sink.path, storage_options=sink.options)
        except TableNotFoundError:
            return []
        return table.to_pyarrow_table().to_pylist()  # type: ignore[no-any-return]

    def staged(self, sink: Any) -> Iterable[str]:
        known = set(DeltaTable(sink.path, storage_options=sink.options).file_uris())
        files = DeltaFiles(sink.path, sink.options)
        return [place for place in map(files.place, files.below("exactlyonce/conformance.lake")) if place not in known]


class TestDeltaUpserts(TestDelta):
    kills = 1
    faults = 1
    mode: Mapping[str, Any] = {"mode": "upsert", "key": "id"}


def test_of_many_who_write_the_next_version_one_succeeds(store: Store, tmp_path: Path) -> None:
    path, options = store.place(tmp_path), dict(store.options)
    DeltaTable.create(path, pa.schema([("id", pa.int64())]), storage_options=options)
    for version in range(5):
        outcomes: list[str] = []
        handles = [DeltaTable(path, storage_options=options) for _ in range(6)]

        def write(handle: DeltaTable, version: int = version, outcomes: list[str] = outcomes) -> None:
            properties = CommitProperties(app_transactions=[Transaction("a", version)], max_commit_retries=0)
            try:
                handle.create_write_transaction([], mode="append", schema=handle.schema(), commit_properties=properties)
            except Exception:
                outcomes.append("taken")
            else:
                outcomes.append("won")

        threads = [threading.Thread(target=write, args=(handle,)) for handle in handles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == [*["taken"] * 5, "won"]


def test_small_files_are_written_together(store: Store, tmp_path: Path) -> None:
    options = dict(store.options)
    sink = DeltaSink(
        name="lake", path=store.place(tmp_path), storage_options=options, partition_by=["k"], compact_every=3
    )
    live = Live(sink, tmp_path)
    entries = [live.commit(rows(6 * number, 6)) for number in range(3)]
    table = DeltaTable(sink.path, storage_options=options)
    assert len(table.file_uris()) == 3
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == list(range(18))
    assert live.audit(entries) == []
    assert Live(sink, tmp_path, run=2).number == 3
