"""Tasks as processes of their own, and strangers, against a real sequencer on a real port."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest

from airflow_provider_exactlyonce.streaming.sequencer import connection
from airflow_provider_exactlyonce.streaming.sequencer import server as sequencer_server
from airflow_provider_exactlyonce.streaming.sequencer.client import SequencerClient
from airflow_provider_exactlyonce.streaming.sequencer.core import AttemptFailedError, Grant
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.sequencer.server import SequencerServer
from airflow_provider_exactlyonce.streaming.settings import SequencerEndpoint
from tests.clocks import AheadClock
from tests.waiting import HANG_SECONDS, eventually

A = ("t", 0)
ENDPOINT = SequencerEndpoint(host="127.0.0.1", bind_address="127.0.0.1")

#: A task as a process: it does one step for each line that it reads, and says when it is done with it.
TASK = """
import sys
from airflow_provider_exactlyonce.streaming.sequencer.core import AttemptFailedError
from airflow_provider_exactlyonce.streaming.sequencer.client import Address, SequencerClient

host, port, secret, task = sys.argv[1:]
client = None
print("started", flush=True)
for line in sys.stdin:
    step, *arguments = line.split()
    try:
        if step == "register":
            client = SequencerClient(Address(host=host, port=int(port), secret=secret), int(task), 0)
        elif step == "ask":
            ((_, sequence, _),) = client.ask("t", [int(arguments[0])])
        elif step == "release":
            client.release(("t", int(arguments[0])), 1, sequence)
        elif step == "done":
            client.done()
        print(step, flush=True)
    except AttemptFailedError as error:
        print("failed:", error, flush=True)
"""


@dataclass
class Attempt:
    """A running sequencer, and what became of its attempt."""

    server: SequencerServer
    cancelled: threading.Event
    stack: ExitStack
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def task(self, number: int) -> subprocess.Popen[str]:
        address = self.server.address
        process = subprocess.Popen(
            [sys.executable, "-c", TASK, address.host, str(address.port), address.secret, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.stack.callback(end, process)
        assert read(process) == "started"
        return process

    def fails(self, reason: str) -> None:
        eventually(lambda: self.server.failure, "the attempt fails")
        assert reason in str(self.server.failure)
        assert self.cancelled.wait(HANG_SECONDS), "the Spark job is not cancelled"


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], *steps: str) -> None:
    assert process.stdin is not None
    process.stdin.write("".join(f"{step}\n" for step in steps))


def do(process: subprocess.Popen[str], *steps: str) -> None:
    """Let a task do steps that must succeed."""
    for step in steps:
        tell(process, step)
        assert read(process) == step.split()[0]


@contextmanager
def attempt_of(*, grant_timeout_seconds: float = 1000, attempt_timeout_seconds: float = 5000) -> Iterator[Attempt]:
    cancelled = threading.Event()
    with (
        SequencerListener(ENDPOINT) as listener,
        SequencerServer(
            listener,
            grant_timeout_seconds=grant_timeout_seconds,
            attempt_timeout_seconds=attempt_timeout_seconds,
            on_failure=cancelled.set,
        ) as server,
        ExitStack() as stack,
    ):
        yield Attempt(server, cancelled, stack)


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequencer_server, "_GRACE_SECONDS", 0.2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> AheadClock:
    """Give the sequencer's clock."""
    clock = AheadClock()
    monkeypatch.setattr(sequencer_server, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("before", "waits"),
    [(["register"], False), (["register", "ask 0"], False), (["register"], True)],
    ids=["registered", "with a grant", "waiting for one"],
)
def test_a_task_that_is_killed_before_its_done_fails_the_attempt_and_wakes_the_others(
    before: list[str], waits: bool
) -> None:
    with attempt_of() as attempt:
        holder, victim, waiting = attempt.task(1), attempt.task(0), attempt.task(2)
        do(holder, "register", "ask 1")
        do(victim, *before)
        do(waiting, "register")
        tell(waiting, "ask 1")
        if waits:
            tell(victim, "ask 1")
            time.sleep(0.2)
        victim.kill()
        attempt.fails("the connection of task 0 ended before the task was done")
        assert "failed: the connection of task 0 ended" in read(waiting)
        tell(holder, "release 1", "ask 1")
        assert read(holder) == "release"
        assert read(holder).startswith("failed:"), "a grant was given after the failure"


