"""One connection to the sequencer; it accepts lines of JSON, bounded, of the expected shape."""

from __future__ import annotations

import json
import logging
import selectors
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition

log = logging.getLogger(__name__)

LINE_BYTES_MAXIMUM: Final = 65_536
_HELLO_BYTES_MAXIMUM: Final = 1024
_READ_BYTES: Final = 65_536
_decode: Final = json.JSONDecoder().decode  # as json.loads, without its detection of the encoding
_REFUSALS_PAUSE_SECONDS: Final = 10.0


class ProtocolError(Exception):
    """A peer has violated the protocol; the text says how."""


class Peer:
    """A connection that never blocks.

    :param connection: just accepted
    :param host: where it comes from
    """

    def __init__(self, connection: socket.socket, host: str) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket: Final = connection
        self.host: Final = host
        self.since: Final = time.monotonic()
        self.task = -1
        self._line_bytes_maximum = _HELLO_BYTES_MAXIMUM
        self._received = bytearray()
        self._unsent = bytearray()
        self.awaited = selectors.EVENT_READ

    def __repr__(self) -> str:
        return f"task {self.task} on {self.host}" if self.task >= 0 else f"a peer on {self.host}"

    def admit(self) -> None:
        """Read longer lines from now on: it has shown the secret."""
        self._line_bytes_maximum = LINE_BYTES_MAXIMUM

    @property
    def wanted(self) -> int:
        """The events to wait for: input always, readiness for output only while there is something to send."""
        return selectors.EVENT_READ | selectors.EVENT_WRITE if self._unsent else selectors.EVENT_READ

    def receive(self) -> list[dict[str, Any]] | None:
        """Read the available bytes; returns the whole messages, None at the connection's end.

        :raises ProtocolError: when they are no messages
        """
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        *lines, incomplete_line = (bytes(self._received) + data).split(b"\n")
        self._received = bytearray(incomplete_line)
        if max(map(len, [incomplete_line, *lines])) > self._line_bytes_maximum:
            raise ProtocolError(f"a line of more than {self._line_bytes_maximum:,} bytes")
        return [_message(line) for line in lines]

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, or as much of it as the peer takes now; one that has gone is noticed by its read."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send unsent bytes."""
        try:
            del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = _decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a line that is not JSON ({type(error).__name__})") from error
    if not isinstance(message, dict):
        raise ProtocolError("a line that is not a JSON object")
    return message


def number(message: Mapping[str, Any], name: str, least: int = 0) -> int:
    """Return a message's whole number.

    :raises ProtocolError: when it has none of that name, or a smaller one than the least
    """
    value = message.get(name)
    if type(value) is not int or value < least:  # a bool is an int, too
        raise ProtocolError(f"a message whose {name} is not a whole number from {least}")
    return value


def topic_partition(message: Mapping[str, Any], name: str) -> TopicPartition:
    """Return a message's topic-partition.

    :raises ProtocolError: when it has none of that name
    """
    match message.get(name):
        case [topic, partition] if type(topic) is str and type(partition) is int and partition >= 0:
            return topic, partition
    raise ProtocolError(f"a message whose {name} is not a topic and a partition")


def partitions_of_topic(message: Mapping[str, Any], name: str) -> tuple[str, list[int]]:
    """Return a message's topic and its partitions.

    :raises ProtocolError: when it has none of that name
    """
    match message.get(name):
        case [str(topic), [*partitions]] if set(map(type, partitions)) == {int} and min(partitions) >= 0:
            return topic, partitions
    raise ProtocolError(f"a message whose {name} is not a topic and its partitions")


class Refusals:
    """Logs refused connections, a line in ten seconds however many there are."""

    def __init__(self) -> None:
        self._next = 0.0
        self._unlogged = 0

    def note(self, host: str, why: str) -> None:
        """Log a refusal, or count it."""
        if time.monotonic() < self._next:
            self._unlogged += 1
            return
        more = f"; {self._unlogged} more were refused since the last of these lines" if self._unlogged else ""
        log.warning("sequencer: refused a connection from %s: %s%s", host, why, more)
        self._unlogged = 0
        self._next = time.monotonic() + _REFUSALS_PAUSE_SECONDS

    def end(self) -> None:
        """Log how many were only counted."""
        if self._unlogged:
            log.warning("sequencer: refused %d more connections", self._unlogged)
