"""Looking at one home for all who wait in the triggerer for what happens there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.control import json_store, requests
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.hooks.home import home_at
from airflow_provider_exactlyonce.policies.health_rules import HealthRules
from airflow_provider_exactlyonce.triggers.shared_poller import HOME_THREADS, Checker, CheckResult, Subject

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.control.drivers import FailureDetector

#: An account is read with each look where that costs nothing, and where each read costs, as often as so many looks.
_READS_OF_AN_ACCOUNT: Final = 12
#: So often a worker asks the cluster's manager for a driver that has not reported: the triggerer has no way to it.
_UNHEARD_SECONDS: Final = 300.0


class HomeChecker(Checker):
    """Looks at one home: each document is read once in a look, however many want to know of it.

    A subject is a driver that is watched (``intent``, ``no_commit_within``), one that is to be started again
    (``restarted``), or what a driver is asked for (``token``, ``request``, ``commits``).

    :param conn_id: the home's location; it is opened again, with its connection, after an error
    """

    place = "home"
    threads = HOME_THREADS

    def __init__(self, conn_id: str) -> None:
        super().__init__(conn_id)
        self._home: Home | None = None
        self._watched: dict[str, _WatchedDriver] = {}
        self._detectors: dict[str, FailureDetector] = {}  # of those that are asked for something

    def _check(self, subjects: Mapping[str, Subject], *, diagnose: bool) -> Mapping[str, CheckResult | Exception]:
        self._home = self._home or home_at(self.conn_id)
        self.least_seconds = self._home.look_every(0.0)
        self._watched = {name: driver for name, driver in self._watched.items() if name in subjects}
        self._detectors = {name: detector for name, detector in self._detectors.items() if name in subjects}
        with json_store.one_look():
            return {name: self._look(self._home, name, subject) for name, subject in subjects.items()}

    def _close(self) -> None:
        self._home = None
        self._watched.clear()
        self._detectors.clear()

    def _look(self, home: Home, name: str, subject: Subject) -> CheckResult | Exception:
        from airflow_provider_exactlyonce.control import drivers

        try:
            if "intent" in subject:
                watched = self._watched.get(name) or _WatchedDriver(home, subject)
                self._watched[name] = watched
                reason = watched.look(home)
                return CheckResult(missing=watched.line) if reason is None else CheckResult(found={"why": reason})
            if "restarted" in subject:
                is_over = requests.stop_requested(home, subject["restarted"]) is not None
                return CheckResult(found={"why": "a stop instead of a restart"} if is_over else None)
            wait = requests.WaitCondition(**subject)
            detector = self._detectors.setdefault(name, drivers.FailureDetector(home, waits=False))
            is_over = drivers.has_happened(home, wait) or (wait.token is not None and detector.is_lost(wait.token))
            return CheckResult(found={"why": "the driver has answered, or is gone"} if is_over else None)
        except OSError as error:  # what can't be read says nothing about the driver
            return error


class _WatchedDriver:
    """What is remembered of a driver between two looks."""

    def __init__(self, home: Home, subject: Subject) -> None:
        from airflow_provider_exactlyonce.control.intent import Intent
        from airflow_provider_exactlyonce.control.lease import HeartbeatMonitor
        from airflow_provider_exactlyonce.hooks.metrics import Reporter

        no_commit_within = subject["no_commit_within"]
        self._rules: Final = HealthRules(
            no_commit_within=None if no_commit_within is None else timedelta(seconds=no_commit_within)
        )
        self._intent: Final = codec.load(Intent, subject["intent"], "the trigger's intent")
        self._heartbeats: Final = HeartbeatMonitor(self._intent.token, home.lease)
        self._metrics: Final = Reporter(home)
        self._began: Final = time.monotonic()
        self._shown: Any = None
        self._next_account = 0.0
        self._over_since: float | None = None  # when its end was known first
        self.line = ""

    def look(self, home: Home) -> str | None:
        """Return why a worker has something to do, None while it has not."""
        from airflow_provider_exactlyonce.control import drivers, exit_classification
        from airflow_provider_exactlyonce.control.driver_watch import stuck
        from airflow_provider_exactlyonce.control.lease import Liveness
        from airflow_provider_exactlyonce.control.status import ENDED, has_progressed, progress_line
        from airflow_provider_exactlyonce.control.stopping import EXIT_GRACE_SECONDS

        now = time.monotonic()
        life = self._heartbeats.look()
        if not drivers.is_there(home, self._intent.token):
            if not drivers.is_unheard(home, self._intent.token):
                return "the driver has ended"
            if now - self._began > _UNHEARD_SECONDS:
                return "the driver has not reported yet"
        if life is Liveness.STALE:
            return "the driver gives no sign of life"
        if life is Liveness.DEAD:
            self._over_since = self._over_since or now
        if self._over_since is not None and now - self._over_since > EXIT_GRACE_SECONDS:
            return "the driver has ended, and its process has not"
        self._metrics.report()
        if now < self._next_account:
            return None
        self._next_account = now + home.look_every(0.0, reads=_READS_OF_AN_ACCOUNT)
        status = exit_classification.status_of(home, self._intent.token)
        if status is not None and status.state in ENDED:
            self._over_since = self._over_since or now
        if status is not None and has_progressed(self._shown, status):
            self._shown, self.line = status, progress_line(status)
        return stuck(self._intent, status, self._rules, time.time())
