"""What the readiness probe makes of a broker's answers, given by a socket that plays the broker."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from airflow_provider_exactlyonce.devkit.probe import why_not_ready

HOST = "127.0.0.1"
Play = Callable[[bytes], int]


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def answer(*, brokers: int = 1, cluster: str = "ours", leader: int = 1, topics: int = 1) -> bytes:
    """Build a Metadata response of version 2 by hand, two partitions a topic."""
    one_broker = struct.pack(">i", 1) + text("localhost") + struct.pack(">ih", 9092, -1)
    partitions = b"".join(
        struct.pack(">hii", 0, index, leader if index else 1) + struct.pack(">iiii", 1, 1, 1, 1) for index in range(2)
    )
    one_topic = struct.pack(">h", 0) + text("events") + struct.pack(">bi", 0, 2) + partitions
    body = struct.pack(">ii", 1, brokers) + one_broker * brokers + text(cluster) + struct.pack(">i", 1)
    body += struct.pack(">i", topics) + one_topic * topics
    return struct.pack(">i", len(body)) + body


@pytest.fixture
def play() -> Iterator[Play]:
    """Answer one connection with the given bytes and close it."""
    threads: list[threading.Thread] = []

    def start(content: bytes) -> int:
        listener = socket.create_server((HOST, 0))

        def serve() -> None:
            with listener, listener.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(content)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return int(listener.getsockname()[1])

    yield start
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("topics", [0, 1, 3])
def test_a_registered_broker_that_leads_all_its_partitions_is_ready(play: Play, topics: int) -> None:
    assert why_not_ready(HOST, play(answer(topics=topics)), "ours") is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (answer(brokers=0), "not registered"),
        (answer(leader=-1), "events-1 has no leader yet"),
        (answer(cluster="theirs"), "belongs to cluster 'theirs', not 'ours'"),
        (answer()[:-9], "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak the Kafka protocol"),
        (struct.pack(">i", 3) + b"abc", "does not answer"),
        (b"", "closed the connection"),
    ],
    ids=["unregistered", "leaderless", "foreign", "cut off", "another protocol", "too short", "nothing"],
)
def test_anything_else_is_named(play: Play, content: bytes, expected: str) -> None:
    reason = why_not_ready(HOST, play(content), "ours")
    assert reason is not None
    assert expected in reason


def test_a_port_where_nobody_listens_is_named() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    assert why_not_ready(HOST, port, "ours") == f"{HOST}:{port} does not answer ([Errno 111] Connection refused)"
