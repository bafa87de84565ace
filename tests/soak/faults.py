"""Carries out what is planned, and sees that all goes on after it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psutil

from airflow_provider_exactlyonce.control import processes
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.ledger.records import transactional_id
from airflow_provider_exactlyonce.storage.opening import store_of
from tests.processes import command_line
from tests.soak import names
from tests.soak.gates import Gates
from tests.soak.journal import Journal
from tests.soak.judge import Finding
from tests.soak.plan import COORDINATOR, KILLS, LEADER, Event, Kind
from tests.soak.readers import Tell, TopicReader
from tests.soak.world import World
from tests.waiting import eventually

#: Longer than every time-out of Kafka, Spark, Airflow and this package, one after the other.
PATIENCE_SECONDS = 600.0
#: A kill that comes so late is left out: what went before has taken long.
LATE_SECONDS = 120.0
#: A rollback replays all that was committed since the upgrade.
_CHANGE_SECONDS = 1800.0
_LOCK_SECONDS = 60.0
_BEFORE_A_KILL_SECONDS = 6.0
_AIRFLOW = (Kind.TRIGGERER, Kind.SCHEDULER)
_WORKER = "pyspark.daemon", "pyspark.worker"


class Faults:
    """Goes through a plan.

    :param readers: of each pipeline's ledger
    """

    def __init__(
        self, world: World, readers: Mapping[str, TopicReader], gates: Gates, journal: Journal, tell: Tell
    ) -> None:
        self._world, self._readers, self._gates = world, readers, gates
        self._journal, self._tell = journal, tell
        self._second: set[str] = set()  # the pipelines that were upgraded
        self._kill: Mapping[Kind, Callable[[Event], str]] = {
            Kind.DRIVER: self._driver,
            Kind.WORKER: self._worker,
            Kind.BROKER: self._broker,
            Kind.TRIGGERER: self._airflow,
            Kind.SCHEDULER: self._airflow,
            Kind.DATABASE: self._database,
            Kind.STORE: self._store,
        }

    def carry_out(self, event: Event, late_seconds: float) -> None:
        """Do one thing, and wait until all goes on."""
        if event.kind in KILLS and late_seconds > LATE_SECONDS:
            self._journal.note("skipped", **event.facts(), why=f"{late_seconds:.0f} s late")
            return
        since = time.time()
        self._journal.note("event", **event.facts())
        try:
            if event.kind in KILLS:
                facts: dict[str, Any] = {"detail": self._kill[event.kind](event)}
                recovered = self._wait(event, since)
            else:
                facts = self._change(event)
                since = time.time()
                recovered = self._wait(event, since) if facts.get("result") else {}
            if (before := facts.pop("changes", None)) is not None and before == self._readers[event.target].version:
                note = f"event {event.number}: {event.target} still commits with version {before}"
                self._tell([Finding(event.what, "failed", 1, note)])
        except (AssertionError, ExactlyOnceError, OSError, psutil.Error) as error:
            self._tell([Finding(event.what, "failed", 1, f"event {event.number}: {type(error).__name__}: {error}")])
            self._world.heal()
            return
        self._journal.note("done", number=event.number, what=event.what, target=event.target, **facts, **recovered)

    # -- kills -----------------------------------------------------------------------------------------------------

    def _driver(self, event: Event) -> str:
        token = self._living(event.target)
        if not event.is_frozen:
            pids = processes.members(token)
            for pid in pids:
                _send(pid, signal.SIGKILL)
            return f"{len(pids)} processes"
        home = self._world.homes[event.target]
        # Not while it holds the lock of its lease, which a successor on this host wants.
        with store_of(home.path).holding(home.lease, seconds=_LOCK_SECONDS):
            pids = processes.members(token)
            for pid in pids:
                _send(pid, signal.SIGSTOP)
        time.sleep(event.seconds)
        for pid in processes.members(token):
            _send(pid, signal.SIGCONT)
        return f"{len(pids)} processes for {event.seconds} s"

    def _worker(self, event: Event) -> str:
        token = self._living(event.target)
        workers = eventually(lambda: _workers(token), "a Python worker is there", hang_seconds=PATIENCE_SECONDS)
        _send(random.Random(event.number).choice(workers), signal.SIGKILL)
        return f"one of {len(workers)}"

    def _broker(self, event: Event) -> str:
        brokers = self._world.brokers
        node = eventually(lambda: self._node(event), f"there is a {event.target}")
        if event.is_frozen:
            brokers.freeze(node)
            time.sleep(event.seconds)
            brokers.thaw(node)
        else:
            brokers.kill(node)
            time.sleep(event.seconds)
            brokers.start(node)
        brokers.wait_until_whole()
        return f"broker {node} for {event.seconds} s"

    def _node(self, event: Event) -> int | None:
        brokers = self._world.brokers
        if event.target == LEADER:
            node = brokers.leader(names.POSTED_TOPIC, event.number % names.PARTITIONS)
        elif event.target == COORDINATOR:
            node = brokers.coordinator(transactional_id(names.POSTED))
        else:
            node = brokers.controller()
        return node if node > 0 else None

    def _airflow(self, event: Event) -> str:
        self._replace(event.kind.value, event.seconds)
        return f"for {event.seconds} s"

    def _replace(self, part: str, seconds: float) -> None:
        self._world.parts.kill(part)
        time.sleep(seconds)
        self._world.parts.start(part)

    def _database(self, event: Event) -> str:
        server = self._world.postgres
        if event.is_frozen:
            with _stopped(server.processes()):
                time.sleep(event.seconds)
        else:
            server.kill()
            time.sleep(event.seconds)
            server.start()
        return f"for {event.seconds} s"

    def _store(self, event: Event) -> str:
        store, killed = self._world.store, time.monotonic()
        if event.is_frozen:
            assert store.process is not None
            with _stopped([psutil.Process(store.process.pid)]):
                time.sleep(event.seconds)
        else:
            store.kill()
            time.sleep(event.seconds)
            store.start()
        return f"for {time.monotonic() - killed:.1f} s"

    def _living(self, pipeline: str) -> str:
        """Return the token of a pipeline's driver, once there is one that can be killed."""

        def living() -> str | None:
            token = self._world.driver(pipeline)
            return token if token and processes.members(token) else None

        return eventually(living, f"{pipeline} has a driver", poll_seconds=0.5, hang_seconds=PATIENCE_SECONDS)

    # -- savepoints and versions -----------------------------------------------------------------------------------

    def _change(self, event: Event) -> dict[str, Any]:
        """Let Airflow do it, and kill a part of it meanwhile where that is planned."""
        is_second = event.target in self._second
        if event.kind is not Kind.SAVEPOINT and is_second != (event.kind is Kind.ROLLBACK):
            return {"detail": "left out: the version is not in use that it would replace"}
        run_id, began = f"event-{event.number}", time.time()
        dag = "soak-savepoint" if event.kind is Kind.SAVEPOINT else f"{event.target}-{event.kind.value}"
        version = self._readers[event.target].version
        self._world.trigger(dag, run_id, pipeline=event.target)
        if event.during is not None:
            time.sleep(_BEFORE_A_KILL_SECONDS)
            self._replace(event.during.value, event.seconds)
        eventually(
            lambda: self._world.state(run_id) in ("success", "failed"),
            f"DAG run {run_id} of {dag} ends",
            poll_seconds=0.5,
            hang_seconds=_CHANGE_SECONDS,
        )
        state, result = self._world.state(run_id), self._world.pushed(run_id)
        facts = {"result": result.get("outcome") or result.get("savepoint"), "took": round(time.time() - began, 1)}
        if event.kind is Kind.SAVEPOINT:
            facts |= {"commit": result.get("commit"), "size": result.get("size")}
        if state == "failed":
            reason = result.get("reason") or self._world.task_log(run_id)
            self._tell([Finding(event.what, "failed", 1, f"event {event.number}, {event.target}: {reason}")])
            return facts
        if event.kind is not Kind.SAVEPOINT:
            self._second ^= {event.target}
            facts["changes"] = version
        return facts

    # -- what goes on ----------------------------------------------------------------------------------------------

    def _wait(self, event: Event, since: float) -> dict[str, Any]:
        """Wait until both pipelines have committed a batch that began after it; of Airflow's parts, for a gate too."""
        looks: dict[str, Callable[[float], float | None]] = {
            pipeline: reader.recovered for pipeline, reader in self._readers.items()
        }
        if event.kind in _AIRFLOW:
            self._gates.start_one()
            looks["a gate"] = self._gates.recovered
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(look(since) is None for look in looks.values()) and time.monotonic() < deadline:
            time.sleep(0.2)
        found = {name: look(since) for name, look in looks.items()}
        if hanging := [name for name, seconds in found.items() if seconds is None]:
            note = f"event {event.number}: not within {PATIENCE_SECONDS:.0f} s: {', '.join(hanging)}"
            self._tell([Finding(event.what, "hanging", 1, note)])
        seconds = {name: round(value, 2) for name, value in found.items() if value is not None}
        return {"seconds": max(seconds.values(), default=None), "recovered": seconds}


def run(plan: Sequence[Event], faults: Faults, began: float, ended: threading.Event, tick: Callable[[], None]) -> None:
    """Carry out a plan, each event at its time or as soon as what went before is over.

    :param began: by the monotonic clock
    :param tick: called once a second while nothing is due
    """
    for event in plan:
        while (wait := began + event.at - time.monotonic()) > 0 and not ended.is_set():
            tick()
            time.sleep(min(1.0, wait))
        if ended.is_set():
            return
        tick()
        faults.carry_out(event, time.monotonic() - began - event.at)


def _workers(token: str) -> list[int]:
    """Return the Python workers of a driver."""
    commands = {pid: command_line(pid) for pid in processes.members(token)}
    return [
        pid
        for pid, command in commands.items()
        if any(word in command for word in _WORKER) and "java" not in command.partition(" ")[0]
    ]


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@contextlib.contextmanager
def _stopped(found: Sequence[psutil.Process]) -> Iterator[None]:
    try:
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        yield
    finally:
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
