"""One Spark micro-batch, as the checkpoint plans it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_exactlyonce.checkpoint.layout import BatchOffsets, Checkpoint, KafkaOffsets, TornFileError
from airflow_provider_exactlyonce.exceptions import BatchFailedError, ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.kafka.wire import UnansweredError
from airflow_provider_exactlyonce.ledger.records import CommitRecord, SourceRanges
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The input of a micro-batch.

    :param lineage: Spark's query id
    :param number: Spark's batch id
    :param source: {topic: {partition: (start, end)}}, end exclusive
    :param source_topic_ids: {topic: id}
    :param recorded: the ledger's record of the batch in a replay of older commits, None otherwise
    """

    lineage: str
    number: int
    offsets: BatchOffsets
    source: SourceRanges
    source_topic_ids: Mapping[str, str]
    recorded: CommitRecord | None = None


def planned_batch(checkpoint: Checkpoint, clusters: SourceClusters, lineage: str, number: int) -> Batch:
    """Read Spark's plan for a batch.

    :param clusters: of the sources
    :raises ExactlyOnceError: when the checkpoint lacks the batch's offsets, or they aren't whole
    :raises RefusedError: when two sources read one topic
    :raises BatchFailedError: when Kafka does not answer, or does not know a topic or partition
    """
    try:
        offsets = checkpoint.offsets(number)
        previous_offsets = checkpoint.offsets(number - 1) if number else None
    except TornFileError as error:
        raise ExactlyOnceError(f"{checkpoint.path}: {error}") from error
    if offsets is None or (number and previous_offsets is None):
        raise ExactlyOnceError(f"{checkpoint.path}/offsets lacks batch {number} or the one before it")
    if twice := offsets.of_several_sources:
        raise RefusedError(
            f"two sources of this query read {twice[0]}, each up to an end of its own, and the ledger has one: let one "
            "of them read it"
        )
    starts = previous_offsets.kafka_ends() if previous_offsets else {}
    if any(ends.keys() - starts.get(topic, {}).keys() for topic, ends in offsets.kafka_ends().items()):
        starts = checkpoint.kafka_starts(number)  # of partitions that it reads first; else no look is needed
    try:
        source, topic_ids = _source_ranges(offsets, starts, clusters)
    except UnansweredError as error:
        raise BatchFailedError(f"source of batch {number}: {error}") from error
    return Batch(lineage=lineage, number=number, offsets=offsets, source=source, source_topic_ids=topic_ids)


def _source_ranges(
    offsets: BatchOffsets, starts: KafkaOffsets, clusters: SourceClusters
) -> tuple[dict[str, dict[int, tuple[int, int]]], dict[str, str]]:
    source: dict[str, dict[int, tuple[int, int]]] = {}
    topic_ids: dict[str, str] = {}
    for topic, ends in offsets.kafka_ends().items():
        cluster = clusters.of(topic)
        topic_id = cluster.topic_id(topic)
        if topic_id is None:
            raise BatchFailedError(
                f"source topic {topic} does not exist any more on {cluster}, or the broker that was asked does not "
                "know it yet"
            )
        topic_ids[topic] = topic_id
        partition_starts = starts.get(topic, {})
        if ends.keys() - partition_starts.keys():  # partitions that were added since are read from their beginning
            partition_starts = {**cluster.earliest(topic), **partition_starts}
        if unknown := sorted(ends.keys() - partition_starts.keys()):
            raise BatchFailedError(
                f"partition {topic}-{unknown[0]}, which Spark has found on {cluster}, is not known to the broker that "
                "was asked yet"
            )
        source[topic] = {partition: (partition_starts[partition], end) for partition, end in sorted(ends.items())}
    return source, topic_ids
