"""Looks at the transactions that hold back a pipeline's readers, or the pipeline itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.doctor.facts import Facts, TransactionFacts
from airflow_provider_exactlyonce.doctor.probes import topics as topic_probe
from airflow_provider_exactlyonce.ledger.records import ledger_topic, pipeline_of, transactional_id
from airflow_provider_exactlyonce.transactions.liveness import why_taken_for_alive

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.kafka.wire import WireClient

#: One that is open and unknown to its coordinator for less may just be ending.
_SILENT_SECONDS: Final = 60.0


def look(facts: Facts, client: WireClient) -> TransactionFacts:
    """Read the state of the pipeline's own transactional id, and the open transactions on its topics."""
    from airflow_provider_exactlyonce.kafka.cluster_transactions import Transactions

    transactions = Transactions(client)
    name = transactional_id(facts.pipeline)
    sources, sinks, _ = topic_probe.names(facts)
    own_topics = facts.clusters.by_cluster(dict.fromkeys(sources))[facts.clusters.own]
    topics = {*own_topics, *sinks, *({ledger_topic(facts.pipeline)} if facts.tail else ())}
    if facts.topics is not None:
        topics = {topic for topic in topics if facts.topics.is_there(facts.clusters.own, topic)}
    others = [
        transaction
        for transaction in transactions.open()
        if transaction.transactional_id != name and any(topic in topics for topic, _ in transaction.partitions)
    ]
    own = transactions.describe(name)
    hanging = transactions.hanging(topics, silent_seconds=_SILENT_SECONDS) if topics else []
    open_transactions = [
        transaction for transaction in (own, *others) if transaction is not None and transaction.is_open
    ]
    partitions = {partition for transaction in open_transactions for partition in transaction.partitions}
    partitions |= {transaction.topic_partition for transaction in hanging}
    alive = {}
    for transaction in open_transactions:
        pipeline = pipeline_of(transaction.transactional_id)
        reason = why_taken_for_alive(facts.config, pipeline) if pipeline else None
        if reason is not None:
            alive[transaction.transactional_id] = reason
    return TransactionFacts(
        own=own,
        others=others,
        hanging=hanging,
        held={(held.topic, held.partition): held.offsets for held in transactions.held(partitions)},
        alive=alive,
    )
