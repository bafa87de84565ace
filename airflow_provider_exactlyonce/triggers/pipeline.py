"""Watches a pipeline's driver in the triggerer, for a task that supervises it without a slot."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_exactlyonce.hooks.home import home_at
from airflow_provider_exactlyonce.polling import poll_until
from airflow_provider_exactlyonce.triggers.home_checker import HomeChecker
from airflow_provider_exactlyonce.triggers.log_throttle import LogThrottle
from airflow_provider_exactlyonce.triggers.shared_poller import subscribed

#: Airflow waits for a kill some 30 s, and threads that others share may wait longer for what does not answer.
_KILLS: Final = ThreadPoolExecutor(8, thread_name_prefix="kills")


class PipelineTrigger(BaseTrigger):
    """Fire when there is something for a worker to do: the driver has ended, is silent or stuck, or a delay is over.

    It reads the control directory, so the triggerer must see the pipeline's home. It decides nothing: the task looks
    for itself, so that an event that came late or twice changes nothing. What the task needs for that is in the event,
    because ``dag.test()`` forgets all other arguments of a task that was deferred.

    When a user marks or clears the task, the driver is stopped before its next batch; not when the triggerer ends.

    :param home: the pipeline's home, as :attr:`~airflow_provider_exactlyonce.control.home.Home.location` has it
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
        self._throttle = LogThrottle()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments; the arguments are a wire format, older ones stay readable."""
        names = ("home", "intent", "owner", "poll_interval", "due", "deadline", "no_commit_within", "stop_timeout")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until there is something to do; yields one event."""
        async with subscribed(HomeChecker, self.home, self._subject(), self.poll_interval) as subscription:
            while (reason := self._what_is_over()) is None:
                ends = [end - time.time() for end in (self.due, self.deadline) if end is not None]
                news = await subscription.changed(max(0.0, min([60.0, self._throttle.seconds, *ends])))
                if news is not None and news.found is not None:
                    reason = str(news.found["why"])
                    break
                if news is not None and news.refused:
                    reason = news.missing
                    break
                if line := self._throttle.line(None if news is None else news.missing):
                    self.log.info("%s", line)
        self.log.info("back to a worker: %s", reason)
        yield TriggerEvent(  # type: ignore[no-untyped-call]
            {"home": self.home, "intent": self.intent, "deadline": self.deadline}
        )

    async def on_kill(self) -> None:
        """Stop the driver, as a user wants; a process of its own enforces it, whatever becomes of the triggerer."""
        if self.stop_timeout is not None:
            await asyncio.get_running_loop().run_in_executor(_KILLS, self._stop, self.stop_timeout)

    def _subject(self) -> dict[str, Any]:
        if self.due is not None:
            return {"restarted": self.intent["token"]}
        return {"intent": self.intent, "no_commit_within": self.no_commit_within}

    def _what_is_over(self) -> str | None:
        if self.deadline is not None and time.time() >= self.deadline:
            return "the task's execution time-out"
        return "a restart is due" if self.due is not None and time.time() >= self.due else None

    def _stop(self, timeout_seconds: float) -> None:
        from airflow_provider_exactlyonce.control import stopping

        token = self.intent["token"]
        stopping.detach(token, timeout_seconds)
        asking = stopping.PersistentStopRequest(
            home_at(self.home), token, reason="the task was killed", owner=self.owner
        )
        if not asking.go_on():  # the other kills wait for no home that does not answer
            limits = {"seconds": timeout_seconds, "poll_seconds": stopping.ASK_AGAIN_SECONDS}
            threading.Thread(target=poll_until, args=(asking.go_on,), kwargs=limits, name="kill", daemon=True).start()
