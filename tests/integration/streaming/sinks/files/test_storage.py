"""Files on an object store, where S3 is emulated; skipped without the packages ``s3fs`` and ``moto[server]``."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_provider_exactlyonce.streaming.sinks.files.sink import FileSink
from airflow_provider_exactlyonce.streaming.sinks.files.storage import open_storage
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance

s3fs = pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")

# Their clients have deprecations of their own.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    """Give what fsspec needs to know of a store with the bucket ``bucket``."""
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    _, port = server.get_host_and_port()
    given = {
        "key": "key",
        "secret": "hunter2",
        "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"},
    }
    s3fs.S3FileSystem(**given).mkdir("bucket")
    yield given
    server.stop()


class TestFilesOnS3(SinkConformance):
    kills = 3
    secrets = ("hunter2",)
    options: ClassVar[Mapping[str, Any]]

    @pytest.fixture(autouse=True)
    def store(self, options: dict[str, Any]) -> None:
        type(self).options = options

    def make_sink(self, folder: Path) -> FileSink:
        return FileSink(name="files", path=f"s3://bucket{folder}", storage_options=self.options)

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        return sink.table("conformance").to_table().to_pylist()  # type: ignore[no-any-return]

    def staged(self, sink: Any) -> Iterable[str]:
        storage = open_storage(sink.path, self.options)
        known = set(sink.table("conformance").paths())
        names = storage.below("_exactlyonce/conformance.files/data")
        return [place for place in map(storage.place, names) if place not in known]


def test_of_many_who_create_one_name_one_succeeds(options: dict[str, Any], tmp_path: Path) -> None:
    storage = open_storage(f"s3://bucket{tmp_path}", options)
    for number in range(5):
        told: list[str] = []

        def create(me: int, name: str = f"log/{number}", told: list[str] = told) -> None:
            try:
                storage.create(name, b"%d" % me)
            except FileExistsError:
                told.append("taken")
            else:
                told.append("won")

        threads = [threading.Thread(target=create, args=(me,)) for me in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(told) == [*["taken"] * 5, "won"]
