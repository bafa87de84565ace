"""Measure what share of a batch's time goes to its tasks' taking turns.

Simulates a batch whose every task sends one body to every partition, as a keyed batch does, with the real server over
real sockets; only a body's send is a pause. Bodies go one by one, as large ones do. All tasks' ends of the connections
are in one other process, which waits for what comes next of all of them: a thread or process for each would measure
this machine's scheduler. The share is what the batch takes beyond its lower bound: no order of turns can end before
the task with the longest bodies has sent them one after the other, nor before the partition with the longest bodies
has taken them so. In it are waiting for grants, messages, and how late the simulating process is; that is told beside
it.

It wants two idle cores, one for the server and one for the simulation: look at the load in its answer.

    python benchmarks/sequencer.py --tasks 200 --partitions 200 --send-milliseconds 25
"""

from __future__ import annotations

import argparse
import heapq
import json
import multiprocessing
import os
import random
import selectors
import socket
import statistics
import time
from dataclasses import asdict, dataclass, field
from itertools import islice
from multiprocessing.connection import Connection

from airflow_provider_exactlyonce.streaming.commit.write_stage import CANDIDATES
from airflow_provider_exactlyonce.streaming.sequencer.client import Address, first_in_round
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.sequencer.server import SequencerServer
from airflow_provider_exactlyonce.streaming.settings import SequencerEndpoint

ROWS = 5  # of a body; nothing depends on it


@dataclass(frozen=True, kw_only=True)
class Load:
    """One batch; the pauses come from the seed, so that every run has the same."""

    tasks: int
    partitions: int
    send_seconds: float
    spread: float
    seed: int = 7

    def pauses(self, task: int) -> dict[int, float]:
        """Return a task's bodies in the order in which the sink offers them: {partition: seconds}."""
        chance = random.Random(self.seed * 100_003 + task)
        first = first_in_round(task, self.partitions)
        in_turn = [(first + number) % self.partitions for number in range(self.partitions)]
        return {
            partition: self.send_seconds * chance.lognormvariate(-(self.spread**2) / 2, self.spread)
            for partition in in_turn
        }

    def bound_seconds(self) -> float:
        """Return what the batch takes at least."""
        pauses = [self.pauses(task) for task in range(self.tasks)]
        partitions = [sum(task_pauses[partition] for task_pauses in pauses) for partition in range(self.partitions)]
        return max(*(sum(task_pauses.values()) for task_pauses in pauses), *partitions)


@dataclass
class Task:
    """One task's connection: what it still has to send, and what it sends now."""

    socket: socket.socket
    unsent: dict[int, float]
    asked: float = 0.0
    sending: tuple[int, int] | None = None  # (partition, sequence)


@dataclass
class Observed:
    seconds: float = 0.0
    waits: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)


class Batch:
    """All tasks of one batch, served by one loop."""

    def __init__(self, load: Load, address: Address) -> None:
        self.load = load
        self.address = address
        self.observed = Observed()
        self.selector = selectors.DefaultSelector()
        self.due: list[tuple[float, int]] = []  # when a task's body is sent
        self.tasks: list[Task] = []

    def run(self) -> Observed:
        pauses = [self.load.pauses(task) for task in range(self.load.tasks)]
        began = time.perf_counter()
        for number, unsent in enumerate(pauses):
            task = Task(socket.create_connection((self.address.host, self.address.port)), unsent)
            task.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.tasks.append(task)
            self.selector.register(task.socket, selectors.EVENT_READ, number)
            self.say(task, {"secret": self.address.secret, "task": number, "attempt": 0})
        running = len(self.tasks)
        while running:
            timeout = max(0.0, self.due[0][0] - time.perf_counter()) if self.due else None
            running -= sum(self.heard(key.data) for key, _ in self.selector.select(timeout))
            while self.due and self.due[0][0] <= time.perf_counter():
                self.sent(*heapq.heappop(self.due))
        self.observed.seconds = time.perf_counter() - began
        for task in self.tasks:
            task.socket.close()
        self.selector.close()
        return self.observed

    def say(self, task: Task, *messages: dict[str, object]) -> None:
        task.socket.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    def next(self, task: Task) -> dict[str, object]:
        """Return the question for the next turn, or the end."""
        task.asked = time.perf_counter()
        return {"ask": ("t", list(islice(task.unsent, CANDIDATES))), "most": 1} if task.unsent else {"done": True}

    def heard(self, number: int) -> bool:
        """Read an answer, which is one line; tell whether it was the last one."""
        task = self.tasks[number]
        answer = json.loads(task.socket.recv(4096))
        if answer:
            now = time.perf_counter()
            self.observed.waits.append(now - task.asked)
            ((partition, sequence, _),) = answer["granted"]
            task.sending = partition, sequence
            heapq.heappush(self.due, (now + task.unsent.pop(partition), number))
        elif task.unsent:
            self.say(task, self.next(task))
        else:
            self.selector.unregister(task.socket)
            return True
        return False

    def sent(self, due: float, number: int) -> None:
        """A body's pause is over."""
        task = self.tasks[number]
        assert task.sending is not None
        partition, sequence = task.sending
        self.observed.late.append(time.perf_counter() - due)
        self.say(task, {"release": ("t", partition), "rows": ROWS, "first": sequence}, self.next(task))


