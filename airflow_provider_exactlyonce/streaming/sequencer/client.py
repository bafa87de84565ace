"""A task's side of the sequencer; see :mod:`airflow_provider_exactlyonce.streaming.sequencer.server`."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.polling import poll_until
from airflow_provider_exactlyonce.streaming.sequencer.connection import LINE_BYTES_MAXIMUM
from airflow_provider_exactlyonce.streaming.sequencer.core import AttemptFailedError
from airflow_provider_exactlyonce.streaming.settings import SEQUENCER_BIND_ADDRESS, SEQUENCER_HOST, SEQUENCER_PORT

_CONNECT_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.1
_GOLDEN_RATIO: Final = 0.6180339887498949


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a task finds its batch attempt's sequencer."""

    host: str
    port: int
    secret: str = field(repr=False)


class GrantedPartition(NamedTuple):
    """The right to append to a partition; ``add`` tells to add it to the transaction first, if the task has not."""

    partition: int
    sequence: int
    add: bool


def attempt_secret(key: bytes, attempt: str) -> str:
    """Return the secret with which a batch attempt's tasks register; they know the key and the attempt's name.

    :param key: the listener's
    :param attempt: names the batch attempt, no secret
    """
    return hmac.new(key, attempt.encode(), hashlib.sha256).hexdigest()


def first_in_round(task: int, partitions: int) -> int:
    """Return at which of the partitions a task begins its round.

    Multiples of the golden ratio spread evenly, however many tasks there are: the tasks follow each other at a
    distance, and a slow append does not keep all behind it waiting.

    :param task: the task's partition in the stage
    :param partitions: how many the round has
    """
    return int(task * _GOLDEN_RATIO % 1 * partitions)


class SequencerClient:
    """A task's side.

    :param address: where the sequencer is
    :param task: the task's partition in the stage
    :param attempt: Spark's attempt number
    :raises AttemptFailedError: when the sequencer can't be reached or refuses
    """

    def __init__(self, address: Address, task: int, attempt: int) -> None:
        self._unsent = b""
        hello = {"secret": address.secret, "task": task, "attempt": attempt}
        if not poll_until(
            lambda: self._register(address, hello), seconds=_CONNECT_SECONDS, poll_seconds=_PAUSE_SECONDS
        ):
            raise _unreachable(address, "it closes every connection without an answer")
        self._socket.settimeout(None)

    def _register(self, address: Address, hello: Mapping[str, Any]) -> bool:
        """Connect and register; False when the connection was dropped before it was served, as in a flood of others."""
        try:
            self._socket = socket.create_connection((address.host, address.port), timeout=_CONNECT_SECONDS)
        except OSError as error:
            raise _unreachable(address, error) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(_ANSWER_SECONDS)
        self._lines = self._socket.makefile("rb")
        try:
            self._send(hello)
            self._answer()
        except _ClosedError:
            self.close()
            return False
        except BaseException:
            self.close()
            raise
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            with contextlib.suppress(AttemptFailedError):
                self._send({"failed": f"{type(error).__name__}: {error}"[: LINE_BYTES_MAXIMUM // 8]})
        self.close()

    def close(self) -> None:
        """Close the connection; before :meth:`done` this fails the attempt."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # another thread may be reading
        self._lines.close()
        self._socket.close()

    def ask(self, topic: str, partitions: Sequence[int], most: int = 1) -> list[GrantedPartition]:
        """Wait for a turn in any of a topic's partitions.

        :param partitions: the first of them that are free are granted, the first that gets free if none is
        :param most: how many
        """
        self._send({"ask": (topic, partitions), "most": most})
        return [GrantedPartition(*granted) for granted in self._answer()["granted"]]

    def release(self, released: TopicPartition, rows: int, first_offset: int, *, more: bool = False) -> None:
        """Give a turn back after the records were acknowledged.

        :param more: the caller gives another one back or asks for the next at once, and this one goes along with that
        """
        message = {"release": released, "rows": rows, "first": first_offset}
        if more:
            self._unsent += _line(message)
        else:
            self._send(message)

    def done(self) -> None:
        """Say that everything is written."""
        self._send({"done": True})
        self._answer()

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self._socket.sendall(self._unsent + _line(message))
            self._unsent = b""
        except OSError as error:
            raise _ClosedError(f"the connection to the sequencer ended: {error}") from error

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._lines.readline(LINE_BYTES_MAXIMUM)
        except TimeoutError as error:
            raise AttemptFailedError(f"the sequencer has not answered within {_ANSWER_SECONDS:.0f} s") from error
        except OSError as error:
            raise _ClosedError(f"the connection to the sequencer ended: {error}") from error
        if not line:
            raise _ClosedError("the sequencer has closed the connection: the batch attempt has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise AttemptFailedError(answer["error"])
        return answer


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


class _ClosedError(AttemptFailedError):
    """The connection has ended."""


def _unreachable(address: Address, why: object) -> AttemptFailedError:
    return AttemptFailedError(
        f"the sequencer on the driver at {address.host}:{address.port} can't be reached from this executor: {why}; let "
        f"the driver's host accept connections from the executors, or set {SEQUENCER_HOST} to an address that they "
        f"reach, {SEQUENCER_BIND_ADDRESS} to the one that the driver listens on, and {SEQUENCER_PORT} to an open port"
    )
