"""Which of a ledger's records retention lets go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger import retention as retention_module
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord, LedgerPointer, Record
from airflow_provider_exactlyonce.ledger.retention import History, LedgerRetention, may_go
from tests.unit.ledger.test_records import RUN, commit_of

DAY = 24 * 60 * 60 * 1000
NOW = 1_700_000_000_000
PLACE = LedgerPointer(commit=100, commit_offset=1000, run=5, run_offset=900)


def goes(commit: int, *, age_days: float = 100.0, needed_from: int | None = None, commits: int = 10) -> bool:
    record = replace(commit_of(1), commit=commit, committed=int(NOW - age_days * DAY))
    retention = LedgerRetention(commits=commits, days=30)
    return may_go(record, retention, place=PLACE, needed_from=needed_from, now_milliseconds=NOW)


@pytest.mark.parametrize(("commit", "expected"), [(1, True), (90, True), (91, False), (100, False)])
def test_the_newest_commits_stay_however_old_they_are(commit: int, expected: bool) -> None:
    assert goes(commit) is expected


@pytest.mark.parametrize(("age_days", "expected"), [(29.9, False), (30.1, True)])
def test_young_commits_stay_however_many_they_are(age_days: float, expected: bool) -> None:
    assert goes(1, age_days=age_days) is expected


@pytest.mark.parametrize(("commit", "expected"), [(49, True), (50, False), (51, False)])
def test_what_a_restore_needs_stays(commit: int, expected: bool) -> None:
    assert goes(commit, needed_from=50) is expected


def test_the_last_commit_stays_even_with_the_least_retention() -> None:
    assert goes(99, commits=1)
    assert not goes(100, commits=1)


@pytest.mark.parametrize(("run", "expected"), [(4, True), (5, False)])
def test_the_newest_claim_stays(run: int, expected: bool) -> None:
    claim = replace(RUN, run=run)
    retention = LedgerRetention(commits=1, days=0)
    assert may_go(claim, retention, place=PLACE, needed_from=None, now_milliseconds=NOW) is expected


@pytest.mark.parametrize(("commits", "days"), [(0, 1.0), (-1, 1.0), (1, -0.1)])
def test_a_retention_that_could_remove_the_last_commit_is_refused(commits: int, days: float) -> None:
    with pytest.raises(RefusedError, match="commits must be at least 1"):
        LedgerRetention(commits=commits, days=days)


class Reader:
    """A ledger of these records."""

    topic = "ledger"

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records

    def records(self, offset: int) -> Iterator[tuple[int, Record]]:
        yield from list(enumerate(self._records))[offset:]


def claim(run: int) -> ClaimRecord:
    return replace(RUN, run=run)


def commits(first: int, last: int, *, age_days: float = 100.0) -> list[CommitRecord]:
    record = replace(commit_of(1), committed=int(NOW - age_days * DAY))
    return [replace(record, commit=number) for number in range(first, last + 1)]


def tombstoned(records: Sequence[Record], batches: int = 3) -> list[bytes]:
    """Return the keys that go with some commits."""
    history = History(cast(Any, Reader(records)), LedgerRetention(commits=10, days=30))
    keys = list[bytes]()
    for _ in range(batches):
        expired = history.expired(PLACE, needed_from=lambda: None, now_milliseconds=NOW)
        assert history.expired(PLACE, needed_from=lambda: None, now_milliseconds=NOW) == expired, "after an abort"
        history.committed()
        keys += expired.keys
    return keys


@pytest.mark.parametrize(
    ("records", "gone"),
    [
        ([claim(1), *commits(1, 60), claim(1), *commits(61, 61, age_days=1), claim(2)], []),
        ([claim(1), *commits(1, 60), *commits(61, 61, age_days=1), claim(1), claim(2)], []),
        ([claim(1), claim(2), *commits(1, 60), *commits(61, 61, age_days=1)], [b"run/1"]),
        ([claim(1), *commits(1, 60), claim(1), claim(2), *commits(61, 61, age_days=1)], [b"run/1"]),
        ([claim(1), *commits(1, 80), claim(2), *commits(81, 90), claim(3), *commits(91, 91)], [b"run/1", b"run/2"]),
        ([claim(1), *[claim(2)] * 150, *commits(1, 60)], [b"run/1"]),
        ([claim(5), *commits(1, 60)], []),
    ],
)
def test_a_claim_goes_when_a_higher_runs_stands_in_the_history_that_goes(
    records: Sequence[Record], gone: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_module, "TOMBSTONES_PER_BATCH", 70)
    keys = tombstoned(records)
    assert [key for key in keys if key.startswith(b"run/")] == gone
    assert [key for key in keys if key.startswith(b"commit/")][59] == b"commit/60"
