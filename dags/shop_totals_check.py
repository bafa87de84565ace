"""The check behind the gate of ``shop_totals``: the topic against the file, to the cent and customer by customer.

It knows nothing of the stream: the file's sums are made here, and the topic is read as any application would read it.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

_NAMED: Final = 5  # how many differences a message names
_TIMEOUT_SECONDS: Final = 30.0

Total = tuple[int, Decimal]  # (purchases, dollars)


def compare(file: Path, topic: str, kafka: Mapping[str, Any]) -> str:
    """Compare the newest total of every customer with the file, and look for a total that came twice.

    :param file: the purchases, gzipped text
    :param topic: where the totals are
    :param kafka: client configuration in librdkafka's names
    :return: one sentence on what agreed
    :raises ValueError: naming the first differences
    """
    expected = totals_of(file)
    newest, problems = newest_of(read_committed(topic, kafka))
    problems += [
        f"customer {customer}: {_text(newest.get(customer))} in {topic}, {_text(expected.get(customer))} in {file.name}"
        for customer in sorted(expected.keys() | newest.keys())
        if newest.get(customer) != expected.get(customer)
    ]
    if problems:
        raise ValueError(f"{len(problems)} differences; the first: " + "; ".join(problems[:_NAMED]))
    purchases, dollars = (sum(column) for column in zip(*newest.values(), strict=True))
    return f"{len(newest):,} customers, {purchases:,} purchases, {dollars:,} dollars: equal to the file, nothing twice"


def totals_of(file: Path) -> dict[str, Total]:
    """Add up the file: {customer: total}."""
    totals: dict[str, Total] = {}
    with gzip.open(file, "rt") as lines:
        next(lines)  # the header
        for line in lines:
            customer, _day, _cds, dollars = line.split()
            purchases, paid = totals.get(customer, (0, Decimal(0)))
            totals[customer] = (purchases + 1, paid + Decimal(dollars))
    return totals


def newest_of(totals: Iterator[tuple[str, Total]]) -> tuple[dict[str, Total], list[str]]:
    """Return {customer: newest total}, and what can't be: a number of purchases that comes again, or goes back."""
    newest: dict[str, Total] = {}
    problems = []
    for customer, total in totals:
        before = newest.get(customer)
        if before and total[0] == before[0]:
            problems.append(f"customer {customer}: the total of {total[0]} purchases came twice")
        elif before and total[0] < before[0]:
            problems.append(f"customer {customer}: {total[0]} purchases after {before[0]}")
        newest[customer] = total
    return newest, problems


def read_committed(topic: str, kafka: Mapping[str, Any]) -> Iterator[tuple[str, Total]]:
    """Yield what a topic holds now, as far as transactions are committed."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

    consumer = Consumer(
        {
            **kafka,
            "group.id": "shop-totals-check",  # neither joined nor committed to
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, _TIMEOUT_SECONDS).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        reading = set(partitions)
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while reading:
            messages = consumer.consume(1_000, timeout=0.1)
            if messages:
                deadline = time.monotonic() + _TIMEOUT_SECONDS
            elif time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: no answer for {_TIMEOUT_SECONDS:.0f} s from partitions {sorted(reading)}")
            for message in messages:
                error = message.error()
                if error is None:
                    row = json.loads(message.value() or b"", parse_float=Decimal)
                    yield row["uuid"], (row["purchases"], Decimal(row["paid"]))
                elif error.code() == KafkaError._PARTITION_EOF:
                    reading.discard(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()


def _text(total: Total | None) -> str:
    return f"{total[0]} purchases for {total[1]}" if total else "nothing"
