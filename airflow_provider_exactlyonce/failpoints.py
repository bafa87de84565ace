"""Named steps of the protocol at which a test kills the process.

Off unless the environment variable ``EXACTLYONCE_FAILPOINTS`` is set when the process starts; a step then costs one
comparison with None. Its value is a list, ``name[:key=value]*`` separated by commas, for example
``during-send:run=1:batch=2,after-commit:run=2``. A step fires when all its conditions hold, and sends SIGKILL to the
whole process group: driver and JVM die as they do with a lost machine. ``signal=STOP`` freezes them instead.
"""

from __future__ import annotations

import os
import signal
from typing import Final

VARIABLE: Final = "EXACTLYONCE_FAILPOINTS"

#: Every named step, in protocol order. A crash test exists for each.
NAMES: Final = (
    "after-claim",
    "after-begin",
    "during-send",
    "after-pre-commit",
    "after-end-transaction",
    "after-commit",
)


def parse(text: str) -> dict[str, dict[str, str]]:
    """Read the variable's text.

    :raises ValueError: when a name is unknown or a condition is not ``key=value``
    """
    points: dict[str, dict[str, str]] = {}
    for item in filter(None, text.split(",")):
        name, *conditions = item.strip().split(":")
        if name not in NAMES:
            raise ValueError(f"{VARIABLE} names {name!r}; known are {', '.join(NAMES)}")
        pairs = [condition.partition("=") for condition in conditions]
        if any(not separator for _, separator, _ in pairs):
            raise ValueError(f"{VARIABLE}: {item!r} is not name[:key=value]*")
        points[name] = {key: value for key, _, value in pairs}
    return points


_ACTIVE: Final[dict[str, dict[str, str]] | None] = parse(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None
_SIGNAL: Final = "signal"
_facts: dict[str, str] = {}


def note(**facts: object) -> None:
    """Remember what conditions are compared with, for example ``run=1`` or ``batch=3``."""
    if _ACTIVE is not None:
        _facts.update({key: str(value) for key, value in facts.items()})


def reach(name: str) -> None:
    """Die here if a test asked for it.

    :param name: one of :data:`NAMES`
    """
    if _ACTIVE is None:
        return
    conditions = _ACTIVE.get(name)
    if conditions is None:
        return
    if any(key != _SIGNAL and _facts.get(key) != value for key, value in conditions.items()):
        return
    action = _ACTIVE.pop(name).get(_SIGNAL, "KILL")  # a process that is thawed goes on
    os.killpg(os.getpgid(0), signal.Signals[f"SIG{action}"])
