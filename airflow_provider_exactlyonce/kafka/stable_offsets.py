"""Where partitions end: for readers of committed records, for all, and at a point of time.

Asks through confluent-kafka's admin client, joins no group and commits nothing. confluent_kafka is imported when it is
asked, not when this module is.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.kafka.answers import answer_of, has_code
from airflow_provider_exactlyonce.kafka.config import for_confluent
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.polling import retry_while

if TYPE_CHECKING:
    from confluent_kafka.admin import OffsetSpec

_TIMEOUT_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.2


class MissingPartitionError(ExactlyOnceError):
    """A partition does not exist, or is not there yet."""


@dataclass(frozen=True, kw_only=True)
class DescribedTopic:
    """A topic as the cluster has it.

    :param topic_id: as ledger records have it
    """

    topic_id: str
    partitions: tuple[int, ...]


class PartitionOffsets(ABC):
    """Offsets of partitions, wherever they are.

    :cvar where: how messages call the cluster
    """

    where = "this cluster"

    def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Return all partitions of topics.

        :raises ExactlyOnceError: when a topic does not exist
        """
        return [
            (topic, number)
            for topic, description in self._existing(topics).items()
            for number in description.partitions
        ]

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of topics, as the ledger's records have them.

        :raises ExactlyOnceError: when a topic does not exist
        """
        return {topic: description.topic_id for topic, description in self._existing(topics).items()}

    def _existing(self, topics: Iterable[str]) -> dict[str, DescribedTopic]:
        wanted = set(topics)
        descriptions = self.describe(wanted)
        for topic in sorted(wanted - descriptions.keys()):
            raise ExactlyOnceError(f"topic {topic} does not exist on {self.where}")
        return descriptions

    @abstractmethod
    def describe(self, topics: Iterable[str]) -> dict[str, DescribedTopic]:
        """Return the existing topics among these, by name."""

    def last_stable(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offsets: below them every transaction is decided, and committed rows are readable."""
        return self._ask(partitions, lambda spec: spec.latest(), committed=True)

    def starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where the logs start."""
        return self._ask(partitions, lambda spec: spec.earliest(), committed=True)

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets after the last records, whether their transactions are decided or not."""
        return self._ask(partitions, lambda spec: spec.latest(), committed=False)

    def at_timestamp(self, partitions: Iterable[TopicPartition], milliseconds: int) -> dict[TopicPartition, int | None]:
        """Return the offsets of the first records with this timestamp or a later one, None where there is none."""
        offsets = self._ask(partitions, lambda spec: spec.for_timestamp(milliseconds), committed=False)
        return {partition: offset if offset >= 0 else None for partition, offset in offsets.items()}

    @abstractmethod
    def _ask(
        self, partitions: Iterable[TopicPartition], spec: Callable[[Any], OffsetSpec], *, committed: bool
    ) -> dict[TopicPartition, int]:
        """Return the offsets that a specification asks for."""


class RoutedOffsets(PartitionOffsets):
    """Offsets of topics on several clusters, each asked for its own.

    :param cluster_of: the cluster of a topic
    """

    def __init__(self, cluster_of: Callable[[str], PartitionOffsets]) -> None:
        self._cluster_of: Final = cluster_of

    @override
    def _existing(self, topics: Iterable[str]) -> dict[str, DescribedTopic]:
        by_cluster = self._by_cluster(topics).items()
        return {
            name: topic for cluster, own_topics in by_cluster for name, topic in cluster._existing(own_topics).items()
        }

    @override
    def describe(self, topics: Iterable[str]) -> dict[str, DescribedTopic]:
        by_cluster = self._by_cluster(topics).items()
        return {
            name: topic for cluster, own_topics in by_cluster for name, topic in cluster.describe(own_topics).items()
        }

    def _by_cluster(self, topics: Iterable[str]) -> dict[PartitionOffsets, list[str]]:
        by_cluster: dict[PartitionOffsets, list[str]] = {}
        for topic in topics:
            by_cluster.setdefault(self._cluster_of(topic), []).append(topic)
        return by_cluster

    @override
    def _ask(
        self, partitions: Iterable[TopicPartition], spec: Callable[[Any], OffsetSpec], *, committed: bool
    ) -> dict[TopicPartition, int]:
        by_cluster: dict[PartitionOffsets, list[TopicPartition]] = {}
        for partition in partitions:
            by_cluster.setdefault(self._cluster_of(partition[0]), []).append(partition)
        return {
            partition: offset
            for cluster, own_partitions in by_cluster.items()
            for partition, offset in cluster._ask(own_partitions, spec, committed=committed).items()
        }


