"""The sequencer over real sockets."""

from __future__ import annotations

import json
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from airflow_provider_exactlyonce.streaming.sequencer import server as sequencer_server
from airflow_provider_exactlyonce.streaming.sequencer.client import Address, SequencerClient, first_in_round
from airflow_provider_exactlyonce.streaming.sequencer.core import AttemptFailedError
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.sequencer.server import SequencerServer
from airflow_provider_exactlyonce.streaming.settings import SequencerEndpoint
from tests.waiting import HANG_SECONDS

A = ("t", 0)
LOOPBACK = SequencerEndpoint(host="127.0.0.1", bind_address="127.0.0.1")


@contextmanager
def serving(
    on_failure: Callable[[], None] = lambda: None,
    *,
    grant_timeout_seconds: float = HANG_SECONDS,
    attempt_timeout_seconds: float = HANG_SECONDS,
) -> Iterator[SequencerServer]:
    with (
        SequencerListener(LOOPBACK) as listener,
        SequencerServer(
            listener,
            grant_timeout_seconds=grant_timeout_seconds,
            attempt_timeout_seconds=attempt_timeout_seconds,
            on_failure=on_failure,
        ) as server,
    ):
        yield server


def test_many_tasks_with_random_delays_write_many_partitions_without_deadlock() -> None:
    tasks, partitions, chance = 50, 40, random.Random(7)
    offsets = [0] * partitions
    yields = [[chance.randrange(50) for _ in range(6)] for _ in range(tasks)]
    offers = [[chance.sample(range(partitions), chance.randint(1, 5)) for _ in range(6)] for _ in range(tasks)]
    together: list[int] = []
    errors: list[BaseException] = []

    def work(server: SequencerServer, task: int) -> None:
        try:
            with SequencerClient(server.address, task, 0) as client:
                for times, offered in zip(yields[task], offers[task], strict=True):
                    turns = client.ask("t", offered, most=2)
                    together.append(len(turns))
                    for _ in range(times):
                        os.sched_yield()
                    for partition, sequence, add in turns:
                        assert partition in offered
                        assert (sequence, add) == (offsets[partition], offsets[partition] == 0)
                        first, offsets[partition] = offsets[partition], offsets[partition] + 3
                        client.release(("t", partition), 3, first, more=partition != turns[-1].partition)
                client.done()
        except BaseException as error:
            errors.append(error)

    with serving() as server:
        threads = [threading.Thread(target=work, args=(server, task)) for task in range(tasks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        written = server.result(tasks)
    rows = {partition: granted.rows for (_, partition), granted in written.items()}
    assert rows == {partition: count for partition, count in enumerate(offsets) if count}
    assert set(together) == {1, 2}


@pytest.mark.parametrize(
    "hello", [b'{"secret": "wrong", "task": 0, "attempt": 0}\n', b"\x00" * 70_000 + b"\n", b"[1]\n", b"{}\n"]
)
def test_a_peer_without_the_secret_is_refused_and_harms_nothing(hello: bytes) -> None:
    with serving() as server:
        stranger = socket.create_connection((server.address.host, server.address.port))
        with stranger:
            stranger.settimeout(HANG_SECONDS)
            try:
                stranger.sendall(hello)
                answer = stranger.recv(1)
            except ConnectionError:
                answer = b""
            assert answer == b""
        with SequencerClient(server.address, 0, 0) as client:
            client.done()
        assert server.result(1) == {}


def test_a_task_that_dies_with_a_grant_fails_the_attempt_and_the_others_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sequencer_server, "_GRACE_SECONDS", 0.1)
    cancelled = threading.Event()
    with serving(cancelled.set) as server:
        dying, waiting = SequencerClient(server.address, 0, 0), SequencerClient(server.address, 1, 0)
        dying.ask("t", [0])
        dying._socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(AttemptFailedError, match="connection of task 0 ended"):
            waiting.ask("t", [0])
        assert cancelled.wait(HANG_SECONDS)
        with pytest.raises(AttemptFailedError, match="connection of task 0 ended"):
            server.result(2)
        waiting.close()
        dying.close()


def test_a_grant_that_is_held_too_long_fails_the_attempt() -> None:
    failed = threading.Event()
    with serving(failed.set, grant_timeout_seconds=0.2) as server, SequencerClient(server.address, 0, 0) as client:
        client.ask("t", [0])
        assert failed.wait(HANG_SECONDS)
        assert "held the grant of t-0" in str(server.failure)
        assert not server.timed_out


@pytest.mark.parametrize("writes", [True, False])
def test_an_attempt_that_its_limit_has_ended_says_so(*, writes: bool) -> None:
    failed = threading.Event()
    with serving(failed.set, attempt_timeout_seconds=0.2) as server, SequencerClient(server.address, 0, 0) as client:
        if writes:
            client.ask("t", [0])
        assert failed.wait(HANG_SECONDS)
        assert "transaction_timeout_seconds" in str(server.failure)
        assert server.timed_out


def test_a_failing_task_says_why_before_it_goes() -> None:
    failed = threading.Event()
    with serving(failed.set) as server:
        with pytest.raises(ValueError, match="too large"), SequencerClient(server.address, 0, 0):
            raise ValueError("too large")
        assert failed.wait(HANG_SECONDS)
        assert server.failure == "ValueError: too large"


def test_the_end_of_the_attempt_frees_a_task_that_waits() -> None:
    with serving() as server:
        first, second = SequencerClient(server.address, 0, 0), SequencerClient(server.address, 1, 0)
        first.ask("t", [0])
        errors: list[str] = []

        def wait() -> None:
            with pytest.raises(AttemptFailedError) as caught:
                second.ask("t", [0])
            errors.append(str(caught.value))

        thread = threading.Thread(target=wait)
        thread.start()
    thread.join()
    assert errors
    first.close()
    second.close()


def test_an_unreachable_sequencer_is_a_clear_error() -> None:
    with pytest.raises(AttemptFailedError, match=r"127\.0\.0\.1:1 can't be reached.*sequencer\.host.*sequencer\.port"):
        SequencerClient(Address(host="127.0.0.1", port=1, secret="s"), 0, 0)


def test_the_secret_is_in_no_message_to_a_task() -> None:
    with serving() as server, socket.create_connection((server.address.host, server.address.port)) as peer:
        peer.sendall(json.dumps({"secret": server.address.secret, "task": 0, "attempt": 1}).encode() + b"\n")
        peer.settimeout(HANG_SECONDS)
        assert server.address.secret.encode() not in peer.recv(10_000)


@pytest.mark.parametrize(("tasks", "partitions"), [(2, 32), (8, 32), (16, 64), (21, 200)])
def test_tasks_begin_their_rounds_at_a_distance_from_each_other(tasks: int, partitions: int) -> None:
    begun = sorted(first_in_round(task, partitions) for task in range(tasks))
    gaps = [after - before for before, after in zip(begun, [*begun[1:], begun[0] + partitions], strict=True)]
    assert min(gaps) >= partitions // tasks // 2
