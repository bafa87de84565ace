"""Waits in the triggerer for something that is found by looking again and again."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar, Final

from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from airflow_provider_exactlyonce.triggers.log_throttle import LogThrottle
from airflow_provider_exactlyonce.triggers.shared_poller import Checker, CheckResult, subscribed

#: Airflow's own time-out of the deferral comes this much after ours: it knows nothing of what is missing.
BACKSTOP_SECONDS: Final = 60.0


class PollReason(StrEnum):
    """Why the trigger has fired."""

    FOUND = "found"
    FIXED = "fixed"  # the target is fixed now; to be kept, and checked from now on
    TIMEOUT = "timeout"
    REFUSED = "refused"  # waiting does not help


class PollingTrigger(BaseTrigger):
    """Fire when a check succeeds, or the deadline has passed.

    It holds no state that a restart of the triggerer would lose, and no secret. Triggers of one connection share a
    poller.

    :param kafka_conn_id: connection of type ``kafka``
    :param poll_interval: seconds between two checks
    :param deadline: seconds since the epoch; None when Airflow started it without a worker
    :param backstop: without a deadline: how many seconds before Airflow's own time-out it is
    :param ends_task: end the task here when it is found, without a worker
    :param subject: the checker's arguments
    """

    checker: ClassVar[type[Checker]]

    def __init__(
        self,
        *,
        kafka_conn_id: str,
        poll_interval: float,
        deadline: float | None = None,
        backstop: float = BACKSTOP_SECONDS,
        ends_task: bool = False,
        **subject: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kafka_conn_id = kafka_conn_id
        self.poll_interval = poll_interval
        self.deadline = deadline
        self.backstop = backstop
        self.ends_task = ends_task
        self._names = tuple(subject)
        self.__dict__.update(subject)  # Airflow renders templates in attributes
        self.timeout_after: datetime | None = None  # Airflow sets it

    @property
    def subject(self) -> dict[str, Any]:
        """The arguments of the check."""
        return {name: getattr(self, name) for name in self._names}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments; the arguments are a wire format, older ones stay readable."""
        names = ("kafka_conn_id", "poll_interval", "deadline", "backstop", "ends_task")
        arguments = {**self.subject, **{name: getattr(self, name) for name in names}}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for a result; yields one event.

        A target that doesn't answer is asked again until the deadline, and named then.
        """
        deadline, throttle = self._deadline(), LogThrottle()
        async with subscribed(self.checker, self.kafka_conn_id, self.subject, self.poll_interval) as subscription:
            while True:
                remaining = deadline - time.time()
                wait = min(remaining, throttle.seconds)
                result = await subscription.changed(wait) if remaining > 0 else await subscription.now()
                event = None if result is None else self._event(result, deadline, is_over=remaining <= 0)
                if result is not None and isinstance(event, TaskSuccessEvent):
                    await self._push(result.found)
                if event is not None:
                    yield event
                    return
                if line := throttle.line(None if result is None else f"waiting: {result.missing}"):
                    self.log.info("%s", line)

    async def _push(self, value: Mapping[str, Any] | None) -> None:
        """Return the result as a worker does; in the event Airflow 3.3.2 would store it as a text that holds JSON."""
        from airflow.sdk.execution_time.xcom import XCom

        task: Any = self.task_instance
        task_key = {"dag_id": task.dag_id, "task_id": task.task_id, "run_id": task.run_id, "map_index": task.map_index}
        await XCom.aset("return_value", value, **task_key)

    def _deadline(self) -> float:
        if self.deadline is not None:
            return self.deadline
        if self.timeout_after is None:
            return float("inf")
        timeout = self.timeout_after if self.timeout_after.tzinfo else self.timeout_after.replace(tzinfo=UTC)
        return timeout.timestamp() - self.backstop

    def _event(self, result: CheckResult, deadline: float, *, is_over: bool) -> TriggerEvent | None:
        if result.refused:
            return _event(PollReason.REFUSED, missing=result.missing)
        if result.found is not None and self.ends_task:
            return TaskSuccessEvent()
        if result.found is not None:
            return _event(PollReason.FOUND, found=result.found)
        if result.fixed is not None:
            return _event(PollReason.FIXED, fixed=result.fixed, missing=result.missing, deadline=deadline)
        return _event(PollReason.TIMEOUT, missing=result.missing) if is_over else None


def _event(reason: PollReason, **facts: Any) -> TriggerEvent:
    return TriggerEvent({"reason": reason.value, **facts})  # type: ignore[no-untyped-call]
