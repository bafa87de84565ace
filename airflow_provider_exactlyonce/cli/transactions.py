"""``exactlyonce transactions list|describe|abort|hanging``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.cli.arguments import CLUSTER, declare
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError
from airflow_provider_exactlyonce.ledger.records import pipeline_of
from airflow_provider_exactlyonce.text_tables import pairs, table
from airflow_provider_exactlyonce.transactions.liveness import why_taken_for_alive

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.kafka.cluster_transactions import Hanging, Transaction, Transactions
    from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition

_LONGEST_TIME_OUT_SECONDS: Final = 900.0  # Kafka's default of transaction.max.timeout.ms


def add_to(program: Command) -> None:
    """Add the command to the program."""
    group = program.add_command(
        "transactions",
        summary="show the open transactions of a cluster, and abort one",
        details="They are those of all producers. An open transaction holds back readers of committed records.",
        example="list --bootstrap-servers localhost:9092",
    )
    listing = group.add_command(
        "list", _list, summary="list the open transactions, oldest first", example="--older-than 60"
    )
    declare(listing, *CLUSTER)
    listing.add_argument(
        "--older-than", type=float, default=0.0, metavar="SECONDS", help="only those that are older (default: all)"
    )
    describing = group.add_command(
        "describe",
        _describe,
        summary="show a transactional id, and what its transaction holds back",
        example="exactlyonce.shop-totals",
    )
    declare(describing, *CLUSTER)
    describing.add_argument("transactional_id", metavar="ID", help="such as exactlyonce.PIPELINE")
    hanging = group.add_command(
        "hanging", _hanging, summary="find transactions that no coordinator will end", example="--topic shop.totals"
    )
    declare(hanging, *CLUSTER)
    hanging.add_argument("--topic", action="append", help="only of this topic; repeatable (default: all topics)")
    _add_silence(hanging)
    aborting = group.add_command(
        "abort",
        _abort,
        summary="abort an open transaction, or one that hangs in a partition",
        details="The producer of an open transaction is fenced.",
        example="exactlyonce.shop-totals --yes",
        exit_codes={0: "aborted, or left as it is", 65: "a driver of the pipeline is alive"},
    )
    declare(aborting, *CLUSTER)
    aborting.add_argument("transactional_id", metavar="ID", nargs="?", help="of the open transaction")
    aborting.add_argument("--topic", help="of the transaction that hangs")
    aborting.add_argument("--partition", type=int, help="of the transaction that hangs")
    aborting.add_argument("--first-offset", type=int, help="of the transaction that hangs, as `hanging` shows it")
    _add_silence(aborting)
    aborting.add_argument("--yes", action="store_true", help="do not ask")


def _add_silence(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--silent-for",
        type=float,
        default=_LONGEST_TIME_OUT_SECONDS,
        metavar="SECONDS",
        help="only those whose producer has not written for so long (default: %(default)g)",
    )


@contextmanager
def _transactions(given: argparse.Namespace) -> Iterator[tuple[Transactions, dict[str, str]]]:
    from airflow_provider_exactlyonce.kafka import reach
    from airflow_provider_exactlyonce.kafka.cluster_transactions import Transactions
    from airflow_provider_exactlyonce.kafka.wire import UnansweredError, WireClient

    config = reach.reached(given.bootstrap_servers)
    try:
        client = WireClient(config)
    except UnansweredError as error:
        raise reach.unreachable(config) from error
    with client:
        yield Transactions(client), config


def _list(given: argparse.Namespace) -> None:
    with _transactions(given) as (transactions, _):
        open_transactions = [
            transaction for transaction in transactions.open() if (transaction.age_seconds() or 0.0) >= given.older_than
        ]
        held_back = _held_back(
            transactions, [partition for transaction in open_transactions for partition in transaction.partitions]
        )
    rows = [_facts(transaction, held_back) for transaction in open_transactions]
    print_answer(given, {"transactions": rows}, table(rows) or "no transaction is open")


def _describe(given: argparse.Namespace) -> None:
    with _transactions(given) as (transactions, _):
        transaction = _find_transaction(transactions, given.transactional_id)
        held = transactions.held(transaction.partitions)
    partitions = [{**asdict(partition), "held_back": partition.offsets} for partition in held]
    facts = _facts(transaction, {(partition.topic, partition.partition): partition.offsets for partition in held})
    text = pairs({name: value for name, value in facts.items() if name != "partitions"})
    print_answer(given, {**facts, "partitions": partitions}, f"{text}\n{table(partitions)}".rstrip())


def _hanging(given: argparse.Namespace) -> None:
    with _transactions(given) as (transactions, _):
        hanging = transactions.hanging(given.topic, silent_seconds=given.silent_for)
        held_back = _held_back(transactions, [transaction.topic_partition for transaction in hanging])
    rows = [_hanging_facts(transaction, held_back) for transaction in hanging]
    none = f"no transaction hangs that has been silent for {given.silent_for:.0f} s"
    print_answer(given, {"hanging": rows}, table(rows) or none)


def _abort(given: argparse.Namespace) -> None:
    position = (given.topic, given.partition, given.first_offset)
    if given.transactional_id is None and None in position:
        raise RefusedError(
            "pass a transactional id, or --topic, --partition and --first-offset of a transaction that hangs"
        )
    if given.transactional_id is not None and position != (None, None, None):
        raise RefusedError("pass a transactional id or --topic, --partition and --first-offset, not both")
    with _transactions(given) as (transactions, config):
        if given.transactional_id is None:
            _abort_hanging(given, transactions)
        else:
            _abort_open(given, transactions, config)


def _abort_open(given: argparse.Namespace, transactions: Transactions, config: Mapping[str, str]) -> None:
    transaction = _find_transaction(transactions, given.transactional_id)
    if not transaction.is_open:
        raise RefusedError(f"{transaction.transactional_id} has no open transaction: its state is {transaction.state}")
    pipeline = pipeline_of(transaction.transactional_id)
    if pipeline is not None:
        alive = why_taken_for_alive(config, pipeline)
        if alive is not None:
            raise AlreadyRunningError(
                f"{transaction.transactional_id} is not aborted: {alive}. Stop the pipeline instead"
            )
    facts = _facts(transaction, _held_back(transactions, transaction.partitions))
    _abort_if_wanted(given, facts, "Abort it, and fence its producer?", lambda: transactions.abort(transaction))


def _abort_hanging(given: argparse.Namespace, transactions: Transactions) -> None:
    hanging = [
        transaction
        for transaction in transactions.hanging([given.topic], silent_seconds=given.silent_for)
        if (transaction.partition, transaction.first_offset) == (given.partition, given.first_offset)
    ]
    if not hanging:
        raise RefusedError(
            f"no transaction hangs in {given.topic}-{given.partition} from offset {given.first_offset}, silent for "
            f"{given.silent_for:.0f} s; `exactlyonce transactions hanging` lists those that hang"
        )
    facts = _hanging_facts(hanging[0], _held_back(transactions, [hanging[0].topic_partition]))
    _abort_if_wanted(given, facts, "Write the missing abort marker?", lambda: transactions.abort_hanging(hanging[0]))


def _find_transaction(transactions: Transactions, transactional_id: str) -> Transaction:
    transaction = transactions.describe(transactional_id)
    if transaction is None:
        raise RefusedError(
            f"no coordinator knows {transactional_id}: it was never used, or it expired "
            "(transactional.id.expiration.ms)"
        )
    return transaction if transaction.is_open else replace(transaction, partitions=())


def _held_back(transactions: Transactions, topic_partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    return {
        (partition.topic, partition.partition): partition.offsets for partition in transactions.held(topic_partitions)
    }


def _facts(transaction: Transaction, held_back: Mapping[TopicPartition, int]) -> dict[str, Any]:
    age_seconds = transaction.age_seconds() if transaction.is_open else None
    return {
        "transactional_id": transaction.transactional_id,
        "state": transaction.state,
        "age_seconds": None if age_seconds is None else round(age_seconds, 1),
        "timeout_seconds": transaction.timeout_milliseconds / 1000,
        "producer_id": transaction.producer_id,
        "epoch": transaction.epoch,
        "coordinator": transaction.coordinator,
        "partitions": [f"{topic}-{partition}" for topic, partition in transaction.partitions],
        "held_back": _offsets_held_back(transaction.partitions, held_back),
    }


def _hanging_facts(hanging: Hanging, held_back: Mapping[TopicPartition, int]) -> dict[str, Any]:
    return {
        "topic": hanging.topic,
        "partition": hanging.partition,
        "first_offset": hanging.first_offset,
        "producer_id": hanging.producer_id,
        "epoch": hanging.epoch,
        "last_written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(hanging.written_milliseconds / 1000)),
        "held_back": _offsets_held_back([hanging.topic_partition], held_back),
    }


def _offsets_held_back(
    topic_partitions: Sequence[TopicPartition], held_back: Mapping[TopicPartition, int]
) -> int | None:
    """Return how many in all partitions, None when one of them does not tell."""
    if any(topic_partition not in held_back for topic_partition in topic_partitions):
        return None
    return sum(held_back[topic_partition] for topic_partition in topic_partitions)


def _abort_if_wanted(
    given: argparse.Namespace, facts: Mapping[str, Any], question: str, abort: Callable[[], object]
) -> None:
    """Abort when that is wanted, and tell."""
    is_wanted = given.yes or _ask(f"{pairs(facts)}\n{question} [y/N] ")
    if is_wanted:
        abort()
    print_answer(given, {"aborted": is_wanted, **facts}, "aborted" if is_wanted else "left as it is")


def _ask(question: str) -> bool:
    if not sys.stdin.isatty():
        raise RefusedError("there is no terminal to ask at; pass --yes to abort without a question")
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
