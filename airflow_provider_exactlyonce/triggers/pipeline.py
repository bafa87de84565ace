"""Watches a pipeline's driver in the triggerer, for a task that supervises it without a slot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.triggers.log_throttle import LogThrottle

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.control.lease import HeartbeatMonitor
    from airflow_provider_exactlyonce.control.status import Status
    from airflow_provider_exactlyonce.hooks.metrics import Reporter


class PipelineTrigger(BaseTrigger):
    """Fire when there is something for a worker to do: the driver has ended, is silent or stuck, or a delay is over.

    It reads the control directory, so the triggerer must see the pipeline's home. It decides nothing: the task looks
    for itself, so that an event that came late or twice changes nothing. What the task needs for that is in the event,
    because ``dag.test()`` forgets all other arguments of a task that was deferred.

    When a user marks or clears the task, the driver is stopped before its next batch; not when the triggerer ends.

    :param home: the pipeline's home, a path
    :param intent: the driver, fields of :class:`~airflow_provider_exactlyonce.control.intent.Intent`
    :param owner: the task, as the supervisor names it
    :param poll_interval: seconds between two checks
    :param due: the driver has died, and the next one is to be started then, seconds since the epoch
    :param deadline: the task's execution time-out, seconds since the epoch
    :param no_commit_within: seconds after which a driver that should commit and doesn't is stuck
    :param stop_timeout: seconds that the driver may take to end its batch when the task is killed; None leaves it
        running
    """

    def __init__(
        self,
        *,
        home: str,
        intent: Mapping[str, Any],
        owner: str,
        poll_interval: float,
        due: float | None = None,
        deadline: float | None = None,
        no_commit_within: float | None = None,
        stop_timeout: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.home = home
        self.intent = dict(intent)
        self.owner = owner
        self.poll_interval = poll_interval
        self.due = due
        self.deadline = deadline
        self.no_commit_within = no_commit_within
        self.stop_timeout = stop_timeout
        self._shown: Status | None = None
        self._metrics: Reporter | None = None
        self._heartbeats: HeartbeatMonitor | None = None
        self._throttle = LogThrottle()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments; the arguments are a wire format, older ones stay readable."""
        names = ("home", "intent", "owner", "poll_interval", "due", "deadline", "no_commit_within", "stop_timeout")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until there is something to do; yields one event."""
        while not (why := await asyncio.to_thread(self._check)):
            left = min((end - time.time() for end in (self.due, self.deadline) if end), default=self.poll_interval)
            await asyncio.sleep(max(0.0, min(self.poll_interval, left)))
        self.log.info("back to a worker: %s", why)
        yield TriggerEvent({"intent": self.intent, "deadline": self.deadline})  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Stop the driver, as a user wants; a process of its own enforces it, whatever becomes of the triggerer."""
        if self.stop_timeout is not None:
            await asyncio.to_thread(self._stop, self.stop_timeout)

    def _check(self) -> str | None:
        from airflow_provider_exactlyonce.control import requests
        from airflow_provider_exactlyonce.control.home import Home

        now, home = time.time(), Home(self.home)
        if self.deadline is not None and now >= self.deadline:
            return "the task's execution time-out"
        try:
            if self.due is None:
                return self._check_driver(home, now)
            stopped = requests.stop_requested(home, self.intent["token"]) is not None
        except OSError as error:  # what can't be read says nothing about the driver
            self.log.warning("%s can't be read: %s", self.home, error)
            return None
        return "a stop instead of a restart" if stopped else "a restart is due" if now >= self.due else None

    def _check_driver(self, home: Any, now: float) -> str | None:
        from airflow_provider_exactlyonce.control import drivers, exit_classification
        from airflow_provider_exactlyonce.control import lease as leases
        from airflow_provider_exactlyonce.control.driver_watch import stuck
        from airflow_provider_exactlyonce.control.intent import Intent
        from airflow_provider_exactlyonce.control.status import has_progressed, progress_line
        from airflow_provider_exactlyonce.hooks.metrics import Reporter
        from airflow_provider_exactlyonce.policies.health_rules import HealthRules

        self._metrics = self._metrics or Reporter(home)
        self._metrics.report()
        intent = codec.load(Intent, self.intent, "the trigger's intent")
        status = exit_classification.status_of(home, intent.token)
        if status is not None and has_progressed(self._shown, status) and self._throttle.allow():
            self._shown = status
            self.log.info("%s", progress_line(status))
        if not drivers.is_there(home, intent.token):
            return "the driver has ended"
        self._heartbeats = self._heartbeats or leases.HeartbeatMonitor(intent.token)
        if self._heartbeats.life(leases.read(home.lease)) is leases.Life.STALE:
            return "the driver gives no sign of life"
        allowed = None if self.no_commit_within is None else timedelta(seconds=self.no_commit_within)
        return stuck(home, intent, HealthRules(no_commit_within=allowed), now)

    def _stop(self, timeout_seconds: float) -> None:
        from airflow_provider_exactlyonce.control import requests, stopping
        from airflow_provider_exactlyonce.control.home import Home

        home, token = Home(self.home), self.intent["token"]
        requests.note_killed(home, token, self.owner)
        stopping.detach(home, token, reason="the task was killed", timeout_seconds=timeout_seconds)
