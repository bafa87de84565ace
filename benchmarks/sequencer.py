"""Measure what share of a batch's time goes to its tasks' taking turns.

Simulates a batch whose every task sends one body to every partition, as a keyed batch does, with the real server and
the real client over real sockets; only a body's send is a pause. The same pauses without a sequencer are what the batch
would take if nobody had to take turns; the difference is the sequencer's: waiting for grants, and messages.

    python benchmarks/sequencer.py --tasks 200 --partitions 200 --send-milliseconds 25
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import threading
import time
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection

from airflow_provider_exactlyonce.streaming.sequencer import TopicPartition
from airflow_provider_exactlyonce.streaming.sequencer_client import Address, SequencerClient, first_place
from airflow_provider_exactlyonce.streaming.sequencer_listener import SequencerListener
from airflow_provider_exactlyonce.streaming.sequencer_server import SequencerServer
from airflow_provider_exactlyonce.streaming.settings import SequencerEndpoint
from airflow_provider_exactlyonce.streaming.sinks.kafka_writer import CANDIDATES

ROWS = 5  # of a body; nothing depends on it


@dataclass(frozen=True, kw_only=True)
class Load:
    """One batch; the pauses come from the seed, so that every way of running it has the same."""

    tasks: int
    partitions: int
    bodies: int
    send_seconds: float
    spread: float
    seed: int

    def pauses(self, task: int) -> list[tuple[int, float]]:
        """Return a task's bodies in the order in which the sink sends them: (partition, seconds)."""
        chance = random.Random(self.seed * 100_003 + task)
        first = first_place(task, self.partitions)
        places = [(first + at) % self.partitions for at in range(self.bodies)]
        return [
            (place, self.send_seconds * chance.lognormvariate(-(self.spread**2) / 2, self.spread)) for place in places
        ]


def run_task(load: Load, task: int, address: Address | None, waits: list[float]) -> None:
    if address is None:
        for _, seconds in load.pauses(task):
            time.sleep(seconds)
        return
    with SequencerClient(address, task, 0) as sequencer:
        unsent = dict(load.pauses(task))
        while unsent:
            asked = time.perf_counter()
            partition, sequence, _ = sequencer.ask_any("t", list(islice(unsent, CANDIDATES)))
            waits.append(time.perf_counter() - asked)
            time.sleep(unsent.pop(partition))
            sequencer.release(TopicPartition("t", partition), ROWS, sequence)
        sequencer.done()


def run_tasks(load: Load, tasks: range, pipe: Connection) -> None:
    """One process; runs its tasks as threads each time that it is told an address, None for no sequencer."""
    pipe.send("ready")
    while (order := pipe.recv()) != "end":
        waits: list[float] = []
        threads = [threading.Thread(target=run_task, args=(load, task, order, waits)) for task in tasks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pipe.send(waits)


def run_batch(pipes: list[Connection], address: Address | None) -> tuple[float, list[float]]:
    """Return the batch's seconds and how long each grant was waited for."""
    began = time.perf_counter()
    for pipe in pipes:
        pipe.send(address)
    waits = [wait for pipe in pipes for wait in pipe.recv()]
    return time.perf_counter() - began, waits


def measure(load: Load, pipes: list[Connection]) -> dict[str, float]:
    free, _ = run_batch(pipes, None)
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
        turns, waits = run_batch(pipes, server.address)
        cpu = time.process_time() - cpu
        written = server.result(load.tasks)
    assert sum(of.rows for of in written.values()) == load.tasks * load.bodies * ROWS, "not every body was written"
    waits.sort()
    return {
        "batch_without_turns_seconds": free,
        "batch_seconds": turns,
        "share": 1 - free / turns,
        "wait_median_milliseconds": 1000 * waits[len(waits) // 2],
        "wait_p99_milliseconds": 1000 * waits[len(waits) * 99 // 100],
        "server_cpu_microseconds_per_body": 1e6 * cpu / len(waits),
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--bodies", type=int, help="of a task (default: one to every partition)")
    parser.add_argument("--send-milliseconds", type=float, default=25.0, help="mean time of one body's send")
    parser.add_argument("--spread", type=float, default=0.3, help="sigma of the log-normal distribution of that time")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    given = parse_arguments()
    load = Load(
        tasks=given.tasks,
        partitions=given.partitions,
        bodies=given.bodies or given.partitions,
        send_seconds=given.send_milliseconds / 1000,
        spread=given.spread,
        seed=7,
    )
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(given.processes):
        pipe, other = context.Pipe()
        tasks = range(number, load.tasks, given.processes)
        process = context.Process(target=run_tasks, args=(load, tasks, other), daemon=True)
        process.start()
        pipes.append(pipe)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()  # it has started; that is not part of a batch
    results = [measure(load, pipes) for _ in range(given.repeats)]
    for pipe in pipes:
        pipe.send("end")
    for process in processes:
        process.join()
    medians = {name: statistics.median(result[name] for result in results) for name in results[0]}
    if given.json:
        print(json.dumps({"load": vars(given), "medians": medians, "runs": results}))
        return
    bodies = load.tasks * load.bodies
    print(f"{load.tasks} tasks x {load.partitions} partitions, {bodies:,} bodies of {given.send_milliseconds} ms")
    for text, name, scale, unit in (
        ("batch without turns", "batch_without_turns_seconds", 1, "s"),
        ("batch", "batch_seconds", 1, "s"),
        ("share of sequencing", "share", 100, "%"),
        ("wait for a grant, median", "wait_median_milliseconds", 1, "ms"),
        ("wait for a grant, p99", "wait_p99_milliseconds", 1, "ms"),
        ("the server's CPU, a body", "server_cpu_microseconds_per_body", 1, "us"),
    ):
        print(f"  {text:26} {medians[name] * scale:8.2f} {unit}")


if __name__ == "__main__":
    main()
