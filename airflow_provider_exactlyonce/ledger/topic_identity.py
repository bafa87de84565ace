"""Whether topics are still those that the pipeline has read and written: by their ids, which a name does not keep."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.tables.positions import is_table


@dataclass(frozen=True)
class KnownTopic:
    """A topic as the ledger knows it.

    :param topic_id: its id
    :param commit: the newest commit that used it
    """

    topic_id: str
    commit: int


def known_sources(record: CommitRecord | None) -> dict[str, KnownTopic]:
    """Return the topics that the pipeline reads as of a commit: each batch has them all, read from or not."""
    return {name: KnownTopic(id, record.commit) for name, id in record.source_topic_ids.items()} if record else {}


def known_sinks(record: CommitRecord | None) -> dict[str, KnownTopic]:
    """Return the topics that the pipeline has written to as of a commit."""
    if record is None:
        return {}
    written = {name: KnownTopic(id, record.commit) for name, id in record.sink_topic_ids.items()}
    return {**{name: KnownTopic(*topic) for name, topic in record.earlier_sink_topics.items()}, **written}


def check_sources(topic_ids: Mapping[str, str], known: Mapping[str, KnownTopic]) -> None:
    """Check that topics are those that were read.

    :param topic_ids: {topic: id} as the cluster has them
    :raises RefusedError: naming the first that was recreated
    """
    for name, topic_id, topic in _recreated(topic_ids, known):
        kind = "table" if is_table(name) else "topic"
        raise RefusedError(
            f"source {kind} {name} was recreated: commit {topic.commit} read it with id {topic.topic_id}, and its id "
            f"is {topic_id} now. What it held and no commit has read is gone, and the checkpoint's offsets mean "
            "nothing in it: start a new pipeline, with a name and a home of its own"
        )


def check_sources_are_there(
    topics: Collection[str], known: Mapping[str, KnownTopic], patterns: Iterable[SourceTopics]
) -> None:
    """Check that topics which a pattern has found once can still be read.

    :param topics: those that the sources read now
    :raises RefusedError: naming the first that is gone
    """
    for pattern in patterns:
        for name, topic in sorted(pattern.share(known).items()):
            if name not in topics:
                raise RefusedError(
                    f"source topic {name}, which commit {topic.commit} read by {pattern}, does not exist any "
                    "more. What it held and no commit has read is gone: start a new pipeline, with a name and "
                    "a home of its own, or accept the loss with options={'failOnDataLoss': 'false'}"
                )


def check_sinks(topic_ids: Mapping[str, str], known: Mapping[str, KnownTopic]) -> None:
    """Check that topics are those that were written to.

    :param topic_ids: {topic: id} as the cluster has them
    :raises RefusedError: naming the first that was recreated
    """
    for name, topic_id, topic in _recreated(topic_ids, known):
        raise RefusedError(
            f"sink topic {name} was recreated: commit {topic.commit} wrote to it with id {topic.topic_id}, and its "
            f"id is {topic_id} now. What the commits up to {topic.commit} wrote to it is gone: start a new pipeline, "
            "which writes it again. If rows name the topic and it was deleted on purpose, delete it, and make "
            "it again after the pipeline's next commit, which takes note of that"
        )


def _recreated(topic_ids: Mapping[str, str], known: Mapping[str, KnownTopic]) -> list[tuple[str, str, KnownTopic]]:
    return [
        (name, topic_id, known[name])
        for name, topic_id in topic_ids.items()
        if name in known and known[name].topic_id != topic_id
    ]
