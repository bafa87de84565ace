"""A TCP proxy in front of a broker that understands Kafka's framing and misbehaves where a test says so.

It reads a request (length, API key, API version, correlation id), records it, lets the first fault that matches act,
and forwards the answer; one request of a connection at a time, so that answers stay in order. Where a broker tells its
address, clients are told the proxy's, so that nothing goes past it.

A fault is a function of the :class:`Exchange`. It returns the answer for the client, or raises :class:`Cut` to close
the client's connection. Whether the broker has seen the request is up to it: :meth:`Exchange.forward`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Self

from airflow_provider_exactlyonce.kafka.wire import Code, Producer

HOST = "127.0.0.1"
_CONNECT_SECONDS = 5.0
_END_TRANSACTION = struct.Struct(">qh?")
_INIT_PRODUCER_ID = struct.Struct(">qh")
_TAGS = 1  # an empty list of tagged fields ends every flexible message


class Api(IntEnum):
    """The requests that tests tell apart."""

    PRODUCE = 0
    METADATA = 3
    FIND_COORDINATOR = 10
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS = 24
    ADD_OFFSETS = 25
    END_TRANSACTION = 26
    COMMIT_OFFSETS = 28
    DESCRIBE_CLUSTER = 60


_TELLS_ADDRESS = {Api.METADATA, Api.FIND_COORDINATOR, Api.DESCRIBE_CLUSTER}


class Cut(Exception):  # noqa: N818 - an order, not an error
    """Close the client's connection without an answer."""


@dataclass(frozen=True)
class Request:
    """One request as it was on the wire, without its length."""

    frame: bytes

    @property
    def api(self) -> int:
        return int.from_bytes(self.frame[:2], "big")

    @property
    def correlation(self) -> bytes:
        return self.frame[4:8]

    @property
    def producer(self) -> Producer:
        """Who sends an InitProducerId (version 5) or an EndTxn (version 4)."""
        layout = _END_TRANSACTION if self.api == Api.END_TRANSACTION else _INIT_PRODUCER_ID
        number, epoch, *_ = layout.unpack_from(self.frame, len(self.frame) - layout.size - _TAGS)
        return Producer(id=number, epoch=epoch)

    @property
    def commits(self) -> bool:
        """Whether it is an EndTxn that commits."""
        return self.api == Api.END_TRANSACTION and self.frame[-1 - _TAGS] == 1


@dataclass
class Exchange:
    """A request that is being dealt with."""

    proxy: Proxy
    request: Request
    upstream: Upstream

    def forward(self) -> bytes:
        """Let the broker execute the request; returns its answer."""
        return self.upstream.ask(self.request)


Fault = Callable[[Exchange], bytes]


def cut_before(exchange: Exchange) -> bytes:
    """The request is lost."""
    raise Cut


def cut_after(exchange: Exchange) -> bytes:
    """The answer is lost."""
    exchange.forward()
    raise Cut


def hold(exchange: Exchange) -> bytes:
    """The request is late: it arrives when the test calls :meth:`Proxy.release`; the client's connection is cut."""
    exchange.proxy.held.append(exchange.request)
    raise Cut


def twice(exchange: Exchange) -> bytes:
    """The request arrives twice."""
    exchange.forward()
    return exchange.forward()


def answered(code: Code, *, executed: bool) -> Fault:
    """The answer, of an EndTxn (version 4) or an InitProducerId (version 5), is an error code of ours.

    :param executed: whether the broker sees the request before that
    """

    def fault(exchange: Exchange) -> bytes:
        if executed:
            exchange.forward()
        no_throttling, error = bytes(4), int(code).to_bytes(2, "big", signed=True)
        body = no_throttling + error
        if exchange.request.api == Api.INIT_PRODUCER_ID:
            body += _INIT_PRODUCER_ID.pack(-1, -1)
        return exchange.request.correlation + b"\0" + body + b"\0"

    return fault


