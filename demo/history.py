"""What happened in one run of the job, as values that a judge can look at and a test can write by hand."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.ledger.records import CommitRecord

SOURCE_TOPIC: Final = "shop.events"

#: {partition: (start, end)}, end exclusive
Ranges = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One record of the source topic."""

    partition: int
    offset: int
    event_id: int
    customer: str
    dollars: Decimal


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """One record of the sink topic: what a customer had paid after so many purchases."""

    partition: int
    offset: int
    customer: str
    purchases: int
    paid: Decimal

    @property
    def pair(self) -> tuple[str, int]:
        """What must not come twice."""
        return self.customer, self.purchases


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One micro-batch that was committed.

    :param number: Spark's batch id
    :param started: seconds since the epoch
    :param committed: seconds since the epoch
    """

    number: int
    source: Ranges
    started: float
    committed: float

    @property
    def records(self) -> int:
        """How many of the source's records went in."""
        return sum(end - start for start, end in self.source.values())


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One SIGKILL of a driver.

    :param run: which of the driver's runs died, the first being 1
    :param at: seconds since the epoch
    :param label: what it interrupted
    """

    run: int
    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class History:
    """One run of the job from its first driver's start to its last one's end.

    :param batches: the committed ones, in the order of their commits
    :param updates: what the sink shows a read_committed reader
    :param rows_written: records in the sink, whether a reader at read_committed sees them or not
    :param sink_ends: {topic: {partition: (last stable offset, high watermark)}}, the ledger's too
    :param starts: when each run began, seconds since the epoch
    """

    batches: Sequence[Batch]
    updates: Sequence[Update]
    rows_written: int
    sink_ends: Mapping[str, Mapping[int, tuple[int, int]]]
    starts: Sequence[float]
    kills: Sequence[Kill]


def read_events(messages: Iterable[Any]) -> list[Event]:
    """Read records of the source topic."""
    events = []
    for message in messages:
        body = json.loads(message.value(), parse_float=Decimal)
        events.append(
            Event(
                partition=message.partition(),
                offset=message.offset(),
                event_id=body["event_id"],
                customer=body["uuid"],
                dollars=Decimal(body["price"]),
            )
        )
    return events


def read_updates(messages: Iterable[Any]) -> list[Update]:
    """Read records of the sink topic."""
    updates = []
    for message in messages:
        body = json.loads(message.value(), parse_float=Decimal)
        updates.append(
            Update(
                partition=message.partition(),
                offset=message.offset(),
                customer=body["uuid"],
                purchases=body["purchases"],
                paid=Decimal(body["paid"]),
            )
        )
    return updates


def batches_of(commits: Iterable[CommitRecord]) -> list[Batch]:
    """Return the ledger's commits as batches."""
    return [
        Batch(
            number=commit.batch,
            source=commit.source.get(SOURCE_TOPIC, {}),
            started=commit.started / 1000,
            committed=commit.committed / 1000,
        )
        for commit in commits
    ]


def source_ranges(checkpoint: Path) -> list[Ranges]:
    """Return what each batch of a checkpoint takes from the source, in order."""
    ranges: list[Ranges] = []
    previous_ends: dict[int, int] = {}
    for number in sorted(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*")):
        text = (checkpoint / "offsets" / str(number)).read_text().splitlines()[-1]
        ends = {int(partition): end for partition, end in json.loads(text)[SOURCE_TOPIC].items()}
        ranges.append({partition: (previous_ends.get(partition, 0), end) for partition, end in ends.items()})
        previous_ends = ends
    return ranges


class Expectation:
    """The updates that each batch owes, from the source's records and the batch's ranges alone."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._by_partition: dict[int, list[Event]] = defaultdict(list)
        for event in sorted(events, key=lambda event: (event.partition, event.offset)):
            self._by_partition[event.partition].append(event)
        self._totals: dict[str, tuple[int, Decimal]] = {}

    def next(self, source: Ranges) -> dict[tuple[str, int], Decimal]:
        """Take the next batch's events in: {(customer, purchases): paid}, one for each customer that it touches."""
        touched = set()
        for partition, (start, end) in source.items():
            events = self._by_partition[partition]
            first, last = (bisect_left(events, offset, key=lambda event: event.offset) for offset in (start, end))
            for event in events[first:last]:
                purchases, paid = self._totals.get(event.customer, (0, Decimal(0)))
                self._totals[event.customer] = (purchases + 1, paid + event.dollars)
                touched.add(event.customer)
        return {(customer, self._totals[customer][0]): self._totals[customer][1] for customer in touched}
