"""The sequencer's TCP face: one JSON object a line, one connection a task, a secret per batch attempt.

::

    task                                                    driver
    {"secret": s, "task": 3, "attempt": 0}                  {}
    {"ask": ["topic", [7, 3, 4]], "most": 2}                {"granted": [[7, 0, true], [4, 100, false]]}
    {"release": ["topic", 7], "rows": 10, "first": 42}
    {"release": ["topic", 4], "rows": 15, "first": 142}
    {"done": true}                                          {}

A task asks for all the partitions that it has records for and gets the first ones that are free, each with its base
sequence and whether to add it to the transaction. It sends its releases together with its next request, which halves
the number of messages.

A task that fails says ``{"failed": "…"}`` first if it can. An answer ``{"error": "…"}`` means that the attempt has
failed; it is given only after a while, so that the task whose failure was the first is also the first that Spark hears
of.

One thread serves all connections, and none of its calls waits for a peer. A peer without the secret is a stranger: it
has little time and little room, there are never many, and nothing it does concerns the attempt. A task that breaks the
protocol fails the attempt.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.streaming.sequencer.client import Address, attempt_secret
from airflow_provider_exactlyonce.streaming.sequencer.connection import (
    Peer,
    ProtocolError,
    Refusals,
    number,
    partitions_of_topic,
    topic_partition,
)
from airflow_provider_exactlyonce.streaming.sequencer.core import AttemptFailedError, Grant, GrantedRange, Sequencer
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener

log = logging.getLogger(__name__)

_STRANGERS_MAXIMUM: Final = 256
_ACCEPTED_AT_ONCE: Final = 32  # then tasks that are served already have their turn
_HANDSHAKE_SECONDS: Final = 10.0
_GRACE_SECONDS: Final = 2.0
_TICK_SECONDS: Final = 0.1


class SequencerServer:
    """Serves one batch attempt; a context manager.

    :param listener: the driver's port; it stays open
    :param grant_timeout_seconds: how long a task may hold a grant
    :param attempt_timeout_seconds: how long it may take from the first task to the first grant, and from there to the
        end; the transaction is open for the second of these
    :param on_failure: called when the attempt has failed and the Spark job has not ended by itself, to cancel it
    :ivar timed_out: the attempt has failed after its time was over
    """

    def __init__(
        self,
        listener: SequencerListener,
        *,
        grant_timeout_seconds: float,
        attempt_timeout_seconds: float,
        on_failure: Callable[[], None],
    ) -> None:
        self.attempt: Final = secrets.token_hex(8)
        secret = attempt_secret(listener.key, self.attempt)
        self.address: Final = Address(host=listener.host, port=listener.port, secret=secret)
        self._listener: Final = listener.socket
        self._deadlines: Final = _Deadlines(grant_timeout_seconds, attempt_timeout_seconds)
        self._on_failure: Final = on_failure
        self._sequencer: Final = Sequencer()
        self._lock: Final = threading.Lock()  # of the sequencer; all else belongs to the thread
        self._strangers: dict[Peer, None] = {}  # in the order in which they came
        self._admitted: set[Peer] = set()  # peers that have shown the secret
        self._tasks: dict[int, Peer] = {}  # which of them is a task's first and only invocation
        self._refusals: Final = Refusals()
        self._failure_due: float | None = None
        self._failure_sent = False
        self._selector: Final = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._closing = False
        self.timed_out = False
        self._thread: Final = threading.Thread(target=self._run, name="sequencer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._fail("the batch attempt has ended")
        self._closing = True
        self._wake.send(b"\0")
        self._thread.join()
        self._wake.close()
        self._woken.close()

    @property
    def failure(self) -> str | None:
        """Why the attempt has failed, None while it has not."""
        return self._sequencer.failure

    def result(self, tasks: int) -> dict[TopicPartition, GrantedRange]:
        """Return the written ranges; see :meth:`Sequencer.result`."""
        with self._lock:
            return self._sequencer.result(tasks)

    def _run(self) -> None:
        try:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._selector.register(self._woken, selectors.EVENT_READ, lambda _: None)
            last_check = time.monotonic()
            while not self._closing:
                for key, events in self._selector.select(_TICK_SECONDS):
                    key.data(events)
                if (now := time.monotonic()) - last_check >= _TICK_SECONDS:
                    last_check = now
                    self._check(now)
        except Exception as error:
            log.exception("the sequencer failed")
            self._fail(f"the sequencer failed: {type(error).__name__}: {error}")
            if not self._closing:
                self._on_failure()
        finally:
            self._refusals.end()
            for peer in (*self._strangers, *self._admitted):
                peer.socket.close()
            self._selector.close()

    def _accept(self, _: int) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the peer has gone already, or this process has no room for another
                self._refusals.note("anywhere", f"{error}")
                self._drop_oldest_stranger("too many files are open in the driver")
                time.sleep(_TICK_SECONDS / 10)
                return
            peer = Peer(connection, str(address[0]))
            self._strangers[peer] = None
            self._selector.register(
                connection, selectors.EVENT_READ, lambda events, peer=peer: self._serve(peer, events)
            )
            self._serve(peer, selectors.EVENT_READ)  # most have shown the secret already
            if len(self._strangers) > _STRANGERS_MAXIMUM:
                self._drop_oldest_stranger("too many connections that say nothing")

    def _drop_oldest_stranger(self, reason: str) -> None:
        oldest = next(iter(self._strangers), None)
        if oldest is not None:
            self._refuse(oldest, reason)

    def _refuse(self, stranger: Peer, reason: str) -> None:
        self._refusals.note(stranger.host, reason)
        self._close(stranger)

    def _close(self, peer: Peer) -> None:
        self._strangers.pop(peer, None)
        self._admitted.discard(peer)
        self._selector.unregister(peer.socket)
        peer.socket.close()

    def _serve(self, peer: Peer, events: int) -> None:
        if peer.socket.fileno() < 0:
            return  # closed by what came just before
        if events & selectors.EVENT_WRITE:
            peer.flush()
            self._await(peer)
        if not events & selectors.EVENT_READ:
            return
        try:
            messages = peer.receive()
            if messages is None:
                self._ended(peer)
                return
            for message in messages:
                if peer not in self._admitted and not self._admit(peer, message):
                    return
                self._handle(peer, message)
        except ProtocolError as error:
            if peer in self._admitted:
                self._fail(f"{peer} broke the sequencer's protocol with {error}")
                self._close(peer)
            else:
                self._refuse(peer, str(error))

    def _admit(self, peer: Peer, hello: Mapping[str, Any]) -> bool:
        if not hmac.compare_digest(str(hello.get("secret")).encode(errors="replace"), self.address.secret.encode()):
            self._refuse(peer, "it does not know the secret of the running batch attempt")
            return False
        del self._strangers[peer]
        self._admitted.add(peer)
        peer.admit()
        peer.task = number(hello, "task")
        return True

    def _ended(self, peer: Peer) -> None:
        if peer in self._admitted:
            with self._lock:
                self._sequencer.closed(peer.task)
            self._close(peer)
        else:
            self._refuse(peer, "it ended before it had shown the secret")

    def _handle(self, peer: Peer, message: Mapping[str, Any]) -> None:
        task = peer.task
        with self._lock:
            try:
                if "ask" in message:
                    topic, partitions = partitions_of_topic(message, "ask")
                    self._grant(self._sequencer.ask(task, topic, partitions, number(message, "most", least=1)))
                elif "release" in message:
                    self._release(task, message)
                elif "done" in message:
                    self._sequencer.done(task)
                    self._send(peer, {})
                elif "failed" in message:
                    self._sequencer.fail(str(message["failed"]))
                elif "secret" in message:
                    self._sequencer.register(task, number(message, "attempt"))
                    self._deadlines.registered()
                    self._tasks[task] = peer
                    self._send(peer, {})
                else:
                    raise ProtocolError("a message that is none of ask, release, done and failed")
            except AttemptFailedError as error:
                if self._failure_sent:
                    self._send(peer, {"error": str(error)})

    def _release(self, task: int, message: Mapping[str, Any]) -> None:
        released = topic_partition(message, "release")
        next_grant = self._sequencer.release(task, released, number(message, "rows"), number(message, "first"))
        self._deadlines.released(released)
        failpoints.reach("during-send")
        if next_grant is not None:
            self._grant([next_grant])

    def _grant(self, grants: Sequence[Grant]) -> None:
        for grant in grants:
            self._deadlines.granted(grant)
        if grants:
            granted = [(grant.partition, grant.sequence, grant.add) for grant in grants]
            self._send(self._tasks[grants[0].task], {"granted": granted})

    def _send(self, peer: Peer, message: Mapping[str, Any]) -> None:
        peer.send(message)
        self._await(peer)

    def _await(self, peer: Peer) -> None:
        if peer.awaited != peer.wanted:
            peer.awaited = peer.wanted
            self._selector.modify(peer.socket, peer.awaited, self._selector.get_key(peer.socket).data)

    def _fail(self, reason: str) -> None:
        with self._lock:
            self._sequencer.fail(reason)

    def _check(self, now: float) -> None:
        for stranger in [peer for peer in self._strangers if now - peer.since > _HANDSHAKE_SECONDS]:
            self._refuse(stranger, f"it has not shown the secret within {_HANDSHAKE_SECONDS:.0f} s")
        with self._lock:
            reason = self._deadlines.grant_missed(now) or self._deadlines.attempt_missed(now)
            if reason is not None and self._sequencer.failure is None:
                self._sequencer.fail(f"{reason}; {self._sequencer.unfinished()}")
            if self._sequencer.failure is None or self._failure_sent:
                return
            if self._failure_due is None:
                self.timed_out = self._deadlines.attempt_missed(now) is not None
                self._failure_due = now + _GRACE_SECONDS
            elif now >= self._failure_due:
                self._send_failure()

    def _send_failure(self) -> None:
        self._failure_sent = True
        for peer in self._admitted:
            self._send(peer, {"error": self._sequencer.failure})
        # It asks the JVM, which may take its time.
        threading.Thread(target=self._on_failure, name="sequencer-failure", daemon=True).start()


class _Deadlines:
    """How long grants and the attempt may last."""

    def __init__(self, grant_timeout_seconds: float, attempt_timeout_seconds: float) -> None:
        self._grant_timeout_seconds: Final = grant_timeout_seconds
        self._attempt_timeout_seconds: Final = attempt_timeout_seconds
        self._held: dict[TopicPartition, tuple[int, float]] = {}
        self._clock_start: float | None = None
        self._writing = False

    def registered(self) -> None:
        if self._clock_start is None:
            self._clock_start = time.monotonic()

    def granted(self, grant: Grant) -> None:
        now = time.monotonic()
        self._held[grant.topic, grant.partition] = grant.task, now
        if not self._writing:  # with the first grant the broker's clock starts
            self._writing, self._clock_start = True, now

    def released(self, partition: TopicPartition) -> None:
        self._held.pop(partition, None)

    def grant_missed(self, now: float) -> str | None:
        for (topic, partition), (task, granted_at) in self._held.items():
            if now - granted_at > self._grant_timeout_seconds:
                limit = f"{self._grant_timeout_seconds:.0f} s"
                return f"task {task} held the grant of {topic}-{partition} for more than {limit}"
        return None

    def attempt_missed(self, now: float) -> str | None:
        if self._clock_start is not None and now - self._clock_start > self._attempt_timeout_seconds:
            start = "the first record" if self._writing else "the first of them began, and have written nothing"
            return (
                f"the tasks have not ended {self._attempt_timeout_seconds:.0f} s after {start}; if they need longer, "
                "raise transaction_timeout_seconds of the KafkaSink, or make the batches smaller"
            )
        return None
