"""Where a write-ahead log can be: local, and on an object store, where S3 is emulated."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.sink import WriteAheadLogSink
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.storage import (
    RemoteStorage,
    Storage,
    open_storage,
)
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from tests import object_stores
from tests.flushed_names import FlushedNames
from tests.integration.storage.conftest import lose_answers
from tests.integration.streaming.sinks.write_ahead_log.test_delivery import FolderTarget, delivered_rows

s3fs = pytest.importorskip("s3fs")
on_s3 = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # the clients have deprecations of their own


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    """Give what fsspec needs to know of a store with the bucket ``bucket``."""
    with object_stores.moto() as address:
        yield object_stores.options(address)


class TestLogOnS3(SinkConformance):
    pytestmark = on_s3
    kills = 3
    secrets = (object_stores.SECRET,)
    options: ClassVar[Mapping[str, Any]]

    @pytest.fixture(autouse=True)
    def store(self, options: dict[str, Any]) -> None:
        type(self).options = options

    def make_sink(self, folder: Path) -> WriteAheadLogSink:
        target = FolderTarget(folder / "target")
        target.folder.mkdir()
        return WriteAheadLogSink(
            name="log", path=f"s3://bucket{folder}", target=target, wait_seconds=30, storage_options=self.options
        )

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        return delivered_rows(sink)

    def staged(self, sink: Any) -> Iterable[str]:
        storage = open_storage(sink.path, self.options)
        staged = sink.target.folder.parent.glob("home/sinks/log/staging/*/*/*")
        return [*map(str, staged), *(name for name in storage.names("_exactlyonce/conformance.log") if "probe" in name)]


def race(storage: Storage, name: str) -> None:
    """Create one name from many threads: one succeeds, and the file is what it wrote."""
    won: list[int] = []

    def create(me: int) -> None:
        with contextlib.suppress(FileExistsError):
            storage.create(name, b"%d" % me)
            won.append(me)

    threads = [threading.Thread(target=create, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.first_line(name) == b"%d" % won[0]


@pytest.mark.parametrize("loses", [False, True])
def test_of_many_who_create_one_name_one_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loses: bool) -> None:
    if loses:
        lose_answers(monkeypatch)
    for number in range(20):
        race(open_storage(str(tmp_path), {}), f"log/{number}")
    assert list((tmp_path / "log").glob(".*")) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_of_many_who_create_one_name_on_s3_one_succeeds(options: dict[str, Any], tmp_path: Path) -> None:
    for number in range(5):
        race(open_storage(f"s3://bucket{tmp_path}", options), f"log/{number}")


def test_a_path_on_a_file_system_without_exclusive_creation_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"HTTPFileSystem can neither rename nor create|can't be opened"):
        open_storage("http://nowhere/log", {})
    with pytest.raises(RefusedError, match="path='gibberish://x' can't be opened"):
        open_storage("gibberish://x", {})


class IgnorantStore(MemoryFileSystem):  # type: ignore[misc]
    """An object store that has never heard of conditional writes."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        super().pipe_file(path, value, **kwargs)


def test_a_store_that_ignores_conditional_writes_is_refused(tmp_path: Path) -> None:
    storage = RemoteStorage(IgnorantStore(), str(tmp_path))
    with pytest.raises(RefusedError, match="was created twice: this store ignores conditional writes"):
        storage.check_exclusive("sink")
    assert storage.names("sink") == []


def test_a_file_is_found_again_after_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = FlushedNames(tmp_path, monkeypatch)
    open_storage(str(tmp_path / "logs" / "log"), {}).create("shop.log/1/2.arrows", b"rows")
    assert names.lost([tmp_path / "logs" / "log" / "shop.log" / "1" / "2.arrows"]) == set()