def test_a_task_that_is_killed_before_it_registers_or_after_its_done_harms_nothing() -> None:
    with attempt_of() as attempt:
        unborn, finished, other = attempt.task(0), attempt.task(1), attempt.task(2)
        unborn.kill()
        do(finished, "register", "ask 0", "release 0", "done")
        finished.kill()
        finished.wait(HANG_SECONDS)
        do(other, "register", "ask 0", "release 0", "done")
        assert attempt.server.failure is None
        assert {partition: written.rows for partition, written in attempt.server.result(2).items()} == {A: 2}


def test_a_task_that_is_frozen_with_a_grant_fails_the_attempt_at_the_grant_timeout(clock: AheadClock) -> None:
    with attempt_of() as attempt:
        frozen, waiting = attempt.task(0), attempt.task(1)
        do(frozen, "register", "ask 0")
        do(waiting, "register")
        frozen.send_signal(signal.SIGSTOP)
        tell(waiting, "ask 0")
        clock.ahead += 1001
        attempt.fails("task 0 held the grant of t-0 for more than 1000 s")
        assert "failed: task 0 held" in read(waiting)


@pytest.mark.parametrize("wrote", [True, False], ids=["after others wrote", "before anybody wrote"])
def test_a_task_that_is_frozen_without_a_grant_ends_the_attempt_before_its_transaction_would(
    clock: AheadClock, wrote: bool
) -> None:
    with attempt_of() as attempt:
        frozen, other = attempt.task(0), attempt.task(1)
        do(frozen, "register")
        frozen.send_signal(signal.SIGSTOP)
        if wrote:
            do(other, "register", "ask 0", "release 0", "done")
        clock.ahead += 5001
        attempt.fails("not done are: 0")
        assert "transaction_timeout_seconds" in str(attempt.server.failure)


def test_a_task_that_is_frozen_before_it_registers_ends_the_attempt_when_the_others_have_waited_long_enough(
    clock: AheadClock,
) -> None:
    with attempt_of() as attempt:
        frozen, other = attempt.task(0), attempt.task(1)
        frozen.send_signal(signal.SIGSTOP)
        do(other, "register", "ask 0", "release 0", "done")
        clock.ahead += 5001
        attempt.fails("the 1 tasks that have begun, not done are: none")
        tell(frozen, "register")
        frozen.send_signal(signal.SIGCONT)
        assert read(frozen).startswith("failed:"), "it may not write any more"


def test_a_task_that_is_frozen_after_its_done_harms_nothing(clock: AheadClock) -> None:
    with attempt_of() as attempt:
        frozen, other = attempt.task(0), attempt.task(1)
        do(frozen, "register", "ask 0", "release 0", "done")
        frozen.send_signal(signal.SIGSTOP)
        do(other, "register", "ask 0", "release 0", "done")
        clock.ahead += 1001
        time.sleep(3 * sequencer_server._TICK_SECONDS)  # it looks at its deadlines meanwhile, or the test proves less
        assert attempt.server.result(2)[A].rows == 2


