"""Waits in the triggerer for something that is found by looking again and again."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from airflow.triggers.base import BaseTrigger, TriggerEvent

#: How often it is found out again who is to blame for the waiting.
BLAME_SECONDS: Final = 30.0


class PollReason(StrEnum):
    """Why the trigger has fired."""

    FOUND = "found"
    TIMEOUT = "timeout"
    REFUSED = "refused"  # waiting does not help


@dataclass(frozen=True, kw_only=True)
class Look:
    """What one look has found.

    :param found: the task's result, None while it has to wait
    :param missing: what it waits for
    """

    found: dict[str, Any] | None = None
    missing: str = ""


class PollingTrigger(BaseTrigger):
    """Fire when a look has found what is waited for, or the deadline has passed.

    It holds nothing that a restart of the triggerer would change, and no secret.

    :param poll_interval: seconds between two looks
    :param deadline: seconds since the epoch
    :param subject: what :meth:`look` needs
    """

    def __init__(self, *, poll_interval: float, deadline: float, **subject: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.poll_interval = poll_interval
        self.deadline = deadline
        self.subject = subject

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments; the arguments are a wire format, older ones stay readable."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {**self.subject, "poll_interval": self.poll_interval, "deadline": self.deadline},
        )

    @abstractmethod
    def look(self, *, blame: bool) -> Look:
        """Look once; blocks.

        :param blame: find out who is to blame, too, which may be costly
        :raises ExactlyOnceError: when it can't be said
        """

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until something can be said; yields one event.

        What doesn't answer is asked again until the deadline, and named then.
        """
        from airflow_provider_exactlyonce.exceptions import Decision, ExactlyOnceError

        missing, blamed = "", 0.0
        while True:
            left = self.deadline - time.time()
            blame = left <= 0 or time.monotonic() - blamed >= BLAME_SECONDS
            blamed = time.monotonic() if blame else blamed
            try:
                now = await asyncio.to_thread(self.look, blame=blame)
            except ExactlyOnceError as error:
                if error.decision is Decision.REFUSE:
                    yield _event(PollReason.REFUSED, missing=str(error))
                    return
                now = Look(missing=str(error))
            if now.found is not None:
                yield _event(PollReason.FOUND, found=now.found)
                return
            if left <= 0:
                yield _event(PollReason.TIMEOUT, missing=now.missing)
                return
            if blame or now.missing != missing:
                self.log.info("waiting: %s", now.missing)
            missing = now.missing
            await asyncio.sleep(min(self.poll_interval, left))


def asked(conn_id: str, call: Callable[[], Look]) -> Look:
    """Call what asks a cluster, so that whatever the client raises names the connection.

    :raises ExactlyOnceError: when the cluster can't say
    """
    from confluent_kafka import KafkaException

    from airflow_provider_exactlyonce.exceptions import Decision, ExactlyOnceError

    try:
        return call()
    except (KafkaException, ExactlyOnceError) as error:
        if isinstance(error, ExactlyOnceError) and error.decision is Decision.REFUSE:
            raise
        raise ExactlyOnceError(f"connection {conn_id}: {error}") from error


def _event(reason: PollReason, **facts: Any) -> TriggerEvent:
    return TriggerEvent({"reason": reason.value, **facts})  # type: ignore[no-untyped-call]
