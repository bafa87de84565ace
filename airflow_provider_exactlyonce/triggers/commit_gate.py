"""Waits for a commit in the triggerer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from airflow.triggers.base import BaseTrigger, TriggerEvent

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.ledger.gate import Verdict


class GateReason(StrEnum):
    """Why the trigger has fired."""

    OPEN = "open"
    TARGET_RESOLVED = "target_resolved"  # a timestamp has become offsets; to be asked for again with them
    TIMEOUT = "timeout"
    REFUSED = "refused"  # waiting does not help


class CommitGateTrigger(BaseTrigger):
    """Fire when everything up to a target is readable, or the deadline has passed.

    It holds nothing that a restart of the triggerer would change: the deadline is a point of time, the target is fixed,
    and the connection is fetched by its id at each look, so that no secret is stored with the trigger.

    :param pipeline: name of the pipeline
    :param target: what :meth:`~airflow_provider_exactlyonce.ledger.gate.GateTarget.to_json` returned
    :param kafka_conn_id: connection of type ``kafka``
    :param poll_interval: seconds between two looks
    :param deadline: seconds since the epoch
    """

    def __init__(
        self, *, pipeline: str, target: Mapping[str, Any], kafka_conn_id: str, poll_interval: float, deadline: float
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline = pipeline
        self.target = dict(target)
        self.kafka_conn_id = kafka_conn_id
        self.poll_interval = poll_interval
        self.deadline = deadline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments; the arguments are a wire format, older ones stay readable."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "pipeline": self.pipeline,
                "target": self.target,
                "kafka_conn_id": self.kafka_conn_id,
                "poll_interval": self.poll_interval,
                "deadline": self.deadline,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until something can be said; yields one event.

        A cluster that doesn't answer is asked again until the deadline, and named then.
        """
        from airflow_provider_exactlyonce.exceptions import Decision, ExactlyOnceError

        missing = ""
        while True:
            try:
                verdict = await asyncio.to_thread(look, self.kafka_conn_id, self.pipeline, self.target)
            except ExactlyOnceError as error:
                if error.decision is Decision.REFUSE:
                    yield _event(GateReason.REFUSED, missing=str(error))
                    return
                missing = str(error)
                self.log.warning("%s", error)
            else:
                if verdict.open:
                    yield _event(GateReason.OPEN, commit=verdict.commit)
                    return
                if verdict.target.to_json() != self.target:
                    yield _event(GateReason.TARGET_RESOLVED, target=verdict.target.to_json(), missing=verdict.missing)
                    return
                if verdict.missing != missing:
                    self.log.info("waiting for %s: %s", self.pipeline, verdict.missing)
                missing = verdict.missing
            left = self.deadline - time.time()
            if left <= 0:
                yield _event(GateReason.TIMEOUT, missing=missing)
                return
            await asyncio.sleep(min(self.poll_interval, left))


def look(kafka_conn_id: str, pipeline: str, target: Mapping[str, Any]) -> Verdict:
    """Look once; blocks. The sensor's poke and the trigger both come through here.

    :param target: the gate's target, as JSON or as people write it
    :raises ExactlyOnceError: when it can't be said
    :raises ValueError: when the target can't be read
    """
    from confluent_kafka import KafkaException

    from airflow_provider_exactlyonce.exceptions import Decision, ExactlyOnceError
    from airflow_provider_exactlyonce.hooks.kafka import client_config
    from airflow_provider_exactlyonce.ledger.gate import GateTarget, check

    parsed = GateTarget.parse(**target)
    try:
        return check(client_config(kafka_conn_id), pipeline, parsed)
    except (KafkaException, ExactlyOnceError) as error:
        if isinstance(error, ExactlyOnceError) and error.decision is Decision.REFUSE:
            raise
        raise ExactlyOnceError(f"connection {kafka_conn_id}: {error}") from error


def _event(reason: GateReason, **facts: Any) -> TriggerEvent:
    return TriggerEvent({"reason": reason.value, **facts})  # type: ignore[no-untyped-call]


#: Airflow's own time-out of the deferral comes this much after ours: it knows nothing of what is missing.
BACKSTOP_SECONDS: Final = 60.0