def test_fifty_tasks_share_forty_partitions_in_the_order_in_which_they_asked() -> None:
    """Independent of the server's books: each holder enters itself at its partition, and must be alone there."""
    tasks, partitions, rounds, chance = 50, 40, 12, random.Random(11)
    work = [[(chance.randrange(partitions), chance.random() / 100) for _ in range(rounds)] for _ in range(tasks)]
    holders: list[int | None] = [None] * partitions
    ends = [0] * partitions
    errors: list[BaseException] = []

    def run(attempt: Attempt, task: int) -> None:
        try:
            with SequencerClient(attempt.server.address, task, 0) as client:
                for partition, delay in work[task]:
                    ((_, sequence, add),) = client.ask("t", [partition])
                    assert holders[partition] is None, "two grants for one partition"
                    assert (sequence, add) == (ends[partition], ends[partition] == 0)
                    holders[partition] = task
                    time.sleep(delay)
                    holders[partition] = None
                    ends[partition] += 3
                    client.release(("t", partition), 3, sequence)
                client.done()
        except BaseException as error:
            errors.append(error)

    with attempt_of() as attempt:
        asked, granted = orders(attempt.server)
        threads = [threading.Thread(target=run, args=(attempt, task)) for task in range(tasks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        written = attempt.server.result(tasks)
    assert {partition: rows.rows for (_, partition), rows in written.items()} == {p: n for p, n in enumerate(ends) if n}
    assert sum(map(len, asked.values())) == tasks * rounds
    assert asked == granted


def orders(server: SequencerServer) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return what is being filled: by partition, who asks for it and who gets it, in the server's order."""
    asked: dict[int, list[int]] = defaultdict(list)
    granted: dict[int, list[int]] = defaultdict(list)
    ask, grant = server._sequencer.ask, server._grant

    def noted_ask(task: int, topic: str, partitions: Sequence[int], most: int = 1) -> list[Grant]:
        asked[partitions[0]].append(task)
        return ask(task, topic, partitions, most)

    def noted_grant(grants: Sequence[Grant]) -> None:
        for new_grant in grants:
            granted[new_grant.partition].append(new_grant.task)
        grant(grants)

    server._sequencer.ask, server._grant = noted_ask, noted_grant  # type: ignore[method-assign]
    return asked, granted


NESTED = b"[" * 60_000


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2 + b"\n",  # a TLS hello
        b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n",
        b"x" * 100_000,
        b'{"secret": "' + b"y" * 70_000 + b'"}\n',
        NESTED[:900] + b"\n",
        b'{"secret": "wrong", "task": 0, "attempt": 0}\n',
        b'{"secret": "\xc3\xa9", "task": 0, "attempt": 0}\n',
        b'{"secret": null}\n',
        b'{"secret": {"a": 1}}\n',
        b'{"ask": ["t", [0]], "most": 1}\n',
        b'{"failed": "I say so"}\n',
        b'"text"\n',
        b"\xff\xfe\n",
        b"\n",
        b"1e999\n",
    ],
    ids=lambda data: repr(data[:24]),
)
def test_a_stranger_is_refused_logged_and_harms_nothing(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with attempt_of() as attempt, SequencerClient(attempt.server.address, 0, 0) as task:
        with socket.create_connection(
            (attempt.server.address.host, attempt.server.address.port), HANG_SECONDS
        ) as stranger:
            assert hears_the_end(stranger, data), "it is still connected"
        assert task.ask("t", [0]) == [(0, 0, True)]
        task.release(A, 1, 0)
        task.done()
        assert attempt.server.result(1)[A].rows == 1
    assert "sequencer: refused a connection from 127.0.0.1" in caplog.text


def hears_the_end(stranger: socket.socket, data: bytes) -> bool:
    try:
        stranger.sendall(data)
        return stranger.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    "message",
    [
        b'{"ask": "t-0"}',
        b'{"ask": ["t", 0], "most": 1}',
        b'{"ask": ["t", []], "most": 1}',
        b'{"ask": ["t", ["0"]], "most": 1}',
        b'{"ask": ["t", [0, -1]], "most": 1}',
        b'{"ask": ["t", [0, true]], "most": 1}',
        b'{"ask": [1, [0]], "most": 1}',
        b'{"ask": ["t", [0]]}',
        b'{"ask": ["t", [0]], "most": 0}',
        b'{"ask": ["t", [0]], "most": true}',
        b'{"release": ["t", "0"], "rows": 1, "first": 0}',
        b'{"release": ["t", 0], "rows": "many", "first": 0}',
        b'{"release": ["t", 0], "rows": 1}',
        b'{"release": ["t", 0], "rows": 1e400, "first": 0}',
        b'{"hello": 1}',
        b"{}",
        b"[]",
        b"no json",
        NESTED,
        b"z" * 70_000,
    ],
    ids=lambda message: repr(message[:40]),
)
def test_a_task_that_breaks_the_protocol_fails_the_attempt_by_name(message: bytes) -> None:
    with (
        attempt_of() as attempt,
        socket.create_connection((ENDPOINT.host, attempt.server.address.port), HANG_SECONDS) as task,
    ):
        task.sendall(json.dumps({"secret": attempt.server.address.secret, "task": 7, "attempt": 0}).encode() + b"\n")
        assert task.recv(10) == b"{}\n"
        task.sendall(message + b"\n")
        attempt.fails("task 7 on 127.0.0.1 broke the sequencer's protocol with a")


@pytest.mark.parametrize("hello", [{"task": "3", "attempt": 0}, {"task": 3}, {"task": -1, "attempt": 0}, {}])
def test_a_peer_that_knows_the_secret_and_not_the_protocol_fails_the_attempt(hello: dict[str, object]) -> None:
    with (
        attempt_of() as attempt,
        socket.create_connection((ENDPOINT.host, attempt.server.address.port), HANG_SECONDS) as peer,
    ):
        peer.sendall(json.dumps({"secret": attempt.server.address.secret, **hello}).encode() + b"\n")
        attempt.fails("on 127.0.0.1 broke the sequencer's protocol")


def test_a_line_that_comes_byte_by_byte_is_read_when_it_is_whole() -> None:
    with (
        attempt_of() as attempt,
        socket.create_connection((ENDPOINT.host, attempt.server.address.port), HANG_SECONDS) as task,
    ):
        hello = json.dumps({"secret": attempt.server.address.secret, "task": 0, "attempt": 0}).encode() + b"\n"
        for byte in hello:
            task.sendall(bytes([byte]))
            time.sleep(0.002)
        assert task.recv(10) == b"{}\n"


