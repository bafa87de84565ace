"""A Delta table on an object store, where S3 is emulated; skipped without the package ``moto[server]``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import TableNotFoundError

from airflow_provider_exactlyonce.streaming import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import open_files
from airflow_provider_exactlyonce.testing import sink_conformance
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from tests.clean_forks import Forks, clean_forks

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto.server")

# Their clients have deprecations of their own.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    """Give what delta-rs needs to know of a store with the bucket ``bucket``."""
    # In a process of its own: delta-rs holds Python's lock while it waits for an answer.
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        address = next(match[0] for line in server.stderr if (match := re.search(r"http://127\.0\.0\.1:\d+", line)))
        reading = threading.Thread(target=server.stderr.read)
        reading.start()
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "hunter2"}
        boto3.client("s3", endpoint_url=address, region_name="us-east-1", **keys).create_bucket(Bucket="bucket")
        yield {**keys, "aws_endpoint_url": address, "aws_region": "us-east-1", "aws_allow_http": "true"}
        server.terminate()
        reading.join()


@pytest.fixture(scope="module")
def forks(options: dict[str, str]) -> Iterator[Forks]:
    """Give what makes children, which have the connection to the store as a driver has it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("EXACTLYONCE_STORES", json.dumps({"emulated": options}))
        with clean_forks(__name__) as forks:
            yield forks


class TestDeltaOnS3(SinkConformance):
    kills = 3
    faults = 3
    secrets = ("hunter2",)
    mode: Mapping[str, Any] = {"partition_by": "k"}
    options: ClassVar[Mapping[str, str]]

    @pytest.fixture(autouse=True)
    def store(self, options: dict[str, str], forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
        type(self).options = options
        monkeypatch.setattr(sink_conformance, "_forked", forks)

    def make_sink(self, folder: Path) -> DeltaSink:
        return DeltaSink(name="lake", path=f"s3://bucket{folder}/table", conn_id="emulated", **self.mode)

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        try:
            table = DeltaTable(sink.path, storage_options=sink.options)
        except TableNotFoundError:
            return []
        return table.to_pyarrow_table().to_pylist()  # type: ignore[no-any-return]

    def staged(self, sink: Any) -> Iterable[str]:
        known = set(DeltaTable(sink.path, storage_options=sink.options).file_uris())
        files = open_files(sink.path, sink.options)
        return [place for place in map(files.place, files.below("exactlyonce/conformance.lake")) if place not in known]


class TestDeltaUpsertsOnS3(TestDeltaOnS3):
    kills = 1
    faults = 1
    mode: Mapping[str, Any] = {"mode": "upsert", "key": "id"}


def test_of_many_who_write_the_next_version_one_succeeds(options: dict[str, str], tmp_path: Path) -> None:
    path = f"s3://bucket{tmp_path}"
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
