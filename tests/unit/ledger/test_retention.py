"""Which of a ledger's records retention lets go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.records import LedgerPointer
from airflow_provider_exactlyonce.ledger.retention import LedgerRetention, may_go
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