def test_who_says_its_secret_too_slowly_is_dropped(monkeypatch: pytest.MonkeyPatch, clock: AheadClock) -> None:
    monkeypatch.setattr(sequencer_server, "_HANDSHAKE_SECONDS", HANG_SECONDS)
    with (
        attempt_of() as attempt,
        socket.create_connection((ENDPOINT.host, attempt.server.address.port), HANG_SECONDS) as slow,
    ):
        slow.sendall(b"{")
        clock.ahead += HANG_SECONDS
        with pytest.raises(ConnectionError):  # noqa: PT012 - which of the bytes meets the closed door is open
            while True:
                slow.sendall(b"{")
                time.sleep(0.01)
        assert attempt.server.failure is None


def test_hundreds_of_silent_connections_and_a_storm_of_short_ones_do_not_keep_tasks_from_being_served(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_REFUSALS_PAUSE_SECONDS", HANG_SECONDS)
    tasks, ended, errors = 20, threading.Event(), []
    address: tuple[str, int]

    def storm() -> None:
        while not ended.is_set():
            try:
                with socket.create_connection(address, HANG_SECONDS) as stranger:
                    stranger.sendall(os.urandom(64))
            except OSError:
                time.sleep(0.01)

    def run(attempt: Attempt, task: int) -> None:
        try:
            with SequencerClient(attempt.server.address, task, 0) as client:
                for partition in range(10):
                    ((_, sequence, _),) = client.ask("t", [partition])
                    client.release(("t", partition), 1, sequence)
                client.done()
        except BaseException as error:
            errors.append(error)

    with attempt_of() as attempt, ExitStack() as stack:
        address = attempt.server.address.host, attempt.server.address.port
        before = threading.active_count()
        for _ in range(400):
            stack.enter_context(socket.create_connection(address, HANG_SECONDS))
        storms = [threading.Thread(target=storm) for _ in range(4)]
        threads = storms + [threading.Thread(target=run, args=(attempt, task)) for task in range(tasks)]
        for thread in threads:
            thread.start()
        for thread in threads[len(storms) :]:
            thread.join()
        ended.set()
        for thread in storms:
            thread.join()
        assert not errors
        assert sum(written.rows for written in attempt.server.result(tasks).values()) == tasks * 10
        assert threading.active_count() <= before, "the server has made threads"
    lines = [record for record in caplog.records if record.name == connection.__name__]
    assert 0 < len(lines) <= 2, "the log is silent, or grows with the flood"


def test_a_fixed_port_serves_one_attempt_after_another_at_once() -> None:
    with SequencerListener(ENDPOINT) as any_port:
        port = any_port.port
    fixed = SequencerEndpoint(host="127.0.0.1", bind_address="127.0.0.1", port=port)
    secrets = set()
    for _ in range(2):  # the second driver follows the first while connections of that one are not forgotten yet
        with SequencerListener(fixed) as listener:
            for _ in range(3):
                server = SequencerServer(
                    listener,
                    grant_timeout_seconds=HANG_SECONDS,
                    attempt_timeout_seconds=HANG_SECONDS,
                    on_failure=lambda: None,
                )
                with server, SequencerClient(server.address, 0, 0) as client:
                    client.done()
                    assert server.result(1) == {}
                secrets.add(server.address.secret)
    assert len(secrets) == 6


def test_a_straggler_of_an_earlier_attempt_is_a_stranger_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_exactlyonce.streaming.sequencer import client as sequencer_client

    monkeypatch.setattr(sequencer_client, "_CONNECT_SECONDS", 0.5)
    limits = {"grant_timeout_seconds": HANG_SECONDS, "attempt_timeout_seconds": HANG_SECONDS}
    with SequencerListener(ENDPOINT) as listener:
        with SequencerServer(listener, on_failure=lambda: None, **limits) as first:
            old = first.address
        with SequencerServer(listener, on_failure=lambda: None, **limits) as second:
            with pytest.raises(AttemptFailedError, match="closes every connection"):
                SequencerClient(old, 0, 0)
            assert second.failure is None


def test_refusals_are_logged_once_in_a_while_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    refusals = connection.Refusals()
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            refusals.note("192.0.2.1", "it does not know the secret")
        refusals.end()
    assert [record.getMessage() for record in caplog.records] == [
        "sequencer: refused a connection from 192.0.2.1: it does not know the secret",
        "sequencer: refused 99 more connections",
    ]
