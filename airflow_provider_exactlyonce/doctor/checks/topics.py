"""Whether a start would accept brokers and topics, and whether unread input stays until it is read."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_exactlyonce.doctor import expiry
from airflow_provider_exactlyonce.doctor.facts import Facts
from airflow_provider_exactlyonce.doctor.findings import Finding
from airflow_provider_exactlyonce.ledger.records import ledger_topic

_DO = {
    "unsafe-setting": "change the setting: the pipeline's next start is refused",
    "topic-missing": "put it back from a copy, with its offsets; a new one means a new pipeline",
    "topic-unavailable": "bring the brokers back, or grant what is missing",
}


def are_accepted(facts: Facts) -> Iterator[Finding]:
    """Check brokers and topics, as a start does."""
    topics = facts.topics
    if topics is None:
        return
    if topics.cluster is not None:
        yield Finding("cluster-refused", topics.cluster, "repair it: the pipeline's next start is refused")
    for (_, name), (kind, message) in topics.problems.items():
        if name != ledger_topic(facts.pipeline) or kind != "topic-missing":  # that has a finding of its own
            yield Finding(kind, message, _DO[kind])
    if topics.recreated is not None:
        yield Finding("topic-recreated", topics.recreated, "start a new pipeline with a home of its own")


def keep_unread_input(facts: Facts) -> Iterator[Finding]:
    """Check that the input after the newest commit is there, and stays until it is read."""
    topics, commit = facts.topics, facts.tail.commit if facts.tail else None
    if topics is None or commit is None or topics.recreated is not None:
        return
    for (topic, partition), end in commit.ends.items():
        earliest = topics.earliest.get((topic, partition), end)
        if earliest > end:
            yield Finding(
                "unread-input-gone",
                f"{topic}-{partition}, offsets {end} to {earliest - 1}, was removed before the pipeline has read "
                f"it: the newest commit, {commit.commit}, ends at {end}",
                "those records are lost to it, and Spark refuses to go on without them; begin a new pipeline "
                "where the topic begins, and keep its records longer",
            )
    soon = None if facts.runs else expiry.first(facts, commit.ends)
    if soon is not None:
        yield Finding(
            "unread-input-expiring",
            f"{soon.topic}-{soon.partition}, offset {soon.offset}, is not read yet, and {soon.when}",
            f"start the pipeline before, or let {soon.topic} keep more",
        )


def are_not_compacted(facts: Facts) -> Iterator[Finding]:
    """Check that a batch that is run again reads the same records as before."""
    for name, settings in facts.topics.settings.items() if facts.topics else ():
        if settings.is_compacted:
            yield Finding(
                "source-compacted",
                f"cleanup.policy of source topic {name} has compact: a batch that is run again may find fewer records "
                "than before, and give other rows",
                "set cleanup.policy to delete, or read a topic that is not compacted",
            )
