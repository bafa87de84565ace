"""Which faults are injected where: the cases of the matrix, in an order that a seed gives."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import product

from airflow_provider_exactlyonce.failpoints import NAMES, SINK_NAMES
from tests.crash_matrix.shapes import SHAPES

#: The steps of a start; the others are those of a batch.
AT_START = ("after-sink-fence", "after-sink-claim", "after-claim")
#: Where a table beside the topic may be left.
POINTS_WITH_TABLE = (*NAMES, *(name for name in SINK_NAMES if name != "after-delivery"))
#: A frozen driver's transactions time out after so long; those of the others outlive every restart.
SHORT_TIMEOUT_SECONDS = 3
LONG_TIMEOUT_SECONDS = 120


class Fault(Enum):
    """What happens at the step."""

    DRIVER = "driver SIGKILL"
    WORKER = "worker SIGKILL"
    BROKER = "broker SIGKILL and restart"
    FREEZE = "SIGSTOP beyond the time-out"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run of the matrix.

    :param index: its place in the order
    :param seed: decides what the case leaves open: how much is sent, which worker dies, when the broker comes back
    """

    index: int
    seed: int
    shape: str
    point: str
    fault: Fault

    def __str__(self) -> str:
        return f"{self.index}: {self.fault.value} at {self.point}, {self.shape}"


@dataclass(kw_only=True)
class Life:
    """One driver's life, from its start to its death.

    :param start: injected while it starts
    :param middle: injected one after the other while it runs
    :param kill: ends it; the last life of a world has none
    """

    timeout_seconds: int = LONG_TIMEOUT_SECONDS
    start: Case | None = None
    middle: list[Case] = field(default_factory=list)
    kill: Case | None = None

    @property
    def cases(self) -> list[Case]:
        """All of them, in order."""
        return [case for case in (self.start, *self.middle, self.kill) if case is not None]


def cases(seed: int, points: Sequence[str] = NAMES) -> Iterator[Case]:
    """Yield cases without end: round after round of the whole matrix, each in another order."""
    index = 0
    cells = list(product(SHAPES, points, Fault))
    while True:
        generator = random.Random(f"{seed}/{index // len(cells)}")
        for shape, point, fault in generator.sample(cells, len(cells)):
            yield Case(index=index, seed=generator.randrange(2**32), shape=shape, point=point, fault=fault)
            index += 1


def worlds(wanted: Sequence[Case], size: int) -> list[list[Case]]:
    """Group cases by shape: a world is one pipeline, which goes through at most so many."""
    by_shape: dict[str, list[Case]] = {}
    for case in wanted:
        by_shape.setdefault(case.shape, []).append(case)
    return [group[start : start + size] for group in by_shape.values() for start in range(0, len(group), size)]


def lives(wanted: Sequence[Case]) -> list[Life]:
    """Spread a world's cases over as few drivers as they need, because a driver's start is what costs."""
    at_start = [case for case in wanted if case.point in AT_START]
    kills = [case for case in wanted if case.fault is Fault.DRIVER and case not in at_start]
    rest = [case for case in wanted if case not in at_start and case not in kills]
    frozen = [case for case in rest if case.fault is Fault.FREEZE]
    others = [case for case in rest if case.fault is not Fault.FREEZE]
    planned = [Life(kill=case) for case in kills] or [Life()]
    if frozen:
        planned[0].timeout_seconds = SHORT_TIMEOUT_SECONDS
        planned[0].middle += frozen
    for number, case in enumerate(others):
        planned[number % len(planned)].middle.append(case)
    if planned[-1].kill is not None:
        planned.append(Life())
    for number, case in enumerate(at_start):
        if case.fault is Fault.DRIVER:
            planned.insert(0, Life(start=case))
            continue
        free = next((life for life in planned if life.start is None), None)
        if free is None:
            free = Life()
            planned.insert(number, free)
        free.start = case
        if case.fault is Fault.FREEZE:
            free.timeout_seconds = SHORT_TIMEOUT_SECONDS
    return planned
