"""Why a driver begins no further batch: its work is done, a signal came, or a stop was requested."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Final

from airflow_provider_exactlyonce.checkpoint.layout import parse_offsets
from airflow_provider_exactlyonce.control import requests
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.policies.termination import AVAILABLE, target_of
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError, is_no_answer
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from airflow_provider_exactlyonce.streaming.driver.status_reporter import DriverReport
from airflow_provider_exactlyonce.streaming.driver.stop_condition import StopCondition

log = logging.getLogger("exactlyonce")


class StopReasons:
    """Knows whether a driver should stop, and why.

    :ivar done: why no further batch is wanted, once the run's work is done
    :ivar interrupted: by a signal, which may have ended Spark, too
    """

    def __init__(self, options: DriverOptions, report: DriverReport) -> None:
        self.done: str | None = None
        self.interrupted = False
        self._requested: str | None = None
        self._previous_commit: CommitRecord | None = None
        self._until: Final = options.until
        self._report: Final = report
        self._goal: Final = StopCondition(options.home, target_of(options.until), options.goal)
        self._home: Final = options.home
        self._next_question = 0.0
        self._source_reason: str | None = None
        self._sources: Final[list[Callable[[], str | None]]] = [
            lambda: requests.stop_requested(options.home, options.token)
        ]

    def heed_signals(self) -> None:
        """Take SIGTERM and SIGINT for a request; from the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def ask(self, source: Callable[[], str | None]) -> None:
        """Ask another source from now on, which returns None while it has no reason."""
        self._sources.append(source)

    def request(self, reason: str) -> None:
        """Ask for a stop; an earlier reason stays."""
        self._requested = self._requested or reason

    def requested(self) -> str | None:
        """Return the newest signal, or the first request, None when there was none; makes no request."""
        return self._requested

    def reason(self) -> str | None:
        """Return why no further batch should begin, None while one should."""
        status = self._report.status
        if status.state is DriverState.RUNNING:
            self._check_goal(status.commit, status.watermark)
        if self.done or self._requested:
            return self.done or self._requested
        if time.monotonic() >= self._next_question:
            self._next_question = time.monotonic() + self._home.look_every(0.0)
            self._ask()
        return self._source_reason

    def _ask(self) -> None:
        try:
            self._source_reason = next((reason for source in self._sources if (reason := source())), None)
        except (OSError, OutcomeUnknownError) as error:  # a home that does not answer for a while ends no driver
            if not is_no_answer(error):
                raise
            log.warning("it is unknown whether a stop was requested: %s", error)

    def begin(self) -> None:
        """Fix the run's goal, now that the pipeline's last commit is known."""
        self._goal.begin(self._report.status.commit)

    def reached(self, record: CommitRecord) -> bool:
        """Tell whether the run's goal is reached with a commit."""
        return self._check_goal(record.commit, record.watermark)

    def committed(self, record: CommitRecord) -> None:
        """See whether the work is done with a commit.

        Timers by processing time keep a query going: Spark plans batches without data for ever. A batch without data
        whose watermark has not moved has no other reason; and all that was available is committed.
        """
        empty = bool(record.source) and all(
            start == end for ranges in record.source.values() for start, end in ranges.values()
        )
        previous, self._previous_commit = self._previous_commit, record
        if (
            self._until == AVAILABLE
            and empty
            and previous is not None
            and record.watermark == previous.watermark
            # A source that the function reads by itself is in Spark's offsets only.
            and parse_offsets(record.offsets).same_sources(parse_offsets(previous.offsets))
        ):
            self.done = "all that was available is committed"
        self.reached(record)

    def _check_goal(self, commit: int, watermark: int) -> bool:
        self.done = self.done or self._goal.reached(commit, watermark)
        return self.done is not None

    def _on_signal(self, number: int, _: object) -> None:
        if self.interrupted and number == signal.SIGINT:  # a person at a terminal has no patience
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._requested, self.interrupted = f"signal {signal.Signals(number).name}", True
