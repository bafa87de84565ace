"""Ask a broker over its socket whether clients can work with it: one hand-written Metadata request.

A client library would do the same, at the price of its import, its threads and its complaints while nobody listens yet.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

_METADATA_KEY: Final = 3
_METADATA_VERSION: Final = 2
_ALL_TOPICS: Final = -1
_CORRELATION_ID: Final = 1
_CLIENT_ID: Final = b"exactlyonce-devkit"
_MAXIMUM_RESPONSE_BYTES: Final = 64 * 1024 * 1024


def why_not_ready(host: str, port: int, cluster_id: str, timeout_seconds: float = 2.0) -> str | None:
    """Return what the broker still lacks, or None once it is registered and leads every partition it has.

    :param cluster_id: as in its ``meta.properties``, so that another broker on this port is not mistaken for it
    """
    try:
        with socket.create_connection((host, port), timeout=timeout_seconds) as connection:
            connection.sendall(_request())
            (size,) = struct.unpack(">i", _receive(connection, 4))
            if not 0 < size <= _MAXIMUM_RESPONSE_BYTES:
                return f"{host}:{port} does not speak the Kafka protocol"
            return _judge(_ResponseReader(_receive(connection, size)), cluster_id)
    except (OSError, struct.error) as error:
        return f"{host}:{port} does not answer ({error})"


def _request() -> bytes:
    header = struct.pack(">hhih", _METADATA_KEY, _METADATA_VERSION, _CORRELATION_ID, len(_CLIENT_ID)) + _CLIENT_ID
    message = header + struct.pack(">i", _ALL_TOPICS)
    return struct.pack(">i", len(message)) + message


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionError("it closed the connection")
        received += part
    return bytes(received)


class _ResponseReader:
    """Takes values off a response, in the protocol's older encoding (fixed lengths)."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def number(self, code: str) -> int:
        (value,) = struct.unpack_from(f">{code}", self._content, self._position)
        self._position += struct.calcsize(f">{code}")
        return int(value)

    def text(self) -> str:
        length = max(self.number("h"), 0)
        self._position += length
        return self._content[self._position - length : self._position].decode()

    def skip_numbers(self) -> None:
        count = self.number("i")
        self._position += 4 * count


def _judge(reader: _ResponseReader, cluster_id: str) -> str | None:
    reader.number("i")  # correlation id
    broker_count = reader.number("i")
    for _ in range(broker_count):
        reader.number("i")  # id
        reader.text()  # host
        reader.number("i")  # port
        reader.text()  # rack
    found_cluster_id = reader.text()
    if found_cluster_id != cluster_id:
        return f"the broker that answers belongs to cluster {found_cluster_id!r}, not {cluster_id!r}"
    controller_id = reader.number("i")
    if broker_count == 0 or controller_id < 0:
        return "the broker is not registered with its controller yet"
    for _ in range(reader.number("i")):
        reader.number("h")
        topic = reader.text()
        reader.number("b")
        for _ in range(reader.number("i")):
            reader.number("h")
            partition, leader = reader.number("i"), reader.number("i")
            reader.skip_numbers()  # replicas
            reader.skip_numbers()  # in-sync replicas
            if leader < 0:
                return f"{topic}-{partition} has no leader yet"
    return None
