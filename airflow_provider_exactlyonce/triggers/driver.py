"""Waits in the triggerer until a driver has answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_exactlyonce.triggers.home_checker import HomeChecker
from airflow_provider_exactlyonce.triggers.shared_poller import subscribed


class DriverTrigger(BaseTrigger):
    """Fire when a driver has answered a request or is gone, or the deadline has passed.

    It reads the control directory, so the triggerer must see the pipeline's home. What it has found is not in the
    event: the task looks for itself, so that an event that came late or twice changes nothing. The deadline is, because
    ``dag.test()`` forgets all other arguments of a task that was deferred.

    :param home: the pipeline's home, as :attr:`~airflow_provider_exactlyonce.control.home.Home.location` has it
    :param token: start token of the driver; None, or empty in older ones, for one that is about to be started again
    :param request: the savepoint that it is asked for, None to wait for its end
    :param poll_interval: seconds between two checks
    :param deadline: seconds since the epoch
    """

    #: What is stored; a wire format, older ones stay readable.
    arguments: ClassVar[tuple[str, ...]] = ("home", "token", "request", "poll_interval", "deadline")
    commits: int | None = None

    def __init__(
        self, *, home: str, token: str | None, request: str | None, poll_interval: float, deadline: float
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.home = home
        self.token = token
        self.request = request
        self.poll_interval = poll_interval
        self.deadline = deadline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in self.arguments}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until there is something to do; yields one event, and not at once: the task has just looked."""
        await asyncio.sleep(min(self.poll_interval, max(0.0, self.deadline - time.time())))
        wait = {"token": self.token or None, "request": self.request, "commits": self.commits}
        async with subscribed(HomeChecker, self.home, wait, self.poll_interval) as subscription:
            while (remaining := self.deadline - time.time()) > 0:
                news = await subscription.changed(remaining)
                if news is not None and (news.found or news.refused):
                    break
        yield TriggerEvent({"deadline": self.deadline})  # type: ignore[no-untyped-call]
