"""Steps (a) and (d) of a run's start: checks that topics, ledger and checkpoint fit together."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint, parse_offsets, whole
from airflow_provider_exactlyonce.checkpoint.recovery import write_start
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.kafka.stable_offsets import PartitionOffsets
from airflow_provider_exactlyonce.kafka.topic_partition import by_partition
from airflow_provider_exactlyonce.ledger import topic_identity
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.tables.positions import Position, is_table

log = logging.getLogger(__name__)


def check_topic_ids(
    topic_ids: Mapping[str, str], tail: LedgerTail | None, elsewhere: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Check that topics are still those that the last commits used.

    :param topic_ids: {topic: id} as the pipeline's cluster has them
    :param elsewhere: the same of the topics that are read from other clusters
    :raises RefusedError: naming the first that was recreated
    """
    commit = tail.commit if tail else None
    topic_identity.check_sources({**topic_ids, **elsewhere}, topic_identity.known_sources(commit))
    topic_identity.check_sinks(topic_ids, topic_identity.known_sinks(commit))


def check_sources_go_on(tail: LedgerTail | None, declared: Sequence[SourceTopics]) -> None:
    """Check that all topics that have been read still are: Spark would plan a batch without them.

    :param declared: the topics of each declared source
    :raises RefusedError: naming the first that is read no more
    """
    commit = tail.commit if tail else None
    if commit is None:
        return
    read = parse_offsets(commit.offsets)
    if len(read.sources) != len(declared):
        return  # the function reads more than is declared, and Spark tells
    for topic in sorted(read.kafka_ends()):
        if not any(topic in source for source in declared):
            raise RefusedError(
                f"commit {commit.commit} has read topic {topic}, and the sources now read "
                f"{' and '.join(map(str, declared))}: what the topic has since would be lost. Let a source read it, or "
                "start a new pipeline, with a name and a home of its own"
            )


def check_first_offsets(
    cluster: PartitionOffsets, first: Mapping[str, Mapping[int, int]], topics: Sequence[str]
) -> None:
    """Check that a new pipeline can begin at the offsets that a source names.

    :param cluster: tells which partitions and offsets there are
    :param first: {topic: {partition: offset}}
    :param topics: those that the source reads now
    :raises RefusedError: naming the first partition that is not named, or not there, or has no such offset
    """
    starting_offsets, existing = by_partition(first), set(cluster.partitions(topics))
    for topic, partition in sorted(starting_offsets.keys() ^ existing):
        fault = "is not in" if (topic, partition) in existing else "does not exist, and is in"
        raise RefusedError(
            f"partition {partition} of topic {topic} {fault} the source's starting_offsets: a new pipeline that begins "
            "at offsets needs that of each partition"
        )
    starts, ends = cluster.starts(starting_offsets), cluster.last_stable(starting_offsets)
    for (topic, partition), offset in sorted(starting_offsets.items()):
        start, end = starts[topic, partition], ends[topic, partition]
        if is_table(topic) and not start <= offset <= end:
            raise RefusedError(
                f"starting_version of the source: table {topic} can be read from {Position.of(start)} on, and its next "
                f"one is {Position.of(end)}; the pipeline can't begin at {Position.of(offset)}. With "
                "initial_snapshot=True it can begin with the whole table at a starting_version that is there, such as "
                "the newest"
            )
        if not start <= offset <= end:
            raise RefusedError(
                f"starting_offsets of the source: partition {partition} of topic {topic} has the offsets {start} to "
                f"{end} (behind it transactions may be undecided), and the pipeline can't begin at {offset}"
            )


def settle_first_positions(
    checkpoint: Checkpoint, declared: Sequence[SourceTopics], begins: Mapping[str, Mapping[int, int]]
) -> None:
    """Write where the tables of a new checkpoint begin, as Spark's Kafka source does for its topics.

    :param declared: the topics of each source, in Spark's order
    :param begins: {table: {partition: position}} where the query's stream begins
    :raises ExactlyOnceError: when another start has meanwhile begun elsewhere
    """
    starts = checkpoint.kafka_starts(0)
    for number, topics in enumerate(declared):
        for table, position in topics.share(begins).items():
            if starts.get(table, position) != position:
                raise ExactlyOnceError(
                    f"{checkpoint.path} begins at {starts[table]} in table {table}, and this run was planned to begin "
                    f"at {position}: another run has begun meanwhile. Start the pipeline again"
                )
            if table not in starts and checkpoint.newest_commit() is None:
                text = json.dumps({table: {str(partition): start for partition, start in position.items()}})
                write_start(checkpoint.path / "sources" / str(number), text)


