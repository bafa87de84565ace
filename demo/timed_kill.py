"""Kills a driver of Spark's stock sink at a moment that the sink itself has no hook for.

Near the moment the driver is walked towards it: it runs for a few milliseconds, is stopped (SIGSTOP), the topic is
looked at, it goes on (SIGCONT). So the kill lands where it should on a busy machine, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from demo import topics
from demo.history import Event, Expectation, source_ranges

_STRIDE_SECONDS: Final = 0.01  # before the batch's first row is in the topic
_STEP_SECONDS: Final = 0.002  # from then on


@dataclass(frozen=True, kw_only=True)
class Aim:
    """When to kill.

    :param batch: in which batch
    :param wholly_written: when all of its rows are in the topic and Spark has not noted that, rather than in mid-write
    """

    batch: int
    wholly_written: bool

    @property
    def label(self) -> str:
        """What a report calls it."""
        return "SIGKILL after the write" if self.wholly_written else "SIGKILL in mid-write"


class TimedKill:
    """One kill in one run of the driver; made before the run's first row is written.

    :param topic: the sink's topic, which nobody else writes to
    :param events: the source's records
    """

    def __init__(
        self, aim: Aim, config: Mapping[str, Any], topic: str, checkpoint: Path, events: Sequence[Event]
    ) -> None:
        self._aim = aim
        self._checkpoint = checkpoint
        self._ends = topics.Ends(config, topic)
        self._rows_at_start = self._ends.high()
        self._expectation = Expectation(events)
        self._due: list[int] = []  # rows of each batch whose offsets are known
        self._first = sum(1 for _ in (checkpoint / "commits").glob("[0-9]*"))  # the batch that this run begins with

    def is_near(self) -> bool:
        """Look at the checkpoint; true when the batch has begun."""
        self._learn()
        return len(self._due) > self._aim.batch

    @property
    def is_late(self) -> bool:
        """Whether Spark has noted the batch as done, which it must not have when the kill lands."""
        return (self._checkpoint / "commits" / str(self._aim.batch)).exists()

    def carry_out(self, process: subprocess.Popen[bytes]) -> bool:
        """Walk a driver to its moment and kill it there; False when it ended before. Once :meth:`is_near` is true.

        :param process: leader of the driver's process group
        """
        lower, upper = self._rows_wanted()
        try:
            while process.poll() is None:
                os.killpg(process.pid, signal.SIGSTOP)
                rows = self._ends.high()
                if rows >= upper or self.is_late:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    return True
                os.killpg(process.pid, signal.SIGCONT)
                time.sleep(_STRIDE_SECONDS if rows <= lower else _STEP_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGCONT)
        return False

    def _rows_wanted(self) -> tuple[int, int]:
        """Return how many rows the topic holds before the batch's first, and at the moment of the kill."""
        rows_before = self._rows_at_start + sum(self._due[self._first : self._aim.batch])
        batch_rows = self._due[self._aim.batch]
        return rows_before, rows_before + (batch_rows if self._aim.wholly_written else max(1, batch_rows // 4))

    def _learn(self) -> None:
        ranges = source_ranges(self._checkpoint)
        while len(self._due) < min(len(ranges), self._aim.batch + 1):
            self._due.append(len(self._expectation.next(ranges[len(self._due)])))
