"""What happens when: kills, savepoints, upgrades and rollbacks, all from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import count, cycle

from tests.soak.names import CHECKED, PIPELINES, POSTED

SAVEPOINT_SECONDS = 600.0
CHANGE_SECONDS = 1800.0
KILL_SECONDS = 60.0
#: After each round of kills: of processes that never live for long no slope could be told.
CALM_SECONDS = 600.0
#: A short run has at least so many savepoints and changes of the version, and kills come at least so far apart.
_LEAST_SAVEPOINTS, _LEAST_CHANGES = 4, 2
_LEAST_KILL_SECONDS = 25.0
_ROUNDS = 9  # the calm of a run is at most such a part of it
_FROZEN_SHARE = 0.2


class Kind(Enum):
    """What is killed, or done."""

    DRIVER = "driver"
    WORKER = "Python worker"
    BROKER = "broker"
    TRIGGERER = "triggerer"
    SCHEDULER = "scheduler"
    DATABASE = "PostgreSQL"
    STORE = "object store"
    SAVEPOINT = "savepoint"
    UPGRADE = "upgrade"
    ROLLBACK = "rollback"


KILLS = tuple(Kind)[:7]
LEADER, COORDINATOR, CONTROLLER = "leader of a sink partition", "transaction coordinator", "active controller"
#: What can be killed: of each kind, whose or which.
_TARGETS = [
    *((kind, pipeline) for kind in (Kind.DRIVER, Kind.WORKER) for pipeline in PIPELINES),
    *((Kind.BROKER, broker) for broker in (LEADER, COORDINATOR, CONTROLLER)),
    *((kind, "") for kind in (Kind.TRIGGERER, Kind.SCHEDULER, Kind.DATABASE, Kind.STORE)),
]
#: How long what was killed stays away, or what was frozen stays so, seconds: at least and at most. Supervisors bring
#: the others back by themselves.
_AWAY = {
    Kind.BROKER: (10.0, 30.0),
    Kind.TRIGGERER: (1.0, 10.0),
    Kind.SCHEDULER: (1.0, 10.0),
    Kind.DATABASE: (1.0, 15.0),
    Kind.STORE: (1.0, 10.0),
}
#: A driver that is frozen for longer than ten seconds is replaced, and must not do harm when it goes on.
_FROZEN = {Kind.DRIVER: (3.0, 25.0), Kind.BROKER: (3.0, 15.0), Kind.DATABASE: (2.0, 10.0), Kind.STORE: (2.0, 15.0)}
#: What may be killed while a version is changed: what costs no driver, so that the change still has to come about.
_DURING = (None, Kind.TRIGGERER, Kind.SCHEDULER)


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happens.

    :param at: not before so many seconds after the beginning
    :param target: a pipeline, or which broker
    :param is_frozen: SIGSTOP and SIGCONT instead of SIGKILL
    :param seconds: how long it stays away
    :param during: what is killed meanwhile
    """

    number: int
    at: float
    kind: Kind
    target: str = ""
    is_frozen: bool = False
    seconds: float = 0.0
    during: Kind | None = None

    @property
    def what(self) -> str:
        """What a report calls it."""
        if self.kind not in KILLS:
            return self.kind.value
        return f"{'SIGSTOP' if self.is_frozen else 'SIGKILL'}, {self.kind.value}"

    def facts(self) -> dict[str, object]:
        """Return it as JSON."""
        during = self.during.value if self.during else None
        rest = {"number": self.number, "planned": self.at, "target": self.target, "seconds": self.seconds}
        return {"what": self.what, **rest, "during": during}


def plan(seed: int, seconds: float) -> list[Event]:
    """Return what happens in so many seconds, in order."""
    chance = random.Random(seed)
    moments = [
        *_kills(chance, seconds),
        *_savepoints(seconds),
        *_changes(chance, seconds),
    ]
    return [
        Event(number=number, at=round(at, 1), **rest)  # type: ignore[arg-type]
        for number, (at, rest) in enumerate(sorted(moments, key=lambda moment: moment[0]), start=1)
    ]


Moments = Iterator[tuple[float, dict[str, object]]]


def _kills(chance: random.Random, seconds: float) -> Moments:
    """Yield kills of everything, in rounds in which each target has its turn."""
    every = min(KILL_SECONDS, max(_LEAST_KILL_SECONDS, seconds / len(_TARGETS)))
    at = every / 2
    while True:
        for kind, target in chance.sample(_TARGETS, len(_TARGETS)):
            if at >= seconds:
                return
            is_frozen = kind in _FROZEN and chance.random() < _FROZEN_SHARE
            away = (_FROZEN if is_frozen else _AWAY).get(kind, (0.0, 0.0))
            yield (
                at,
                {"kind": kind, "target": target, "is_frozen": is_frozen, "seconds": round(chance.uniform(*away), 1)},
            )
            at += every * chance.uniform(0.5, 1.5)
        at += min(CALM_SECONDS, seconds / _ROUNDS)


def _savepoints(seconds: float) -> Moments:
    every = min(SAVEPOINT_SECONDS, seconds / (_LEAST_SAVEPOINTS + 1))
    for number, pipeline in zip(count(1), cycle(PIPELINES)):
        if number * every >= seconds:
            return
        yield number * every, {"kind": Kind.SAVEPOINT, "target": pipeline}


def _changes(chance: random.Random, seconds: float) -> Moments:
    """Yield an upgrade and the rollback of it, of one pipeline and then of the other."""
    every = min(CHANGE_SECONDS, seconds / (_LEAST_CHANGES + 1))
    order = [(kind, pipeline) for pipeline in (POSTED, CHECKED) for kind in (Kind.UPGRADE, Kind.ROLLBACK)]
    for number, (kind, pipeline) in zip(count(1), cycle(order)):
        if number * every >= seconds:
            return
        during = chance.choice(_DURING)
        away = round(chance.uniform(*_AWAY[Kind.TRIGGERER]), 1)
        yield number * every, {"kind": kind, "target": pipeline, "during": during, "seconds": away}
