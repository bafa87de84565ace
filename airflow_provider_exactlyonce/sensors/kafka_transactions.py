"""The sensor that waits until all transactions in topics are decided, of any producer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.hooks import arguments
from airflow_provider_exactlyonce.sensors.polling import PollingSensor
from airflow_provider_exactlyonce.triggers.kafka_transactions import KafkaTransactionsTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class KafkaTransactionsSensor(PollingSensor):
    """Wait until everything that is in topics now is committed or aborted, by any producer.

    The high watermarks are taken once, at the first try; the sensor is done when the last stable offset of each
    partition has passed its own. A consumer at read_committed that starts afterwards sees all of it that was committed.
    Retries keep the high watermarks; a task that is cleared reads them anew. It joins no group and commits nothing.

    Returns ``offsets``: ``{topic: {partition: high watermark}}``. While it waits, and at a time-out, it names the
    transactional ids that hold readers back, and for how long.

    :param topics: one topic or several. (templated)
    :param kafka_conn_id: connection of type ``kafka``. (templated)
    :param deferrable: wait in the triggerer; default from ``[operators] default_deferrable``
    :param poke_interval: seconds between two checks
    """

    template_fields: Sequence[str] = ("topics", "kafka_conn_id")
    ui_color = "#cde7d8"
    trigger_cls = KafkaTransactionsTrigger

    def __init__(self, *, topics: Sequence[str] | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topics = topics
        arguments.check(self, self._check_topics, "topics")

    def prepare(self, context: Context) -> dict[str, Any]:
        """Take the high watermarks, or find those of an earlier try.

        :raises RefusedError: when no topic is given
        :raises ExactlyOnceError: when one does not exist, or the cluster does not answer
        """
        with arguments.reading(self, "topics"):
            self._check_topics()
        return self.kept(context) or self.keep(context, {"targets": self._present()})

    def asked_for(self) -> dict[str, Any]:
        """Return the topics."""
        return {"topics": self._topics()}

    def _check_topics(self) -> None:
        if not self._topics() or not all(self._topics()):
            raise RefusedError(f"topics={self.topics!r}: give at least one")

    def _topics(self) -> list[str]:
        return [self.topics] if isinstance(self.topics, str) else [str(topic) for topic in self.topics or ()]

    def _present(self) -> dict[str, dict[str, int]]:
        from confluent_kafka import KafkaException

        from airflow_provider_exactlyonce.hooks.kafka import client_config
        from airflow_provider_exactlyonce.transactions import pending

        config = client_config(self.kafka_conn_id)
        try:
            return pending.present(config, self._topics())
        except (KafkaException, ExactlyOnceError) as error:
            raise ExactlyOnceError(f"connection {self.kafka_conn_id}: {error}") from error
