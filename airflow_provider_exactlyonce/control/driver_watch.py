"""Watches one driver until its end: its status, its signs of life, its health."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from typing import Final

from airflow_provider_exactlyonce.control import exit_classification
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.driver_locator import DriverAttachment
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.lease import HeartbeatMonitor, Liveness
from airflow_provider_exactlyonce.control.processes import Ended
from airflow_provider_exactlyonce.control.status import ENDED, Status, has_progressed
from airflow_provider_exactlyonce.control.stopping import EXIT_GRACE_SECONDS, POLL_SECONDS
from airflow_provider_exactlyonce.control.supervision import StopSignal, Supervision
from airflow_provider_exactlyonce.exceptions import StopRequestedError, UnhealthyError
from airflow_provider_exactlyonce.policies.health_rules import HealthRules
from airflow_provider_exactlyonce.storage.store import is_no_answer

_log = logging.getLogger(__name__)


class DriverWatch:
    """A driver that is watched.

    :param give_up: stops it, for a reason
    :param told: called with its status, at each check while it is ours and wanted
    """

    def __init__(
        self,
        home: Home,
        supervision: Supervision,
        attached: DriverAttachment,
        stop: StopSignal,
        give_up: Callable[[str], None],
        told: Callable[[Status], None] = lambda status: None,
    ) -> None:
        self._home: Final = home
        self._supervision: Final = supervision
        self.attached: Final = attached
        self._stop: Final = stop
        self._give_up: Final = give_up
        self._told: Final = told
        self._heartbeats: Final = HeartbeatMonitor(attached.driver.token, home.lease)
        self._shown: Status | None = None
        self._unanswered: float | None = None  # since when the home does not answer
        self._over_since: float | None = None
        self._warned = False
        self.ended: Ended | None = None  # how it has, once it has

    def until_its_end(self) -> Iterator[Status]:
        """Yield changed statuses until the driver has ended.

        :raises StopRequestedError: when we were asked to stop while we waited for another owner's driver
        :raises UnhealthyError: when it was given up
        """
        driver, next_check = self.attached.driver, 0.0
        while True:
            self._supervision.on_poll()
            self.ended = driver.ended()
            now = time.monotonic()
            if self.ended is not None or now >= next_check:
                next_check = now + self._home.look_every(self._supervision.poll_seconds)
                yield from self._check_if_answered(now)
            if self.ended is not None:
                return
            reason = self._stop.reason
            if reason is not None and not self.attached.ours:
                raise StopRequestedError(f"stopped while waiting for {self.attached.intent.owner}: {reason}")
            if self._over_since is not None and now - self._over_since > EXIT_GRACE_SECONDS:
                driver.signal(signal.SIGKILL)  # its Python half has ended; the JVM hangs
                self._over_since = now  # it is not killed again before it had time to end: on a cluster that takes some
            time.sleep(POLL_SECONDS)

    def _check_if_answered(self, now: float) -> Iterator[Status]:
        """Check the home's documents. While the home does not answer, the driver is left alone."""
        try:
            yield from self._check(now)
        except OSError as error:
            if not is_no_answer(error):
                raise
            if self._unanswered is None:
                self._unanswered = now
                _log.warning("%s does not answer, and the driver is left as it is: %s", self._home.location, error)
        else:
            if self._unanswered is not None:
                _log.warning("%s answers again, after %.0f s", self._home.location, now - self._unanswered)
            self._unanswered = None

    def _check(self, now: float) -> Iterator[Status]:
        status = exit_classification.status_of(self._home, self.attached.driver.token)
        if self.ended is None and self.attached.ours and self._stop.reason is None:
            self._check_health(status)
            if status is not None:
                self._told(status)
        if status is not None and has_progressed(self._shown, status):
            self._shown = status
            yield status
        life = self._heartbeats.look()
        if life is Liveness.DEAD or (status is not None and status.state in ENDED):
            self._over_since = self._over_since or now
        if life is Liveness.STALE and not self._warned:
            _log.warning("the driver has given no sign of life for %.0f s", leases.stale_seconds(self._home.lease))
        self._warned = life is Liveness.STALE

    def _check_health(self, status: Status | None) -> None:
        reason = stuck(self.attached.intent, status, self._supervision.health, time.time())
        if reason is not None:
            self._give_up(reason)
            ended = self.attached.driver.ended()
            if ended is None or ended.is_silence:  # by its intent the next try finds it
                raise UnhealthyError(f"{reason}; the driver was asked to stop, and is not known to have ended")
            intents.remove(self._home.intent, self.attached.intent.token)
            raise UnhealthyError(f"{reason}; the driver was stopped")


def stuck(intent: Intent, status: Status | None, rules: HealthRules, now: float) -> str | None:
    """Return why a driver that should commit counts as stuck, None when it does not.

    :param status: its last status, None for none yet
    :param now: seconds since the epoch
    """
    if rules.no_commit_within is None:
        return None
    allowed = rules.no_commit_within.total_seconds()
    if status is not None and status.state in ENDED:
        return None
    if status is None or status.progressed == 0:
        since, context = intent.written, "since the driver was started"
    else:
        lag = "unknown" if status.lag is None else f"{status.lag:,}"
        since, context = status.progressed, f"after commit {status.commit}, lag {lag}"
    if now - since <= allowed:
        return None
    return f"no commit for {now - since:.0f} s {context}; no_commit_within is {allowed:g} s"
