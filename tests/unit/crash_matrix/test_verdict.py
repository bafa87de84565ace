"""The judge of the crash matrix finds what it is there for, in histories written by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from airflow_provider_exactlyonce.ledger.records import CommitRecord, SinkRange
from tests.crash_matrix.shapes import canonical
from tests.crash_matrix.verdict import Judge
from tests.ledger_records import commit_record

Rows = dict[tuple[int, int], bytes]


def row(number: int) -> str:
    return canonical({"id": number})


def commit(number: int, start: int, end: int) -> CommitRecord:
    """One source record gives one row, at the same offset."""
    written = SinkRange(first=start, last=end - 1, rows=end - start, digest=0)
    return commit_record(number, source={"in": {0: (start, end)}}, sink={"out": {0: written}}, rows=end - start)


def judged(commits: list[CommitRecord], rows: Rows) -> tuple[int, int, int, bool]:
    judge = Judge(
        "in", "out", lambda ranges: Counter(row(n) for start, end in ranges.values() for n in range(start, end))
    )
    findings = judge.judge(commits, rows)
    return findings.lost, findings.doubled, findings.torn, bool(findings)


COMMITS = [commit(1, 0, 3), commit(2, 3, 5)]
ROWS = {(0, n): row(n).encode() for n in range(5)}


def without(*offsets: int) -> Rows:
    return {place: value for place, value in ROWS.items() if place[1] not in offsets}


def test_a_good_history_has_no_findings() -> None:
    assert judged(COMMITS, dict(ROWS)) == (0, 0, 0, False)


@pytest.mark.parametrize(
    ("commits", "rows", "expected"),
    [
        pytest.param(COMMITS, without(3, 4), (2, 0, 0, True), id="a lost batch"),
        pytest.param(COMMITS, without(1), (1, 0, 1, True), id="a torn batch"),
        pytest.param(COMMITS, {**ROWS, (0, 9): b'{"id": 4}'}, (0, 1, 0, True), id="a row of an aborted attempt"),
        pytest.param(COMMITS, {**ROWS, (0, 4): b'{"id": 3}'}, (1, 1, 1, True), id="another row"),
        pytest.param(
            [COMMITS[0], replace(COMMITS[1], commit=3)], dict(ROWS), (0, 0, 0, True), id="a gap in the commits"
        ),
        pytest.param([COMMITS[0], commit(2, 4, 5)], without(3), (1, 0, 0, True), id="a gap in the source"),
        pytest.param([COMMITS[0], commit(2, 2, 5)], dict(ROWS), (1, 1, 1, True), id="an overlap in the source"),
    ],
)
def test_a_bad_history_is_named(commits: list[CommitRecord], rows: Rows, expected: tuple[int, int, int, bool]) -> None:
    assert judged(commits, rows) == expected
