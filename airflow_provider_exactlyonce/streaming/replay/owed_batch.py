"""The batch that a sink has and the pipeline's ledger lacks is planned as the sink has it, whatever was planned since.

A driver may die between the commits of a sink and of the ledger. The sink then has rows without a record, so the next
commit must be made of the same input. The checkpoint plans it so, unless a restore, a rescale or a smaller cut has made
it anew, or a host's crash has torn the plan. The sink's own entry decides.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_exactlyonce.checkpoint.layout import BatchOffsets, Checkpoint, ClaimedCheckpoint, whole
from airflow_provider_exactlyonce.checkpoint.offsets_text import composed
from airflow_provider_exactlyonce.control.home import Lineage
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka.topic_partition import by_partition
from airflow_provider_exactlyonce.ledger.commit_range import CommitSpan, check_input
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.streaming.spark.steering import fixed_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry

log = logging.getLogger(__name__)


def plan(
    checkpoint: ClaimedCheckpoint,
    lineage: Lineage,
    owed: SinkEntry,
    clusters: SourceClusters,
    spark: SparkSession | None,
    declared: Sequence[SourceTopics],
) -> None:
    """Make the checkpoint plan the batch that is owed; all before it are done.

    :param owed: the sink's entry
    :param clusters: those that its sources are read from
    :param spark: tells the settings of a checkpoint that has no batch yet
    :param declared: the topics of each declared source, in Spark's order
    :raises RefusedError: when the batch can't follow the checkpoint, or its input is gone
    """
    number = lineage.batch_of(owed.commit)
    previous, planned = whole(checkpoint.offsets, number - 1), whole(checkpoint.offsets, number)
    known = previous or planned
    ends = {
        topic: {partition: end for partition, (_, end) in partitions.items()}
        for topic, partitions in owed.source.items()
    }
    _check_start(checkpoint, lineage, owed)
    if planned is not None and planned.kafka_ends() == ends:
        return
    span = CommitSpan(first=owed.commit, last=owed.commit)
    span.reads(owed.commit, owed.source)
    check_input(clusters, span)
    sources = _source_topics(checkpoint, known, declared)
    if sorted(topic for source in sources for topic in source.share(ends)) != sorted(ends):
        raise RefusedError(
            f"commit {owed.commit} of a sink was made of the topics {', '.join(sorted(ends))}, and {checkpoint.path} "
            f"reads {', '.join(map(str, sources)) or 'none'}: start the version of the job that made it"
        )
    conf = known.conf if known is not None else fixed_settings(spark) if spark is not None else {}
    timestamp = int(time.time() * 1000) if owed.batch_timestamp is None else owed.batch_timestamp
    watermark = _watermark(checkpoint, number, owed)
    checkpoint.plan(number, composed(conf, sources, ends, timestamp=timestamp, watermark=watermark))
    log.warning(
        "batch %d is planned as run %d has committed it to a sink: commit %d, which the ledger lacks",
        number,
        owed.run,
        owed.commit,
    )


def _check_start(checkpoint: Checkpoint, lineage: Lineage, owed: SinkEntry) -> None:
    """Check that the batch goes on where the checkpoint is."""
    starts = by_partition(checkpoint.kafka_starts(lineage.batch_of(owed.commit)))
    owed_ranges = by_partition(owed.source)
    for (topic, partition), start in starts.items():
        owed_start, _ = owed_ranges.get((topic, partition), (None, None))
        if owed_start == start:
            continue
        cause = (
            "a restore in mode reemit has put it there. Restore in mode suppress, run the pipeline until that commit "
            "is in the ledger, and reemit then"
            if lineage.reemits is not None
            else "it is of another pipeline, or was changed. Put it back from a copy"
        )
        raise RefusedError(
            f"a sink has commit {owed.commit}, which the ledger lacks, from offset {owed_start} of {topic}-{partition} "
            f"on, and {checkpoint.path} goes on at {start}: {cause}"
        )


def _source_topics(
    checkpoint: Checkpoint, known: BatchOffsets | None, declared: Sequence[SourceTopics]
) -> list[SourceTopics]:
    """Return the topics of each source in Spark's order; a checkpoint lacks topics that no batch has read before."""
    if known is not None:
        topics = [tuple(position or ()) for position in known.positions]
    else:
        topics = [tuple(offsets) for offsets in checkpoint.initial_positions()]
    # Its function may read more than the pipeline declares.
    return list(declared) if len(declared) == len(topics) else [SourceTopics(names=names) for names in topics]


def _watermark(checkpoint: Checkpoint, number: int, owed: SinkEntry) -> int:
    if owed.watermark is not None:
        return owed.watermark
    last_commit = checkpoint.commit(number - 1)
    return last_commit.next_watermark if last_commit is not None else 0
