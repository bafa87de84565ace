"""HDFS: locks that were broken, writers that were killed, answers that were lost."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from upath import UPath

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage.hdfs import HdfsStore
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import ChangedError, OutcomeUnknownError, Stored
from tests.hadoop_cluster import HadoopCluster
from tests.waiting import HANG_SECONDS, eventually

pytestmark = pytest.mark.slow

#: A lock is held for as long as the name node takes for three questions; on a busy machine that may be a while.
HELD_SECONDS = 3.0


@pytest.fixture
def place(hadoop: HadoopCluster) -> Path:
    place: Any = UPath(f"{hadoop.hdfs}/{uuid.uuid4()}/a.json")
    return place  # type: ignore[no-any-return]


@pytest.fixture
def store(place: Path) -> HdfsStore:
    """Give a store that waits shortly for others' locks."""
    store = store_of(place)
    assert isinstance(store, HdfsStore)
    impatient = HdfsStore(store.system)
    impatient.held_seconds = HELD_SECONDS
    return impatient


class Frozen(HdfsStore):
    """Stops after it has found that nobody has changed the file, which it has locked, until it is let go."""

    def __init__(self, system: Any) -> None:
        super().__init__(system)
        self.is_there, self.goes_on = threading.Event(), threading.Event()

    def _check_unchanged(self, place: Path, version: str) -> None:
        super()._check_unchanged(place, version)
        self.is_there.set()
        assert self.goes_on.wait(HANG_SECONDS)


@pytest.mark.parametrize("late", ["replace", "delete"])
def test_a_writer_that_was_frozen_in_its_lock_does_nothing_once_the_lock_was_broken(
    store: HdfsStore, place: Path, late: str
) -> None:
    version = store.create(place, b"first")
    frozen = Frozen(store.system)
    write: Callable[[], object] = partial(frozen.delete_if, place, version)
    if late == "replace":
        write = partial(frozen.replace_if, place, b"late", version)
    with ThreadPoolExecutor() as threads:
        writing = threads.submit(write)
        assert frozen.is_there.wait(HANG_SECONDS)
        second = store.replace_if(place, b"second", version)
        frozen.goes_on.set()
        with pytest.raises(OutcomeUnknownError):
            writing.result()
    assert store.read(place) == Stored(content=b"second", version=second)
    store.delete_if(place, second)
    assert list(store.names(place.parent)) == []


def test_an_unbroken_lock_is_waited_for(store: HdfsStore, place: Path) -> None:
    version = store.create(place, b"first")
    frozen = Frozen(store.system)
    patient = HdfsStore(store.system)
    patient.held_seconds = HANG_SECONDS
    with ThreadPoolExecutor() as threads:
        holding = threads.submit(frozen.replace_if, place, b"second", version)
        assert frozen.is_there.wait(HANG_SECONDS)
        waiting = threads.submit(patient.replace_if, place, b"third", version)
        frozen.goes_on.set()
        second = holding.result()
        with pytest.raises(ChangedError):
            waiting.result()
    assert store.read(place) == Stored(content=b"second", version=second)


COUNTING = """
import sys
from upath import UPath
from airflow_provider_exactlyonce.storage.opening import store_of

place = UPath(sys.argv[1])
store = store_of(place)
while True:
    found = store.read(place)
    store.replace_if(place, b"%08d" % (int(found.content[:8]) + 1) * 20_000, found.version, durable=False)
"""


def test_a_process_that_is_killed_while_it_replaces_a_file_leaves_it_whole_and_holds_nobody_up_for_long(
    store: HdfsStore, place: Path, hadoop: HadoopCluster
) -> None:
    version, number = store.create(place, b"%08d" % 0 * 20_000), 0

    def has_passed(number: int) -> bool:
        found = store.read(place)
        return found is not None and int(found.content[:8]) > number

    for _ in range(3):
        command = [sys.executable, "-c", COUNTING, f"{hadoop.hdfs}{place.path}"]  # type: ignore[attr-defined]
        with subprocess.Popen(command) as process:
            eventually(partial(has_passed, number + 1), "it counts", poll_seconds=0.001)
            process.kill()
        found = store.read(place)
        assert found is not None
        number = int(found.content[:8])
        assert found.content == b"%08d" % number * 20_000
        version = store.replace_if(place, found.content, found.version)
    assert store.read(place) == Stored(content=b"%08d" % number * 20_000, version=version)


