"""Whether transactions hold back the pipeline, or the readers of its output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from airflow_provider_exactlyonce.doctor.facts import Facts, TransactionFacts
from airflow_provider_exactlyonce.doctor.findings import Finding, Remedy
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition

#: Producers of others have so long for theirs before it is worth a word.
_PATIENCE_SECONDS: Final = 10.0


def own_is_ended(facts: Facts) -> Iterator[Finding]:
    """Check that nothing of the pipeline's is open while it does not run."""
    transactions = facts.transactions
    if transactions is None or facts.runs:
        return
    own, claim = transactions.own, facts.tail.claim if facts.tail else None
    if own is None:
        if claim is not None:
            yield Finding(
                "transactional-id-expired",
                f"no coordinator knows the transactional id of {facts.pipeline} any more: it was stopped for longer "
                "than transactional.id.expiration.ms",
                "nothing: the next start gets a new producer, and the ledger tells what is committed",
            )
    elif own.is_open and own.transactional_id not in transactions.alive:
        partitions = ", ".join(f"{topic}-{partition}" for topic, partition in own.partitions[:5])
        yield Finding(
            "open-transaction",
            f"{own.transactional_id} is open for {own.age_seconds() or 0:.0f} s, and no driver runs: readers of "
            f"committed records wait in {partitions}, {_held(transactions, own.partitions)} offsets behind",
            f"start the pipeline, or: exactlyonce transactions abort {own.transactional_id}",
            Remedy.ABORT,
        )


def others_are_ended(facts: Facts) -> Iterator[Finding]:
    """Check for open transactions of others, and for hanging ones."""
    transactions = facts.transactions
    if transactions is None:
        return
    for other in transactions.others:
        if other.transactional_id in transactions.alive or (other.age_seconds() or 0.0) < _PATIENCE_SECONDS:
            continue
        yield Finding(
            "foreign-transaction",
            f"{other.transactional_id} of another producer is open for {other.age_seconds() or 0:.0f} s and holds "
            f"back {_held(transactions, other.partitions)} offsets of "
            f"{', '.join(f'{t}-{p}' for t, p in other.partitions[:5])}",
            f"end its producer, or: exactlyonce transactions abort {other.transactional_id}",
        )
    own_ids = facts.history.producer_ids if facts.history else frozenset()
    for hanging in transactions.hanging:
        is_own = hanging.producer_id in own_ids and not facts.runs
        arguments = f"{hanging.topic} --partition {hanging.partition} --first-offset {hanging.first_offset}"
        yield Finding(
            "hanging-transaction",
            f"a transaction of producer {hanging.producer_id}{' (this pipeline)' if is_own else ''} is open in "
            f"{hanging.topic}-{hanging.partition} from offset {hanging.first_offset} on, and no coordinator will end "
            f"it: {_held(transactions, [hanging.topic_partition])} offsets are held back for good",
            f"exactlyonce transactions abort --topic {arguments}",
            Remedy.ABORT_HANGING if is_own else None,
            f"{hanging.topic}-{hanging.partition} {hanging.first_offset}",
        )


def _held(transactions: TransactionFacts, partitions: Sequence[TopicPartition]) -> str:
    known = [transactions.held[partition] for partition in partitions if partition in transactions.held]
    return f"{'' if len(known) == len(partitions) else 'at least '}{sum(known)}"