def reconcile(checkpoint: Checkpoint, lineage: Lineage, tail: LedgerTail) -> bool:
    """Step (d): make the checkpoint fit the ledger; returns whether commits have to be replayed first.

    Equal, or the ledger one batch ahead: go on; Spark runs that batch again and the coordinator only rebuilds its
    state. A missing, torn or different ``offsets/N`` of a committed batch is put back from the ledger. Torn entries
    that the ledger does not know are removed: their batch was never begun. Further behind, or in a lineage that was
    just restored: the replay brings it up.

    :raises RefusedError: when the checkpoint is ahead of the ledger, or so far behind that no replay is possible
    :raises ChangedError: when another driver has changed what was to be removed
    """
    committed = lineage.batch_of(tail.place.commit)
    newest = checkpoint.newest_commit()
    if newest is not None and newest <= committed:
        remove = checkpoint.removal("commits", newest)
        if whole(checkpoint.commit, newest) is None:
            log.warning("commits/%d of %s is torn and is removed; its batch is in the ledger", newest, checkpoint.path)
            remove()
    check_not_ahead(checkpoint, lineage, tail)
    if replay_is_needed(checkpoint, lineage, tail):
        return True
    if tail.commit is not None and committed >= 0 and tail.commit.lineage == lineage.id:
        _settle_offsets(checkpoint, tail.commit, committed)
    planned = checkpoint.newest_offsets()
    if planned is None or planned <= committed:
        return False
    remove = checkpoint.removal("offsets", planned)
    if whole(checkpoint.offsets, planned) is None:
        log.warning("offsets/%d of %s is torn and is removed; its batch was not begun", planned, checkpoint.path)
        remove()
    elif missing := _missing_topics(checkpoint, planned):
        log.warning("offsets/%d of %s lacks %s, and is planned again", planned, checkpoint.path, ", ".join(missing))
        remove()
    return False


def _missing_topics(checkpoint: Checkpoint, planned: int) -> list[str]:
    """Return the topics that a planned batch lacks of the one before it: Spark stops before it runs such a batch."""
    before, after = whole(checkpoint.offsets, planned - 1), whole(checkpoint.offsets, planned)
    return sorted(before.kafka_ends().keys() - after.kafka_ends().keys()) if before and after else []


def check_not_ahead(checkpoint: Checkpoint, lineage: Lineage, tail: LedgerTail) -> None:
    """Check that Spark has done no batch that the ledger does not know. Changes nothing.

    :raises RefusedError: when it has
    """
    committed, newest = lineage.batch_of(tail.place.commit), checkpoint.newest_commit()
    if newest is not None and newest > committed:
        raise RefusedError(
            f"{checkpoint.path} is at batch {newest}, and the ledger knows lineage {lineage.id} only up to batch "
            f"{committed}: the ledger was set back, or the checkpoint is of another pipeline"
        )


def replay_is_needed(checkpoint: Checkpoint, lineage: Lineage, tail: LedgerTail) -> bool:
    """Tell whether recorded commits have to be run again before the checkpoint fits its ledger. Changes nothing.

    :raises RefusedError: when it was rolled back in a way that no replay can repair
    """
    committed = lineage.batch_of(tail.place.commit)
    newest = _newest_whole(checkpoint)
    restored = tail.commit is not None and tail.commit.lineage != lineage.id
    if newest >= committed or (newest == committed - 1 and not restored):
        return False
    gap = f"{checkpoint.path} is at batch {newest}, and the ledger is at batch {committed} of lineage {lineage.id}: "
    if newest < 0:
        raise RefusedError(
            f"{gap}the checkpoint is empty or was rolled back, and its state is gone. Put it back from a copy, or "
            "restore a savepoint: exactlyonce restore"
        )
    newer = None if checkpoint.state_names_are_unique(newest) else checkpoint.newer_state(newest + 2)
    if newer is not None:
        raise RefusedError(
            f"{gap}the checkpoint was rolled back, and {newer} is newer: Spark would mix both states. Put the newer "
            "checkpoint back, or restore a savepoint: exactlyonce restore"
        )
    return True


def first_repeated(home: Home, lineage: Lineage | None) -> int:
    """Return the number of the first commit that Spark would run from the lineage's checkpoint as it is."""
    if lineage is None:
        return 1
    return lineage.commit_of(_newest_whole(Checkpoint(home.checkpoint(lineage.id)))) + 1


def _newest_whole(checkpoint: Checkpoint) -> int:
    """Return the newest batch that Spark is done with, -1 for none."""
    return max((batch for batch in checkpoint.batches("commits") if whole(checkpoint.commit, batch)), default=-1)


def _settle_offsets(checkpoint: Checkpoint, record: CommitRecord, batch: int) -> None:
    """Put the offsets of the newest commit back from the ledger, unless Spark is done with the batch at others."""
    offsets, recorded = whole(checkpoint.offsets, batch), parse_offsets(record.offsets)
    if offsets is not None and offsets.same_sources(recorded):
        return
    if offsets is not None and batch == checkpoint.newest_commit():
        raise RefusedError(
            f"{checkpoint.path}/offsets/{batch} ends at {offsets.kafka_ends()}, and commit {record.commit} in the "
            f"ledger at {recorded.kafka_ends()}: the state is of other data than the output. Put the checkpoint back "
            "from a copy"
        )
    state = "is missing or torn" if offsets is None else "differs from the ledger"
    log.warning("offsets/%d of %s %s and is put back from the ledger", batch, checkpoint.path, state)
    checkpoint.write_offsets(batch, record.offsets)