class Upstream:
    """One connection to the broker, made when it is first needed."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._socket: socket.socket | None = None

    def send(self, request: Request) -> None:
        """Send a request; the broker may not have read it yet.

        :raises Cut: when the broker is away
        """
        try:
            if self._socket is None:
                self._socket = socket.create_connection((HOST, self._proxy.broker_port), _CONNECT_SECONDS)
                self._socket.settimeout(None)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._proxy.opened(self._socket)
            send(self._socket, request.frame)
        except OSError as error:
            raise Cut from error

    def ask(self, request: Request) -> bytes:
        """Send a request and return its answer.

        :raises Cut: when the broker is away
        """
        self.send(request)
        try:
            answer = receive(self._socket) if self._socket else None
        except OSError as error:
            raise Cut from error
        if answer is None:
            raise Cut
        return self._proxy.disguise(answer) if request.api in _TELLS_ADDRESS else answer

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


@dataclass
class Rule:
    """Which requests a fault acts on."""

    matches: Callable[[Request], bool]
    fault: Fault
    skip: int
    times: int


@dataclass
class Proxy:
    """A proxy in front of the broker on a port of this machine; a context manager.

    :param away: nothing is answered any more
    """

    broker_port: int
    requests: list[Request] = field(default_factory=list)
    held: list[Request] = field(default_factory=list)
    away: bool = False
    _rules: list[Rule] = field(default_factory=list)
    _sockets: list[socket.socket] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for opened in self._sockets:
                with contextlib.suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)
                opened.close()

    @property
    def config(self) -> dict[str, str]:
        """What a client is configured with."""
        return {"bootstrap.servers": f"{HOST}:{self.port}"}

    def on(
        self,
        api: Api,
        fault: Fault,
        *,
        skip: int = 0,
        times: int = 1,
        where: Callable[[Request], bool] = lambda request: True,
    ) -> None:
        """Let a fault act on the next requests of a kind.

        :param skip: how many go through before
        :param times: on how many it acts
        :param where: which of the kind count
        """
        self._rules.append(Rule(lambda request: request.api == api and where(request), fault, skip, times))

    @property
    def pending(self) -> int:
        """How often faults have still to act: a test that ends with some has not tested what it says."""
        return sum(rule.times for rule in self._rules)

    def release(self) -> list[bytes]:
        """Deliver what was held, in order, from connections of their own; returns the broker's answers."""
        answers = []
        while self.held:
            upstream = Upstream(self)
            answers.append(upstream.ask(self.held.pop(0)))
            upstream.close()
        return answers

    def disguise(self, answer: bytes) -> bytes:
        """Replace the broker's address by ours: the host as it is, then the port."""
        host = HOST.encode()
        return answer.replace(
            host + self.broker_port.to_bytes(4, "big"),
            host + self.port.to_bytes(4, "big"),
        )

    def opened(self, connection: socket.socket) -> None:
        """Note a connection that has to be closed in the end."""
        with self._lock:
            self._sockets.append(connection)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.opened(client)
                threading.Thread(target=self._serve, args=(client,), name="proxy-connection", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        upstream = Upstream(self)
        with contextlib.suppress(OSError, Cut):
            while (frame := receive(client)) is not None:
                request = Request(frame)
                exchange = Exchange(self, request, upstream)
                send(client, self._fault(request)(exchange))
        client.close()
        upstream.close()

    def _fault(self, request: Request) -> Fault:
        with self._lock:
            self.requests.append(request)
            if self.away:
                return cut_before
            for rule in self._rules:
                if rule.times == 0 or not rule.matches(request):
                    continue
                if rule.skip:
                    rule.skip -= 1
                    continue
                rule.times -= 1
                return rule.fault
        return Exchange.forward


def send(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(len(frame).to_bytes(4, "big") + frame)


def receive(connection: socket.socket) -> bytes | None:
    """Read one frame; None at the end of the connection."""
    length = _read(connection, 4)
    return None if length is None else _read(connection, int.from_bytes(length, "big"))


def _read(connection: socket.socket, size: int) -> bytes | None:
    parts = []
    while size:
        part = connection.recv(size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
