"""What an audit says of a sink beside a pipeline that commits and forgets meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from airflow_provider_exactlyonce.ledger.reader import LedgerReader, LedgerTail
from airflow_provider_exactlyonce.ledger.records import CommitRecord, LedgerPointer, OtherSink
from airflow_provider_exactlyonce.streaming.sinks.ledger_comparison import LedgerEntries, compare
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry
from tests.ledger_records import claim_record, commit_record

SINK = "lake"


class Ledger(LedgerReader):
    """A ledger without a broker, from which compaction has removed nothing yet of what it has forgotten."""

    def __init__(self, newest: int, oldest: int = 1) -> None:
        self.pipeline = "p"  # type: ignore[misc]
        self.newest, self.oldest = newest, oldest

    def tail(self) -> LedgerTail:
        newest = replace(self._commit(self.newest), before=LedgerPointer(oldest=self.oldest))
        return LedgerTail(
            cluster_id="c", topic_id="t", end_offset=9, claim=claim_record(), commit=newest, commit_offset=8
        )

    def commits(self, first: int = 1) -> Iterator[CommitRecord]:
        return map(self._commit, range(first, self.newest + 1))

    def _commit(self, number: int) -> CommitRecord:
        return commit_record(number, others={SINK: OtherSink(rows=number, digest=number)})


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(newest=10)


@pytest.fixture
def commits(ledger: Ledger) -> LedgerEntries:
    return LedgerEntries(ledger, SINK)


def seen(numbers: Iterable[int]) -> dict[int, SinkEntry]:
    """Return a sink's entries, as they are read of it."""
    ledger = Ledger(newest=100)
    return {entry.commit: entry for entry in LedgerEntries(ledger, SINK) if entry.commit in set(numbers)}


def findings(entries: dict[int, SinkEntry], commits: LedgerEntries) -> list[str]:
    return list(compare(entries, commits, "it"))


def test_what_the_ledger_has_forgotten_may_be_missing(ledger: Ledger, commits: LedgerEntries) -> None:
    ledger.oldest = 4
    assert findings(seen(range(4, 11)), commits) == []
    assert findings(seen(range(5, 11)), commits) == ["commit 4: it has no entry of it"]


@pytest.mark.parametrize("newest_of_sink", [10, 11, 13, 15, 16])
def test_what_is_committed_while_the_sink_is_looked_at_is_no_finding(
    newest_of_sink: int, ledger: Ledger, commits: LedgerEntries
) -> None:
    entries = seen(range(1, newest_of_sink + 1))
    ledger.newest = 15
    assert findings(entries, commits) == []


def test_what_was_committed_before_must_be_there_and_what_is_not_committed_yet_must_not(
    ledger: Ledger, commits: LedgerEntries
) -> None:
    ledger.newest = 15
    assert findings(seen(range(1, 10)), commits) == ["commit 10: it has no entry of it"]
    assert findings(seen([*range(1, 11), *range(12, 18)]), commits) == [
        "commit 11: it has no entry of it",
        "commit 17: it has it, the pipeline's ledger not",
    ]


def test_a_commit_that_came_while_the_sink_was_looked_at_is_compared_if_the_sink_has_it(
    ledger: Ledger, commits: LedgerEntries
) -> None:
    entries = seen(range(1, 13))
    entries[12] = replace(entries[12], rows=1)
    ledger.newest = 15
    (finding,) = findings(entries, commits)
    assert finding.startswith("commit 12: it has SinkEntry(")
