"""Compares what came out with what went in: figures of a history, and everything in it that is off.

Nothing here trusts the job: the expected rows are computed from the source topic's records, the file and the recorded
source ranges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Final

from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord, Record
from demo.history import SOURCE_TOPIC, Event, Expectation, History, Update
from demo.purchases import Purchase, totals

LEAST_BATCHES: Final = 8
_NAMED: Final = 3  # how many of a kind a finding names


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The report's numbers for one system.

    :param rows_due: updates that the committed batches owe
    :param rows_visible: records that a read_committed reader sees
    :param rows_written: records in the topic, seen or not
    :param records_lost: purchases that no visible total counts
    :param rows_missing: updates due that are not visible
    :param rows_doubled: visible rows beyond the first of the same (customer, purchases) pair
    :param pairs_doubled: (customer, purchases) pairs that are visible more than once
    :param rows_wrong: visible rows that nobody owes: another sum, or a pair that no batch ends with
    :param seconds_to_recover: for each kill, until the first commit after it
    :param doubled_in: {Spark's batch id: its rows that are visible again}
    :param records_per_second: source records by the time that batches took, those left out in which a driver died
    :param open_partitions: partitions whose last stable offset is behind their high watermark
    """

    records_in: int
    batches: int
    kills: int
    restarts: int
    rows_due: int
    rows_visible: int
    rows_written: int
    records_lost: int
    rows_missing: int
    rows_doubled: int
    pairs_doubled: int
    doubled_in: Mapping[int, int]
    rows_wrong: int
    customers_off: int
    money_in: Decimal
    money_out: Decimal
    seconds_to_recover: tuple[float | None, ...]
    records_per_second: float
    open_partitions: int

    @property
    def rows_off(self) -> int:
        """Rows that are missing or wrong."""
        return self.rows_missing + self.rows_wrong


def figures(history: History, events: Sequence[Event], purchases: Sequence[Purchase]) -> Figures:
    """Compute a history's figures."""
    expectation = Expectation(events)
    visible = Counter(update.pair for update in history.updates)
    due: dict[tuple[str, int], Decimal] = {}
    doubled_in: dict[int, int] = {}
    for batch in history.batches:
        rows = expectation.next(batch.source)
        due.update(rows)
        if doubled := sum(visible[pair] - 1 for pair in rows if visible[pair] > 1):
            doubled_in[batch.number] = doubled
    newest = {update.customer: update for update in history.updates}
    truth = totals(purchases)
    shown = {customer: (update.purchases, update.paid) for customer, update in newest.items()}
    death_times = [kill.at for kill in history.kills]
    calm = [
        batch
        for batch in history.batches
        if not any(batch.started <= death_time <= batch.committed for death_time in death_times)
    ]
    busy_seconds = sum(batch.committed - batch.started for batch in calm)
    records_taken = sum(batch.records for batch in calm)
    return Figures(
        records_in=len(events),
        batches=len(history.batches),
        kills=len(history.kills),
        restarts=max(0, len(history.starts) - 1),
        rows_due=len(due),
        rows_visible=len(history.updates),
        rows_written=history.rows_written,
        records_lost=sum(max(0, count - shown.get(customer, (0,))[0]) for customer, (count, _) in truth.items()),
        rows_missing=len(due.keys() - visible.keys()),
        rows_doubled=sum(times - 1 for times in visible.values()),
        pairs_doubled=sum(times > 1 for times in visible.values()),
        doubled_in=doubled_in,
        rows_wrong=sum(due.get(update.pair) != update.paid for update in history.updates),
        customers_off=sum(shown.get(customer) != truth.get(customer) for customer in shown.keys() | truth.keys()),
        money_in=sum((purchase.dollars for purchase in purchases), Decimal(0)),
        money_out=sum((paid for _, paid in shown.values()), Decimal(0)),
        seconds_to_recover=tuple(_seconds_to_recover(history, kill.at) for kill in history.kills),
        records_per_second=records_taken / busy_seconds if busy_seconds > 0 else 0.0,
        open_partitions=sum(stable < high for ends in history.sink_ends.values() for stable, high in ends.values()),
    )


def _seconds_to_recover(history: History, died: float) -> float | None:
    return min((batch.committed - died for batch in history.batches if batch.committed > died), default=None)


def problems(found: Figures, *, kills: int, restarts: int) -> list[str]:
    """Return what is off in the figures; empty when the promise was kept.

    :param kills: how many the demo meant to make
    :param restarts: of the driver, as many as there have to be
    """
    must_be_zero = {
        "purchases lost": found.records_lost,
        "rows missing": found.rows_missing,
        "rows doubled": found.rows_doubled,
        "rows wrong": found.rows_wrong,
        "customers whose newest total differs from the file": found.customers_off,
        "partitions with an open transaction": found.open_partitions,
        "kills without a commit after them": sum(seconds is None for seconds in found.seconds_to_recover),
    }
    wrong = [f"{name}: {number:,}, must be 0" for name, number in must_be_zero.items() if number]
    if found.money_in != found.money_out:
        wrong.append(f"money out is {found.money_out:,}, money in {found.money_in:,}")
    if found.kills != kills:
        wrong.append(f"kills: {found.kills}, must be {kills}")
    if found.restarts != restarts:
        wrong.append(f"restarts of the driver: {found.restarts}, must be {restarts}")
    if found.batches < LEAST_BATCHES:
        wrong.append(f"{found.batches} batches, fewer than the {LEAST_BATCHES} over which the kills are spread")
    return wrong


