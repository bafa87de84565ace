"""Named steps of the protocol at which a test kills, stops or holds the process.

Off unless the environment variable ``EXACTLYONCE_FAILPOINTS`` is set when the process starts; a step then costs one
comparison. Its value is a list, ``name[:key=value]*`` separated by commas, for example
``during-send:run=1:batch=2,after-commit:run=2``. A step fires once, when all its conditions hold, and sends SIGKILL to
the whole process group: driver and JVM die as they do with a lost machine. Two keys are no conditions:

* ``signal=STOP`` sends that signal instead.
* ``hold=FILE`` sends none: the process id is written to FILE, and the step goes on when FILE has been removed. So a
  harness can act on the process at that step.

A value ``@FILE`` means that the list is in FILE, which is read whenever a step is reached and removed when one fires: a
harness arms a step of a process that runs already.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
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
#: The durable steps of the sinks that are not Kafka, before those of Kafka.
SINK_NAMES: Final = (
    "after-sink-fence",
    "after-sink-claim",
    "after-sink-pre-commit",
    "before-sink-decision",
    "after-sink-commit",
    "after-delivery",
)
#: The durable steps of taking and deleting a savepoint.
SAVEPOINT_NAMES: Final = (
    "before-savepoint",
    "during-savepoint",
    "before-savepoint-manifest",
    "after-savepoint-manifest",
    "during-savepoint-delete",
)
#: The durable steps of a restore, and of its replay after each batch.
RESTORE_NAMES: Final = (
    "restore-copied",
    "restore-renamed",
    "restore-switching",
    "restore-switched",
    "after-replayed",
)
#: The durable steps of a rescale; after the second it takes the first two of a restore, after the third the two that
#: switch.
RESCALE_NAMES: Final = (
    "rescale-copied",
    "rescale-repartitioned",
    "rescale-verified",
)
#: The durable steps of the copy of a home: it is begun, a first file is copied, all are and flushed, what is gone from
#: the old home is gone from the new one, the old one is sealed, the new one can be used.
HOME_COPY_NAMES: Final = (
    "copy-begun",
    "copy-during",
    "copy-flushed",
    "copy-compared",
    "copy-sealed",
    "copy-finished",
)
#: The steps of an upgrade and of its way back: each when it is on disk and not taken, and when it is taken.
UPGRADE_NAMES: Final = tuple(
    f"upgrade-{step}{when}"
    for step in ("check", "compare", "stop", "start", "watch", "stop-new", "restore", "start-old", "watch-old", "rest")
    for when in ("", "-taken")
)
#: The steps of a backfill: its lineage is made, a batch is noted, its last record is committed. In between it takes
#: the steps of a restore's copy and of a batch.
BACKFILL_NAMES: Final = (
    "backfill-prepared",
    "backfill-step",
    "backfill-done",
)
#: The steps of a conversion of 0.1.0's files. Between the first two it takes that of a sink's claim, and before the
#: last that of its commit.
CONVERSION_NAMES: Final = (
    "convert-closed",
    "convert-written",
    "convert-committed",
)
#: The steps of a compaction: its attempt is noted; all files are written and durable, and only the version is left; the
#: version is written.
COMPACTION_NAMES: Final = (
    "compaction-begun",
    "compaction-written",
    "compaction-committed",
)
_KNOWN: Final = (
    *(*NAMES, *SINK_NAMES, *SAVEPOINT_NAMES, *RESTORE_NAMES, *RESCALE_NAMES, *UPGRADE_NAMES, *BACKFILL_NAMES),
    *(*CONVERSION_NAMES, *COMPACTION_NAMES, *HOME_COPY_NAMES),
)

_POLL_SECONDS: Final = 0.01


@dataclass(frozen=True, kw_only=True)
class ArmedStep:
    """One armed step.

    :param conditions: what must hold of the facts that were noted
    :param number: the signal that is sent to the process group
    :param hold: the file that is written instead, None for a signal
    """

    name: str
    conditions: dict[str, str]
    number: signal.Signals
    hold: Path | None

    def act(self) -> None:
        """Send the signal, or hold the calling thread."""
        if self.hold is None:
            os.killpg(os.getpgid(0), self.number)
            return
        temporary = self.hold.with_name(f".{self.hold.name}.{os.getpid()}")
        temporary.write_text(str(os.getpid()))
        temporary.replace(self.hold)
        while self.hold.exists():
            time.sleep(_POLL_SECONDS)


def parse(text: str) -> list[ArmedStep]:
    """Read a list of steps.

    :raises ValueError: when a name is unknown or a condition is not ``key=value``
    """
    steps = []
    for item in filter(None, text.split(",")):
        name, *conditions = item.strip().split(":")
        if name not in _KNOWN:
            raise ValueError(f"{VARIABLE} names {name!r}; known are {', '.join(_KNOWN)}")
        pairs = dict(condition.split("=", 1) for condition in conditions if "=" in condition)
        if len(pairs) < len(conditions):
            raise ValueError(f"{VARIABLE}: {item!r} is not name[:key=value]*")
        number = signal.Signals[f"SIG{pairs.pop('signal', 'KILL')}"]
        hold = pairs.pop("hold", None)
        steps.append(ArmedStep(name=name, conditions=pairs, number=number, hold=Path(hold) if hold else None))
    return steps


_TEXT: Final = os.environ.get(VARIABLE, "")
_FILE: Final = Path(_TEXT[1:]) if _TEXT.startswith("@") else None
_steps: Final = parse(_TEXT) if _FILE is None else []
_facts: dict[str, str] = {}


def note(**facts: object) -> None:
    """Set facts that conditions are compared with, for example ``run=1`` or ``batch=3``."""
    if _TEXT:
        _facts.update({key: str(value) for key, value in facts.items()})


def reach(name: str) -> None:
    """Fire here if a test asked for it.

    :param name: one of the names above
    """
    if not _TEXT:
        return
    for step in _armed():
        if step.name == name and step.conditions.items() <= _facts.items() and _disarmed(step):
            step.act()
            return


def _armed() -> list[ArmedStep]:
    if _FILE is None:
        return _steps
    try:
        return parse(_FILE.read_text())
    except FileNotFoundError:
        return []


def _disarmed(step: ArmedStep) -> bool:
    """Take the step off, so that it fires once; false when another process was faster."""
    if _FILE is None:
        _steps.remove(step)
        return True
    try:
        _FILE.unlink()
    except FileNotFoundError:
        return False
    return True
