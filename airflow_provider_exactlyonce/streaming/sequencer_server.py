"""The sequencer's TCP face: one JSON object a line, one connection a task, a secret per batch attempt.

::

    task                                                    driver
    {"secret": s, "task": 3, "attempt": 0}                  {}
    {"ask": ["topic", 7]}                                   {"sequence": 0, "add": true}   when it is its turn
    {"release": ["topic", 7], "rows": 10, "first": 42}
    {"done": true}                                          {}

A task that fails says ``{"failed": "…"}`` first if it can. An answer ``{"error": "…"}`` means that the attempt has
failed; it is given only after a while, so that the task whose failure was the first is also the first that Spark hears
of.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.streaming.sequencer import (
    AttemptFailedError,
    Grant,
    Sequencer,
    TopicPartition,
    Written,
)

log = logging.getLogger(__name__)

_LINE_BYTES_MAXIMUM: Final = 65_536
_HANDSHAKE_SECONDS: Final = 10.0
_GRACE_SECONDS: Final = 2.0
_SHUTDOWN_POLL_SECONDS: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a task finds its batch attempt's sequencer."""

    host: str
    port: int
    secret: str = field(repr=False)


class SequencerServer:
    """Serves one batch attempt; a context manager.

    :param host: address to listen on, reachable from the executors
    :param grant_timeout_seconds: how long a task may hold a grant
    :param on_failure: called when the attempt has failed and the Spark job has not ended by itself, to cancel it
    """

    def __init__(
        self,
        host: str,
        *,
        grant_timeout_seconds: float,
        on_failure: Callable[[], None],
    ) -> None:
        self._sequencer = Sequencer()
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._tasks: dict[int, _Connection] = {}
        self._teller: threading.Timer | None = None
        self._told = False
        self._held_since: dict[TopicPartition, float] = {}
        self._grant_timeout_seconds = grant_timeout_seconds
        self._on_failure = on_failure
        self._closing = threading.Event()
        server = _Server((host, 0), _Connection)
        server.owner = self
        self._server = server
        self.address: Final = Address(host=host, port=server.server_address[1], secret=secrets.token_hex(16))

    def __enter__(self) -> Self:
        for name, target in (("sequencer", self._serve), ("sequencer-watch", self._watch)):
            threading.Thread(target=target, name=name, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with self._lock:
            self._sequencer.fail("the batch attempt has ended")
            connections = list(self._connections)
            if self._teller is not None:
                self._teller.cancel()
        self._server.shutdown()
        self._server.server_close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.request.shutdown(socket.SHUT_RDWR)

    @property
    def failure(self) -> str | None:
        """Why the attempt has failed, None while it has not."""
        return self._sequencer.failure

    def result(self, tasks: int) -> dict[TopicPartition, Written]:
        """Return what was written; see :meth:`Sequencer.result`."""
        with self._lock:
            return self._sequencer.result(tasks)

    def handle(self, connection: _Connection, message: Mapping[str, Any]) -> None:
        """Pass one message of a task to the sequencer and send what follows from it."""
        with self._lock:
            try:
                self._apply(connection, message)
            except AttemptFailedError as error:
                if self._told:
                    connection.send({"error": str(error)})
                self._failed()

    def closed(self, connection: _Connection) -> None:
        """A task's connection has ended."""
        with self._lock:
            self._connections.discard(connection)
            self._sequencer.closed(connection.task)
            if self._sequencer.failure:
                self._failed()

    def _apply(self, connection: _Connection, message: Mapping[str, Any]) -> None:
        task = connection.task
        if "ask" in message:
            self._send(self._sequencer.ask(task, TopicPartition(*message["ask"])))
        elif "release" in message:
            place = TopicPartition(*message["release"])
            self._held_since.pop(place, None)
            following = self._sequencer.release(task, place, int(message["rows"]), int(message["first"]))
            failpoints.reach("during-send")
            self._send(following)
        elif "done" in message:
            self._sequencer.done(task)
            connection.send({})
        elif "failed" in message:
            self._sequencer.fail(str(message["failed"]))
            self._failed()
        else:
            self._connections.add(connection)
            self._sequencer.register(task, int(message["attempt"]))
            self._tasks[task] = connection
            connection.send({})

    def _send(self, grant: Grant | None) -> None:
        if grant is not None:
            self._held_since[grant.place] = time.monotonic()
            self._tasks[grant.task].send({"sequence": grant.sequence, "add": grant.add})

    def _failed(self) -> None:
        if self._teller is None and not self._closing.is_set():
            self._teller = threading.Timer(_GRACE_SECONDS, self._tell_all)
            self._teller.daemon = True
            self._teller.start()

    def _tell_all(self) -> None:
        with self._lock:
            self._told = True
            for connection in self._connections:
                connection.send({"error": self._sequencer.failure})
        if not self._closing.is_set():
            self._on_failure()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=_SHUTDOWN_POLL_SECONDS)

    def _watch(self) -> None:
        while not self._closing.wait(min(1.0, self._grant_timeout_seconds / 4)):
            with self._lock:
                now = time.monotonic()
                for place, since in self._held_since.items():
                    if now - since > self._grant_timeout_seconds and self._sequencer.failure is None:
                        self._sequencer.fail(
                            f"a task held the grant of {place.topic}-{place.partition} for more than "
                            f"{self._grant_timeout_seconds:.0f} s"
                        )
                        self._failed()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128
    owner: SequencerServer