def source_problems(events: Sequence[Event], purchases: Sequence[Purchase]) -> list[str]:
    """Compare the source topic with the file, record by record."""
    times = Counter(event.event_id for event in events)
    by_line = {purchase.line: (purchase.customer, purchase.dollars) for purchase in purchases}
    wrong = [event.event_id for event in events if by_line.get(event.event_id) != (event.customer, event.dollars)]
    return [
        *_finding("the source lacks lines", by_line.keys() - times.keys()),
        *_finding("the source repeats lines", (line for line, count in times.items() if count > 1)),
        *_finding("the source differs from the file at lines", wrong),
    ]


def ledger_problems(
    records: Sequence[Record],
    source_ends: Mapping[int, int],
    events: Sequence[Event],
    updates: Sequence[Update],
    sink_topic: str,
) -> list[str]:
    """Check the ledger against itself, the source and the sink.

    A run may claim again under its own number; every other number must follow the one before it.

    :param records: the ledger's, in the order of their offsets
    :param source_ends: {partition: end offset} of the source
    :param updates: what the sink shows a read_committed reader
    """
    commits = [record for record in records if isinstance(record, CommitRecord)]
    return [
        *_numbers("commit", [commit.commit for commit in commits]),
        *_numbers("run", list(dict.fromkeys(record.run for record in records if isinstance(record, ClaimRecord)))),
        *_tiling(commits, source_ends),
        *_deliveries(commits, events, updates, sink_topic),
    ]


def _numbers(kind: str, numbers: Sequence[int]) -> list[str]:
    expected = list(range(1, len(numbers) + 1))
    if list(numbers) == expected:
        return []
    first = next(index for index, (left, right) in enumerate(zip(numbers, expected, strict=True)) if left != right)
    return [f"ledger: {kind} {expected[first]} should follow, {kind} {numbers[first]} does"]


def _tiling(commits: Sequence[CommitRecord], source_ends: Mapping[int, int]) -> list[str]:
    wrong = []
    for partition, end in sorted(source_ends.items()):
        named_bounds = [
            (f"commit {commit.commit}", commit.source.get(SOURCE_TOPIC, {}).get(partition)) for commit in commits
        ]
        ranges = [(name, *bounds) for name, bounds in named_bounds if bounds]
        edges = [("the beginning", 0, 0), *ranges, ("the end", end, end)]
        wrong += [
            f"source partition {partition}: {before} ends at {stop:,}, {after} starts at {start:,}"
            for (before, _, stop), (after, start, _) in pairwise(edges)
            if stop != start
        ]
    return wrong


def _deliveries(
    commits: Sequence[CommitRecord], events: Sequence[Event], updates: Sequence[Update], sink_topic: str
) -> list[str]:
    """Match every visible row with the one commit whose range holds it, and every commit with the rows it owes."""
    commit_ranges: dict[int, list[tuple[int, int, int]]] = {}
    for commit in commits:
        for partition, sink_range in commit.sink.get(sink_topic, {}).items():
            commit_ranges.setdefault(partition, []).append((sink_range.first, sink_range.last, commit.commit))
    for ranges in commit_ranges.values():
        ranges.sort()
    delivered: dict[int, dict[tuple[str, int], Decimal]] = {commit.commit: {} for commit in commits}
    rows: Counter[int] = Counter()
    homeless = []
    for update in updates:
        ranges = commit_ranges.get(update.partition, [])
        index = bisect_right(ranges, (update.offset, float("inf"), 0)) - 1
        if index < 0 or not ranges[index][0] <= update.offset <= ranges[index][1]:
            homeless.append(f"{update.partition}:{update.offset}")
            continue
        delivered[ranges[index][2]][update.pair] = update.paid
        rows[ranges[index][2]] += 1
    wrong = _finding("visible rows that no commit has on record, partition:offset", homeless)
    expectation = Expectation(events)
    for commit in commits:
        due = expectation.next(commit.source.get(SOURCE_TOPIC, {}))
        if delivered[commit.commit] != due:
            wrong.append(f"commit {commit.commit}: its {rows[commit.commit]:,} rows are not the {len(due):,} it owes")
        if rows[commit.commit] != commit.rows:
            wrong.append(f"commit {commit.commit}: {commit.rows:,} rows on record, {rows[commit.commit]:,} visible")
    return wrong


def _finding(subject: str, items: Iterable[object]) -> list[str]:
    ordered = sorted(items, key=str)
    more = ", …" if len(ordered) > _NAMED else ""
    return [f"{subject}: {', '.join(map(str, ordered[:_NAMED]))}{more} ({len(ordered):,} in all)"] if ordered else []
