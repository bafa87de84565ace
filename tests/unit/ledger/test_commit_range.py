from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger import commit_range
from airflow_provider_exactlyonce.ledger.commit_range import MissingInput, RecordedCommits
from airflow_provider_exactlyonce.ledger.records import CommitRecord, Record
from tests.ledger_records import claim_record, commit_record

RUN = claim_record(1, lineage="L", home="H", home_path="/p")


def commit(number: int, version: str = "v") -> CommitRecord:
    end = number * 10 - (10 if number == 4 else 0)  # commit 4 has no data
    return commit_record(
        number,
        lineage="L",
        version=version,
        source={"in": {0: (min(end, number * 10 - 10), end)}},
        source_topic_ids={"in": "i"},
        batch_timestamp=1,
        rows=2,
        started=1000,
        committed=1500,
    )


class Records:
    """A ledger in memory, with the reader's two names."""

    pipeline = "p"

    def __init__(self, *records: Record) -> None:
        self._records = records

    def records(self, start_offset: int = 0) -> Iterator[tuple[int, Record]]:
        yield from list(enumerate(self._records))[start_offset:]


def span_of(first: int, last: int, *records: Record) -> RecordedCommits:
    return RecordedCommits(cast(Any, Records(*records)), first, last)


ALL: tuple[Record, ...] = (RUN, *map(commit, range(1, 8)))


def test_a_span_is_added_up_by_its_versions() -> None:
    records: list[Record] = [RUN, *(commit(number, "w" if number in (3, 4) else "v") for number in range(1, 8))]
    span = span_of(2, 6, *records).check()
    assert (span.rows, span.records, span.seconds) == (10, 40, 2.5)
    assert span.versions == [("v", 2, 2), ("w", 3, 4), ("v", 5, 6)]


@pytest.mark.parametrize("gone", [2, 4, 6])
def test_a_commit_that_is_gone_is_named(gone: int) -> None:
    records = [record for record in ALL if not (isinstance(record, CommitRecord) and record.commit == gone)]
    with pytest.raises(RefusedError, match=f"commit {gone} of pipeline p is not in its ledger any more"):
        span_of(2, 6, *records).check()


def test_commits_are_read_in_pages_and_again_from_the_start_when_one_before_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit_range, "_PAGE_RECORDS", 2)
    commits = span_of(2, 6, *ALL)
    assert [commits.get(number).commit for number in (2, 3, 3, 6, 2)] == [2, 3, 3, 6, 2]
    with pytest.raises(RefusedError, match="commit 7"):
        commits.get(7)


def test_the_first_source_records_that_are_gone_are_found() -> None:
    span = span_of(3, 6, *ALL).check()
    assert span.missing_input({("in", 0): 20}) is None
    assert span.missing_input({("in", 0): 35}) == MissingInput(commit=3, topic="in", partition=0, start=20, end=35)
    assert span.missing_input({}) == MissingInput(commit=3, topic="in", partition=0, start=20, end=60)
    other = replace(commit(4), source={"in": {1: (0, 5)}})
    missing = span_of(3, 4, commit(3), other).check().missing_input({("in", 0): 20, ("in", 1): 3})
    assert missing == MissingInput(commit=4, topic="in", partition=1, start=0, end=3)