class _Connection(socketserver.StreamRequestHandler):
    """One task's connection. A peer without the secret is dropped and can't harm the attempt."""

    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        self.task = -1
        super().setup()

    def handle(self) -> None:
        owner = self.server.owner
        try:
            self.connection.settimeout(_HANDSHAKE_SECONDS)
            hello = self._receive()
            if hello is None or not hmac.compare_digest(str(hello.get("secret")), owner.address.secret):
                log.warning("sequencer: refused a connection from %s without the secret", self.client_address[0])
                return
            self.connection.settimeout(None)
            self.task = int(hello["task"])
            owner.handle(self, hello)
            while message := self._receive():
                owner.handle(self, message)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("sequencer: connection of task %s from %s ended: %s", self.task, self.client_address[0], error)
        finally:
            if self.task >= 0:
                owner.closed(self)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; a peer that has gone is noticed by its read."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def _receive(self) -> dict[str, Any] | None:
        line = self.rfile.readline(_LINE_BYTES_MAXIMUM)
        if not line:
            return None
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("a message is a JSON object")
        return message


class SequencerClient:
    """A task's side.

    :param address: where the sequencer is
    :param task: the task's partition in the stage
    :param attempt: Spark's attempt number
    :raises AttemptFailedError: when the sequencer can't be reached or refuses
    """

    def __init__(self, address: Address, task: int, attempt: int) -> None:
        try:
            self._socket = socket.create_connection((address.host, address.port), timeout=_HANDSHAKE_SECONDS)
        except OSError as error:
            raise AttemptFailedError(
                f"the sequencer on the driver at {address.host}:{address.port} can't be reached from this executor: "
                f"{error}; let the driver's host accept connections from the executors"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(None)
        self._lines = self._socket.makefile("rb")
        try:
            self._send({"secret": address.secret, "task": task, "attempt": attempt})
            self._answer()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            with contextlib.suppress(AttemptFailedError):
                self._send({"failed": f"{type(error).__name__}: {error}"[: _LINE_BYTES_MAXIMUM // 8]})
        self.close()

    def close(self) -> None:
        """Close the connection; before :meth:`done` this fails the attempt."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # another thread may be reading
        self._lines.close()
        self._socket.close()

    def ask(self, place: TopicPartition) -> tuple[int, bool]:
        """Wait for the turn; returns (base sequence, whether to add the partition to the transaction)."""
        self._send({"ask": place})
        answer = self._answer()
        return answer["sequence"], answer["add"]

    def release(self, place: TopicPartition, rows: int, first_offset: int) -> None:
        """Give the turn back after the records were acknowledged."""
        self._send({"release": place, "rows": rows, "first": first_offset})

    def done(self) -> None:
        """Say that everything is written."""
        self._send({"done": True})
        self._answer()

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise AttemptFailedError(f"the connection to the sequencer ended: {error}") from error

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._lines.readline(_LINE_BYTES_MAXIMUM)
        except OSError as error:
            raise AttemptFailedError(f"the connection to the sequencer ended: {error}") from error
        if not line:
            raise AttemptFailedError("the sequencer has closed the connection: the batch attempt has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise AttemptFailedError(answer["error"])
        return answer
