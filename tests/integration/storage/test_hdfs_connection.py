"""Name nodes that say nothing: one that hangs, and one whose host is gone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Final

import pytest
from hdfs_native import Client, FileStatus
from upath import UPath

from airflow_provider_exactlyonce.storage import hdfs_connection
from airflow_provider_exactlyonce.storage.hdfs_connection import HdfsConnection
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import is_no_answer
from tests.hadoop_cluster import HadoopCluster
from tests.waiting import eventually

NO_PATIENCE: Final = 0.5


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_connection, "PATIENCE", NO_PATIENCE)


def root(client: Client) -> FileStatus:
    return client.get_file_info("/")


class Hanging:
    """A name node whose process was stopped: connections are made, and nothing is ever said."""

    def __init__(self) -> None:
        self._listening: Final = socket.create_server(("127.0.0.1", 0))
        self.address: Final = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.begun = 0
        self._accepting: Final = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        with suppress(OSError), ExitStack() as reading:
            while True:
                connection = self._listening.accept()[0]
                self.begun += 1
                thread = threading.Thread(target=self._read, args=(connection,))
                thread.start()
                reading.callback(thread.join)
                reading.enter_context(connection)
                reading.callback(connection.shutdown, socket.SHUT_RDWR)

    def _read(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while connection.recv(65536):
                pass

    def has_begun(self, connections: int) -> bool:
        return self.begun == connections

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listening.close()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    server = Hanging()
    yield server
    server.close()


def test_a_name_node_that_hangs_does_not_answer_and_is_asked_over_a_new_connection(hanging: Hanging) -> None:
    connection = HdfsConnection(f"hdfs://{hanging.address}", {})

    for begun in (1, 2):
        with pytest.raises(TimeoutError, match=f"hdfs://{hanging.address} has not answered for 0.5 s") as raised:
            connection.ask(root)
        assert is_no_answer(raised.value)
        eventually(partial(hanging.has_begun, begun), "the server has accepted the connection")
    with pytest.raises(TimeoutError, match="has not answered"):
        list(connection.listed("/", below=True))


def test_a_read_of_a_name_node_that_hangs_is_one_question(hanging: Hanging) -> None:
    place: Any = UPath(f"hdfs://{hanging.address}/home/status.json")
    with pytest.raises(TimeoutError, match="has not answered"):
        store_of(place).read(place)
    eventually(partial(hanging.has_begun, 1), "the server has accepted the connection")


@contextmanager
def gone() -> Iterator[str]:
    """Give the address of a host that is gone: what is sent to it is dropped, and no refusal comes back."""
    with ExitStack() as sockets:
        full = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # more than wait for being accepted: the next ones are dropped
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(full.getsockname())
        yield f"127.0.0.1:{full.getsockname()[1]}"


@pytest.mark.slow
def test_another_name_node_answers_soon_when_the_first_one_s_host_is_gone(
    hadoop: HadoopCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs_connection, "PATIENCE", 5.0)
    with gone() as first:
        connection = HdfsConnection(
            "hdfs://pipelines",
            {
                "dfs.ha.namenodes.pipelines": "first,second",
                "dfs.namenode.rpc-address.pipelines.first": first,
                "dfs.namenode.rpc-address.pipelines.second": hadoop.hdfs.removeprefix("hdfs://"),
            },
        )
        with pytest.raises(TimeoutError, match="hdfs://pipelines has not answered"):
            connection.ask(root)

        def is_answered() -> bool:
            with suppress(TimeoutError):
                return connection.ask(root).isdir
            return False

        eventually(is_answered, "one of the next connections begins with the second name node")
