"""From a driver's death to its next start: what is recorded, whether there is one, and the delay before it."""

from __future__ import annotations

import logging
import time
from typing import Final

from airflow_provider_exactlyonce.control import exit_classification, health, requests, restart_log
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.processes import Ended
from airflow_provider_exactlyonce.control.restart_log import Restart
from airflow_provider_exactlyonce.control.supervision import StopSignal, Supervision
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, StopRequestedError, UnhealthyError
from airflow_provider_exactlyonce.policies.restart_strategy import Outage

_POLL_SECONDS: Final = 0.1

_log = logging.getLogger(__name__)


class RestartController:
    """How drivers that die are started again.

    :param stop: whether we were asked to stop
    """

    def __init__(self, home: Home, supervision: Supervision, stop: StopSignal) -> None:
        self._home: Final = home
        self._supervision: Final = supervision
        self._stop: Final = stop

    def is_recorded(self, dead: Intent) -> bool:
        """Whether a driver's death is on record, and a restart decided."""
        return any(entry.token == dead.token for entry in restart_log.of_series(self._home.restarts, dead.series))

    def record(self, dead: Intent, ended: Ended, error: ExactlyOnceError, *, number: int, died: float) -> None:
        """Record a death, and when the next driver is started.

        :param error: why it died
        :param number: 1 for the first restart of the series
        :param died: seconds since the epoch
        :raises ExactlyOnceError: when none is
        """
        recorded = restart_log.of_series(self._home.restarts, dead.series)
        past = [Outage(died=one.died, relaunched=one.relaunched) for one in recorded]
        delay = self._supervision.strategy.delay(error, past, died)
        if delay is None:
            raise error
        if why := health.too_many_restarts(past, died, self._supervision.health):
            raise UnhealthyError(f"{why}; the last one: {error}") from error
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
        )
        restart_log.append(self._home.restarts, entry)
        _log.warning("%s; restart %s in %.1f s from the retained checkpoint", error, number, delay.total_seconds())

    def wait(self, dead: Intent) -> int:
        """Wait until the next driver is to be started; returns the restart's number.

        :raises StopRequestedError: when somebody wants it stopped
        """
        entry = self._entry(dead)
        announced = False
        while True:
            self._supervision.on_poll()
            self.heed_stop(dead)
            if not announced:
                self._supervision.on_delay(dead, entry.due)
            announced = True
            left = min(entry.due - time.time(), entry.due - entry.died)  # the clock may be set back
            if left <= 0:
                return entry.number
            time.sleep(min(left, _POLL_SECONDS))

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
        return next(one for one in restart_log.of_series(self._home.restarts, dead.series) if one.token == dead.token)