class NameNodeProxy(ThreadingTCPServer):
    """Stands before the name node, and does to each rename what is planned next.

    ``drop``: nobody gets the request. ``lose``: the name node gets it, and nobody its answer. In both cases
    the connection ends.
    """

    daemon_threads = True

    def __init__(self, name_node: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.name_node = name_node
        self.planned: list[str] = []


class _Connection(BaseRequestHandler):
    server: NameNodeProxy

    def handle(self) -> None:
        with socket.create_connection(("localhost", self.server.name_node)) as name_node:
            answering = threading.Thread(target=self._answer, args=(name_node,))
            self.is_lost, self.is_answered = False, threading.Event()
            answering.start()
            with suppress(OSError):
                while request := self.request.recv(65536):
                    fault = self.server.planned.pop(0) if b"rename2" in request and self.server.planned else ""
                    if fault == "drop":
                        break
                    self.is_lost = fault == "lose"
                    name_node.sendall(request)
                    if self.is_lost:
                        assert self.is_answered.wait(HANG_SECONDS)
                        break
            name_node.shutdown(socket.SHUT_RDWR)
            answering.join()

    def _answer(self, name_node: socket.socket) -> None:
        with suppress(OSError):
            while answer := name_node.recv(65536):
                if self.is_lost:
                    self.is_answered.set()
                    return
                self.request.sendall(answer)


@pytest.fixture(scope="module")
def proxy(hadoop: HadoopCluster) -> Iterator[NameNodeProxy]:
    with NameNodeProxy(int(hadoop.hdfs.rpartition(":")[2])) as proxy:
        serving = threading.Thread(target=proxy.serve_forever)
        serving.start()
        yield proxy
        proxy.shutdown()
        serving.join()


@pytest.fixture
def behind(proxy: NameNodeProxy, place: Path) -> Any:
    """Give the same place, asked of through the proxy."""
    proxy.planned.clear()
    behind: Any = UPath(f"hdfs://127.0.0.1:{proxy.server_address[1]}{place.path}")  # type: ignore[attr-defined]
    return behind


def test_a_write_whose_answer_was_lost_is_known_to_be_made(
    store: HdfsStore, place: Path, proxy: NameNodeProxy, behind: Any
) -> None:
    lossy = store_of(behind)
    proxy.planned = ["lose"]
    version = lossy.create(behind, b"first")
    assert store.read(place) == Stored(content=b"first", version=version)
    proxy.planned = ["lose"]
    version = lossy.replace(behind, b"second")
    proxy.planned = ["lose", "lose"]  # of the lock, and of the file
    version = lossy.replace_if(behind, b"third", version)
    assert store.read(place) == Stored(content=b"third", version=version)
    proxy.planned = ["lose", "lose"]
    lossy.delete_if(behind, version)
    assert proxy.planned == []
    assert store.read(place) is None
    assert list(store.names(place.parent)) == []


def test_a_write_that_was_not_made_is_taken_back_so_that_it_never_is(
    store: HdfsStore, place: Path, proxy: NameNodeProxy, behind: Any
) -> None:
    lossy = store_of(behind)
    proxy.planned = ["drop"]
    with pytest.raises(OSError, match=r"\S"):
        lossy.create(behind, b"mine")
    assert store.read(place) is None
    version = store.create(place, b"theirs")
    proxy.planned = ["lose"]
    with pytest.raises(OSError, match=r"\S"):
        lossy.create(behind, b"mine")
    proxy.planned = ["", "drop"]
    with pytest.raises(OSError, match=r"\S"):
        lossy.replace_if(behind, b"mine", version)
    assert store.read(place) == Stored(content=b"theirs", version=version)


def test_without_any_answer_nobody_knows(store: HdfsStore, place: Path, proxy: NameNodeProxy, behind: Any) -> None:
    lossy = store_of(behind)
    proxy.planned = ["drop"] * 10
    with pytest.raises(OutcomeUnknownError, match="nobody knows whether"):
        lossy.create(behind, b"mine")
    version = store.create(place, b"theirs")
    proxy.planned = ["", *["drop"] * 10]
    with pytest.raises(OutcomeUnknownError, match="nobody knows whether"):
        lossy.replace_if(behind, b"mine", version)
    proxy.planned = ["", "drop"]
    with pytest.raises(OutcomeUnknownError, match="was deleted"):
        lossy.delete_if(behind, version)
    assert store.read(place) == Stored(content=b"theirs", version=version)


def test_a_name_node_that_is_away_is_no_empty_place(place: Path) -> None:
    away: Any = UPath(f"hdfs://127.0.0.1:1{place.path}", **{"dfs.client.failover.max.attempts": "1"})  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="refused"):
        store_of(away).read(away)


def test_it_is_not_held(store: HdfsStore, place: Path) -> None:
    with pytest.raises(RefusedError, match="no locks"), store.holding(place):
        pass


FORKING = """
import os, sys
from upath import UPath
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage.opening import store_of

place = UPath(sys.argv[1])
store_of(place).read(place)
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
try:
    store_of(place)
except RefusedError as error:
    print(error, flush=True)
    os._exit(error.exit_code)
"""


def test_a_process_that_was_forked_after_hdfs_was_used_is_refused(hadoop: HadoopCluster) -> None:
    command = [sys.executable, "-c", FORKING, f"{hadoop.hdfs}/nothing"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == RefusedError.exit_code, ended.stderr
    assert "before it forked" in ended.stdout


class Undeletable(HdfsStore):
    """May delete no lock, as where another user has made it and the directory has the sticky bit."""

    def _delete(self, path: str, *, below: bool = False) -> None:
        if "lock-" in path.rpartition("/")[2]:
            raise PermissionError("Permission denied by sticky bit")
        super()._delete(path, below=below)


def test_an_empty_lock_that_can_not_be_deleted_is_not_waited_for_without_end(store: HdfsStore, place: Path) -> None:
    version = store.create(place, b"first")
    lock = f"{place.parent.path!s}/.exactlyonce-lock-{place.name}"  # type: ignore[attr-defined]
    store._make_directory(lock)
    refused = Undeletable(store.system)
    refused.held_seconds = HELD_SECONDS
    with pytest.raises(OSError, match=rf"a.json was not changed: .*{lock}, .* for 3 s: .*sticky bit. Delete it"):
        refused.replace_if(place, b"second", version)
    assert store.read(place) == Stored(content=b"first", version=version)
    store.replace_if(place, b"second", version)