class StableOffsets(PartitionOffsets):
    """Offsets of a cluster's partitions.

    :param config: client configuration in librdkafka's names; ``bootstrap.servers`` is required
    :param where: how messages call the cluster
    """

    def __init__(self, config: Mapping[str, Any], where: str = PartitionOffsets.where) -> None:
        self.where = where
        self._config: Final = for_confluent(config)
        self._connect()

    def _connect(self) -> None:
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient(self._config)

    def close(self) -> None:
        """Close the connections."""
        self._admin.__exit__(None, None, None)  # it has no ``close``

    def cluster_id(self) -> str:
        """Return the cluster's id, which no other cluster has."""
        return str(self._admin.describe_cluster(request_timeout=_TIMEOUT_SECONDS).result().cluster_id)

    def topics(self) -> list[str]:
        """Return the names of all topics that we may see."""
        return sorted(self._admin.list_topics(timeout=_TIMEOUT_SECONDS).topics)

    @override
    def describe(self, topics: Iterable[str]) -> dict[str, DescribedTopic]:
        from confluent_kafka import KafkaError, TopicCollection

        wanted = sorted(set(topics))
        if not wanted:
            return {}
        descriptions: dict[str, DescribedTopic] = {}
        described = self._admin.describe_topics(TopicCollection(wanted), request_timeout=_TIMEOUT_SECONDS)
        for topic in wanted:
            answer = answer_of(described[topic], KafkaError.UNKNOWN_TOPIC_OR_PART)
            if answer is None:
                continue
            bits = (answer.topic_id.get_most_significant_bits(), answer.topic_id.get_least_significant_bits())
            high, low = (half % 2**64 for half in bits)
            numbers = tuple(partition.id for partition in answer.partitions)
            descriptions[topic] = DescribedTopic(topic_id=str(uuid.UUID(int=high << 64 | low)), partitions=numbers)
        return descriptions

    @override
    def _ask(
        self, partitions: Iterable[TopicPartition], spec: Callable[[Any], OffsetSpec], *, committed: bool
    ) -> dict[TopicPartition, int]:
        from confluent_kafka import KafkaError
        from confluent_kafka.admin import OffsetSpec

        specs = {partition: spec(OffsetSpec) for partition in partitions}
        if not specs:
            return {}
        moved = (
            KafkaError.NOT_LEADER_FOR_PARTITION,
            KafkaError.FENCED_LEADER_EPOCH,
            KafkaError.UNKNOWN_LEADER_EPOCH,
        )

        def passes(error: Exception) -> bool:
            if not has_code(error, *moved):
                return False
            # After a broker's restart a client goes on asking with the leader's old epoch; a new one asks who leads.
            self._connect()
            return True

        def ask() -> dict[TopicPartition, int]:
            return self._ask_once(specs, committed=committed)

        return retry_while(passes, ask, seconds=_TIMEOUT_SECONDS, poll_seconds=_PAUSE_SECONDS)

    def _ask_once(self, specs: Mapping[TopicPartition, Any], *, committed: bool) -> dict[TopicPartition, int]:
        import confluent_kafka
        from confluent_kafka import IsolationLevel, KafkaError

        futures = self._admin.list_offsets(
            {confluent_kafka.TopicPartition(*partition): spec for partition, spec in specs.items()},
            isolation_level=IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED,
            request_timeout=_TIMEOUT_SECONDS,
        )
        answers: dict[TopicPartition, int] = {}
        for partition, future in futures.items():
            answer = answer_of(future, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._NOENT)
            if answer is None:
                raise MissingPartitionError(
                    f"partition {partition.topic}-{partition.partition} does not exist on {self.where}, or has "
                    "no leader"
                )
            answers[(partition.topic, partition.partition)] = int(answer.offset)
        return answers
