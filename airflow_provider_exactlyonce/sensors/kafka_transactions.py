"""The sensor that waits until what is in topics is decided, whoever wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.sensors.polling import PollingSensor
from airflow_provider_exactlyonce.triggers.kafka_transactions import KafkaTransactionsTrigger, look

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_exactlyonce.triggers.polling import Look, PollingTrigger

_KEY: Final = "exactlyonce_high_watermarks"


class KafkaTransactionsSensor(PollingSensor):
    """Wait until everything that is in topics now is committed or aborted, by any producer.

    The high watermarks are taken once, at the first try; the sensor is done when the last stable offset of each
    partition has passed its own. A consumer at read_committed that starts afterwards sees all of it that was committed.
    Retries keep the high watermarks; a task that is cleared takes new ones. It joins no group and commits nothing.

    Returns ``offsets``: ``{topic: {partition: high watermark}}``. While it waits, and at a time-out, it names the
    transactional ids that hold readers back, and for how long.

    :param topics: one topic or several. (templated)
    :param kafka_conn_id: connection of type ``kafka``. (templated)
    :param deferrable: wait in the triggerer; default from ``[operators] default_deferrable``
    :param poke_interval: seconds between two looks
    """

    template_fields: Sequence[str] = ("topics", "kafka_conn_id")
    ui_color = "#cde7d8"

    def __init__(self, *, topics: Sequence[str] | str, kafka_conn_id: str = "kafka_default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topics = topics
        self.kafka_conn_id = kafka_conn_id
        self._targets: dict[str, dict[str, int]] = {}

    def prepare(self, context: Context) -> None:
        """Take the high watermarks, or find those of an earlier try.

        :raises RefusedError: when no topic is given
        :raises ExactlyOnceError: when one does not exist, or the cluster does not answer
        """
        from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # its stub lacks it

        from airflow_provider_exactlyonce.exceptions import RefusedError

        topics = [self.topics] if isinstance(self.topics, str) else [str(topic) for topic in self.topics]
        if not topics:
            raise RefusedError(f"topics={self.topics!r}: give at least one")
        store: Any = context.get("task_state_store")
        asked_for: dict[str, Any] = {
            "topics": topics,
            "clear_number": getattr(context.get("dag_run"), "clear_number", 0),
        }
        kept: Any = store.get(_KEY) if store is not None else None
        if kept is not None and {name: kept[name] for name in asked_for} == asked_for:
            self._targets = kept["offsets"]
            return
        self._targets = self._present(topics)
        self.log.info("waiting until everything below these offsets is decided: %s", self._targets)
        if store is not None:
            store.set(_KEY, {**asked_for, "offsets": self._targets}, retention=NEVER_EXPIRE)

    def _present(self, topics: Sequence[str]) -> dict[str, dict[str, int]]:
        from confluent_kafka import KafkaException

        from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
        from airflow_provider_exactlyonce.hooks.kafka import client_config
        from airflow_provider_exactlyonce.transactions import undecided

        try:
            return undecided.present(client_config(self.kafka_conn_id), topics)
        except (KafkaException, ExactlyOnceError) as error:
            raise ExactlyOnceError(f"connection {self.kafka_conn_id}: {error}") from error

    def look(self, *, blame: bool) -> Look:
        """Ask for the last stable offsets."""
        return look(self.kafka_conn_id, self._targets, blame=blame)

    def trigger(self, deadline: float) -> PollingTrigger:
        """Return what waits in the triggerer."""
        return KafkaTransactionsTrigger(
            targets=self._targets,
            kafka_conn_id=self.kafka_conn_id,
            poll_interval=self.poke_interval,
            deadline=deadline,
        )