def run_tasks(load: Load, pipe: Connection) -> None:
    """The process with all tasks; runs a batch each time that it is told an address."""
    pipe.send("ready")
    while (address := pipe.recv()) != "end":
        pipe.send(Batch(load, address).run())


def measure(load: Load, pipe: Connection) -> dict[str, float]:
    failures: list[str] = []
    with (
        SequencerListener(SequencerEndpoint(host="127.0.0.1", bind_address="127.0.0.1")) as listener,
        SequencerServer(
            listener,
            grant_timeout_seconds=150,
            attempt_timeout_seconds=600,
            on_failure=lambda: failures.append("failed"),
        ) as server,
    ):
        cpu = time.process_time()
        pipe.send(server.address)
        observed = pipe.recv()
        cpu = time.process_time() - cpu
        written = server.result(load.tasks)
    bodies = load.tasks * load.partitions
    assert sum(granted_range.rows for granted_range in written.values()) == bodies * ROWS, "not every body was written"
    waits = sorted(observed.waits)
    bound = load.bound_seconds()
    return {
        "bound_seconds": bound,
        "batch_seconds": observed.seconds,
        "share": 1 - bound / observed.seconds,
        "own_share": load.partitions * statistics.fmean(observed.late) / observed.seconds,
        "wait_median_milliseconds": 1000 * waits[len(waits) // 2],
        "wait_p99_milliseconds": 1000 * waits[len(waits) * 99 // 100],
        "server_cpu_microseconds_per_body": 1e6 * cpu / bodies,
        "machine_load": os.getloadavg()[0],
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--send-milliseconds", type=float, default=25.0, help="mean time of one body's send")
    parser.add_argument("--spread", type=float, default=0.3, help="sigma of the log-normal distribution of that time")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    given = parse_arguments()
    load = Load(
        tasks=given.tasks,
        partitions=given.partitions,
        send_seconds=given.send_milliseconds / 1000,
        spread=given.spread,
    )
    context = multiprocessing.get_context("spawn")
    pipe, child_pipe = context.Pipe()
    process = context.Process(target=run_tasks, args=(load, child_pipe), daemon=True)
    process.start()
    child_pipe.close()  # so that its end is noticed
    pipe.recv()  # it has started; that is not part of a batch
    results = [measure(load, pipe) for _ in range(given.repeats)]
    pipe.send("end")
    process.join()
    medians = {name: statistics.median(result[name] for result in results) for name in results[0]}
    if given.json:
        print(json.dumps({"load": asdict(load), "medians": medians, "runs": results}))
        return
    bodies = load.tasks * load.partitions
    print(f"{load.tasks} tasks x {load.partitions} partitions, {bodies:,} bodies of {given.send_milliseconds} ms")
    for text, name, scale, unit in (
        ("lower bound", "bound_seconds", 1, "s"),
        ("batch", "batch_seconds", 1, "s"),
        ("share of sequencing", "share", 100, "%"),
        ("of it, the simulation's own", "own_share", 100, "%"),
        ("wait for a grant, median", "wait_median_milliseconds", 1, "ms"),
        ("wait for a grant, p99", "wait_p99_milliseconds", 1, "ms"),
        ("the server's CPU, a body", "server_cpu_microseconds_per_body", 1, "us"),
        ("load of the machine", "machine_load", 1, ""),
    ):
        print(f"  {text:28} {medians[name] * scale:8.2f} {unit}")


if __name__ == "__main__":
    main()
