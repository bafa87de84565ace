"""From a driver's death to its restart: the death's record, whether there is a restart, and the delay before it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.codec import Rewritten
from airflow_provider_exactlyonce.control import exit_classification, json_store, requests
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.processes import Ended
from airflow_provider_exactlyonce.control.supervision import StopSignal, Supervision
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, StopRequestedError, UnhealthyError
from airflow_provider_exactlyonce.policies.health_rules import HealthRules
from airflow_provider_exactlyonce.policies.restart_strategy import KEPT_OUTAGES, Outage


@dataclass(frozen=True, kw_only=True)
class Restart(Rewritten):
    """One death of a driver, and the start after it.

    :param series: start token of the first driver of the series
    :param number: 1 for the first restart of the series
    :param token: start token of the driver that died
    :param run: its run, 0 when it died before its claim
    :param commit: the last commit that it had reported
    :param cause: why it died, in a sentence
    :param exit_code: its exit code, negative for a signal, None when it was not seen
    :param rows: rows that its run had committed to the primary sink. Here and in the next three the oldest that is
        kept of a series has those of earlier ones, too
    :param rows_by_sink: {sink: rows that its run had committed}
    :param records: source records that its run's batches had read
    :param late_rows: rows behind the watermark that its run had left out
    :param died: seconds since the epoch when the supervisor saw it
    :param due: seconds since the epoch when the next driver is to be started
    :param relaunched: seconds since the epoch when the next driver's process was started, None before
    :param log: the driver's output on its host; empty in a record of release 0.1.0
    """

    series: str
    number: int
    token: str
    run: int
    commit: int
    cause: str
    exit_code: int | None
    died: float
    rows: int = 0
    rows_by_sink: dict[str, int] = field(default_factory=dict)
    records: int = 0
    late_rows: int = 0
    due: float = 0.0
    relaunched: float | None = None
    log: str = ""


@dataclass(frozen=True, kw_only=True)
class RecordedRestarts(Rewritten):
    """The document: the newest restarts, oldest first."""

    restarts: tuple[Restart, ...]
    schema: int = 1


def read(path: Path) -> tuple[Restart, ...]:
    """Return the recorded restarts, oldest first."""
    record = json_store.load(path, RecordedRestarts)
    return record.restarts if record is not None else ()


def of_series(path: Path, series: str) -> tuple[Restart, ...]:
    """Return the recorded restarts of one series, oldest first."""
    return tuple(entry for entry in read(path) if entry.series == series)


def append(path: Path, restart: Restart) -> None:
    """Record a death; called before the delay, so that a supervisor that dies in it has left its trace."""
    _change(path, lambda recorded: (*recorded, restart))


def relaunched(path: Path, token: str, at: float) -> None:
    """Record when the driver after the one with this token was started."""
    _change(
        path,
        lambda recorded: tuple(replace(entry, relaunched=at) if entry.token == token else entry for entry in recorded),
    )


def withdraw(path: Path, token: str) -> bool:
    """Remove a death that was none: the driver with this token has come back. Returns whether it was on record."""
    return _change(path, lambda recorded: tuple(entry for entry in recorded if entry.token != token))


def _change(path: Path, decide: Callable[[tuple[Restart, ...]], tuple[Restart, ...]]) -> bool:
    """Change the record, as it is then; returns whether it was changed."""

    def changed(record: RecordedRestarts | None) -> RecordedRestarts | None:
        before = record or RecordedRestarts(restarts=())
        restarts = _newest(decide(before.restarts))
        return None if restarts == before.restarts else replace(before, restarts=restarts)

    return json_store.change(path, RecordedRestarts, changed) is not None


def _newest(restarts: tuple[Restart, ...]) -> tuple[Restart, ...]:
    """Return those that are kept; the figures of one that is not go to the next of its series: sums stay."""
    kept = list(restarts[-KEPT_OUTAGES:])
    for old in restarts[:-KEPT_OUTAGES]:
        for index, entry in enumerate(kept):
            if entry.series == old.series:
                kept[index] = replace(
                    entry,
                    rows=entry.rows + old.rows,
                    rows_by_sink={
                        sink: old.rows_by_sink.get(sink, 0) + entry.rows_by_sink.get(sink, 0)
                        for sink in {**old.rows_by_sink, **entry.rows_by_sink}
                    },
                    records=entry.records + old.records,
                    late_rows=entry.late_rows + old.late_rows,
                )
                break
    return tuple(kept)


_POLL_SECONDS: Final = 0.1

_log = logging.getLogger(__name__)


class RestartController:
    """How drivers that die are started again."""

    def __init__(self, home: Home, supervision: Supervision, stop: StopSignal) -> None:
        self._home: Final = home
        self._supervision: Final = supervision
        self._stop: Final = stop

    def is_recorded(self, dead: Intent) -> bool:
        """Whether a driver's death is on record, and a restart decided."""
        return any(entry.token == dead.token for entry in of_series(self._home.restarts, dead.series))

    def record(self, dead: Intent, ended: Ended, error: ExactlyOnceError, *, number: int, died: float) -> None:
        """Record a death, and when the next driver is started.

        :param number: 1 for the first restart of the series
        :param died: seconds since the epoch
        :raises ExactlyOnceError: when none is
        """
        recorded = of_series(self._home.restarts, dead.series)
        if any(entry.token == dead.token for entry in recorded):
            return  # a write that was not answered was made
        outages = [
            Outage(died=restart.died, relaunched=restart.relaunched, number=restart.number) for restart in recorded
        ]
        delay = self._supervision.strategy.delay(error, outages, died)
        if delay is None:
            raise error
        if reason := _too_many(outages, died, self._supervision.health):
            raise UnhealthyError(f"{reason}; the last one: {error}") from error
        status = exit_classification.status_of(self._home, dead.token)
        entry = Restart(
            series=dead.series,
            number=number,
            token=dead.token,
            run=status.run if status else 0,
            commit=status.commit if status else 0,
            rows=status.rows if status else 0,
            rows_by_sink=status.rows_by_sink if status else {},
            records=status.records if status else 0,
            late_rows=status.late_rows if status else 0,
            cause=str(error),
            exit_code=ended.exit_code,
            died=died,
            due=died + delay.total_seconds(),
            log=dead.log,
        )
        append(self._home.restarts, entry)
        _log.warning("%s; restart %s in %.1f s from the retained checkpoint", error, number, delay.total_seconds())

    def wait(self, dead: Intent) -> int:
        """Wait until the next driver is to be started; returns the restart's number.

        :raises StopRequestedError: when a stop was requested
        """
        entry = self._entry(dead)
        self._supervision.on_poll()
        self.heed_stop(dead)
        self._supervision.on_delay(dead, entry.due)
        longest_until = time.monotonic() + entry.due - entry.died  # the clock may be set back
        while (seconds := min(entry.due - time.time(), longest_until - time.monotonic())) > 0:
            time.sleep(min(seconds, _POLL_SECONDS))
            self._supervision.on_poll()
            self.heed_stop(dead)
        return entry.number

    def heed_stop(self, dead: Intent) -> None:
        """Look whether a restart is wanted still: a stop that was meant for the driver that died is meant for the next.

        :raises StopRequestedError: when it is not
        """
        reason = self._stop.reason or requests.stop_requested(self._home, dead.token)
        if reason is not None:
            entry = self._entry(dead)
            raise StopRequestedError(
                f"stopped before restart {entry.number}: {reason}; the driver had died: {entry.cause}"
            )

    def _entry(self, dead: Intent) -> Restart:
        return next(entry for entry in of_series(self._home.restarts, dead.series) if entry.token == dead.token)


def _too_many(outages: Sequence[Outage], died: float, rules: HealthRules) -> str | None:
    """Return why one more death is too many within the window, None when it is not.

    :param died: seconds since the epoch
    """
    if rules.max_restarts is None:
        return None
    window = rules.restart_window.total_seconds()
    recent = 1 + sum(died - outage.died <= window for outage in outages)
    if recent <= rules.max_restarts:
        return None
    return f"{recent} drivers died within {window:g} s; max_restarts is {rules.max_restarts}"
