"""Gates, all along: each must open, and not before what it waits for can be read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count, cycle

from tests.soak import names
from tests.soak.journal import Journal
from tests.soak.judge import Finding
from tests.soak.readers import AWAY, TableReader, Tell
from tests.soak.world import World

EVERY_SECONDS = 30.0
PATIENCE_SECONDS = 900.0


@dataclass(frozen=True)
class Gate:
    """One gate that waits.

    :param promised: when it opens, all bookings before this one can be read
    """

    run_id: str
    pipeline: str
    promised: int
    triggered: float


class Gates:
    """A thread that starts gates and sees what became of them.

    :param promised: of each pipeline, what a gate that is started now has to wait for
    :param tables: of each pipeline, the reader of its table
    :ivar opened: when each gate was started that has opened, and when it opened
    """

    def __init__(
        self,
        world: World,
        promised: Mapping[str, Callable[[], int]],
        tables: Mapping[str, TableReader],
        journal: Journal,
        tell: Tell,
    ) -> None:
        self.opened: list[tuple[float, float]] = []
        self._world, self._promised, self._tables = world, promised, tables
        self._journal, self._tell = journal, tell
        self._numbers, self._turns = count(1), cycle(names.PIPELINES)
        self._waiting: list[Gate] = []
        self._unread: list[Gate] = []
        self._lock = threading.Lock()
        self._is_over = False

    def start_one(self) -> float:
        """Start a gate; returns when."""
        with self._lock:
            pipeline, number = next(self._turns), next(self._numbers)
        promised = self._promised[pipeline]()
        gate = Gate(f"gate-{number}", pipeline, promised, time.time())
        self._world.trigger("soak-gate", gate.run_id, pipeline=pipeline)
        self._waiting.append(gate)
        return gate.triggered

    def recovered(self, since: float) -> float | None:
        """Return how long after a moment the first gate has opened that was started after it, None for none yet."""
        return min((opened - since for triggered, opened in self.opened if triggered >= since), default=None)

    def run(self, ended: threading.Event) -> None:
        """Start gates, and look at those that wait, until it is over."""
        due = 0.0
        while not ended.wait(1.0):
            if time.monotonic() >= due and not self._is_over:
                due = time.monotonic() + EVERY_SECONDS
                try:
                    self.start_one()
                except OSError as error:
                    self._journal.note("no gate", why=str(error))
            self.look()

    def finish(self) -> None:
        """Start no more, and wait until all have opened, at which the thread looks."""
        self._is_over = True
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (self._waiting or self._unread) and time.monotonic() < deadline:
            time.sleep(0.5)
        self._tell(self._off(gate, "it never opened") for gate in self._waiting)
        self._tell(self._off(gate, "it opened, and its table could not be read") for gate in self._unread)

    def look(self) -> None:
        """See which have opened."""
        for gate in list(self._waiting):
            state = self._world.state(gate.run_id)
            if state == "success":
                self._waiting.remove(gate)
                self.opened.append((gate.triggered, time.time()))
                self._unread.append(gate)
                seconds = round(time.time() - gate.triggered, 2)
                self._journal.note("gate", pipeline=gate.pipeline, promised=gate.promised, seconds=seconds)
            elif state == "failed":
                self._waiting.remove(gate)
                self._tell([self._off(gate, "its task has failed")])
        for gate in list(self._unread):
            try:
                readable = self._tables[gate.pipeline].look()
            except AWAY:  # killed just now: it is looked at again
                continue
            self._unread.remove(gate)
            if readable < gate.promised:
                self._tell([self._off(gate, f"it has opened, and all before {readable} could be read")])

    def _off(self, gate: Gate, what: str) -> Finding:
        return Finding(f"gate of {gate.pipeline}", "gate", 1, f"{gate.run_id}, of all before {gate.promised}: {what}")
