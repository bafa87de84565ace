"""Each way in which a ledger can contradict itself, and what looks odd and is right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_exactlyonce.audit.findings import Findings, Violation
from airflow_provider_exactlyonce.audit.ledger_check import LedgerCheck
from airflow_provider_exactlyonce.ledger.records import (
    ClaimRecord,
    CommitRecord,
    LateRows,
    LedgerPointer,
    OtherSink,
    Record,
    SinkRange,
)
from tests.ledger_records import claim_record, commit_record


def claim_of(run: int, *, base: int = 0, **changes: Any) -> ClaimRecord:
    claim = claim_record(run, pipeline="shop", pid=7, base_commit=base, claimed=1)
    return replace(claim, **changes)


def commit_of(commit: int, *, run: int = 1, run_offset: int = 0, **changes: Any) -> CommitRecord:
    """Make the commit that a clean ledger has at offset 2 * commit, behind a claim at 0."""
    record = commit_record(
        commit,
        pipeline="shop",
        run=run,
        source={"in": {0: (10 * commit - 10, 10 * commit)}},
        source_topic_ids={"in": "i"},
        sink={"out": {0: SinkRange(first=6 * commit, last=6 * commit + 4, rows=5, digest=2**64 - 1)}},
        rows=5,
        digest=2**64 - 1,
        epoch=commit,
        before=LedgerPointer(
            commit=commit - 1, commit_offset=2 * commit - 2 if commit > 1 else -1, run=run, run_offset=run_offset
        ),
    )
    return replace(record, **changes)


LATE = LateRows(operator=1, name="dedupe", rows=3, watermark=17)


def found_in(*records: tuple[int, Record], oldest: int = 1) -> list[Violation]:
    findings = Findings()
    check = LedgerCheck("shop", oldest, findings)
    for offset, record in records:
        check.add(offset, record)
    return findings.kept


def test_positions_of_a_table_do_not_count_its_rows() -> None:
    table: dict[str, Any] = {"source": {"delta:/t": {0: (0, 1_000_000)}}, "source_topic_ids": {"delta:/t": "i"}}
    assert found_in((0, claim_of(1)), (2, commit_of(1, records=5_000_000, **table))) == []
    (found,) = found_in((0, claim_of(1)), (2, commit_of(1, records=-1, **table)))
    assert "it says -1 records were read" in str(found)


def test_sinks_that_are_not_kafka_are_named_unless_retention_has_taken_their_commits() -> None:
    check = LedgerCheck("shop", 2, Findings())
    for commit, sinks in ((1, ["gone"]), (2, ["lake"]), (3, ["lake", "totals"])):
        others = {name: OtherSink(rows=5, digest=1) for name in sinks}
        check.add(2 * commit, commit_of(commit, others=others))
    assert check.unjudged_sinks == {"lake", "totals"}


def test_a_clean_ledger_passes() -> None:
    assert found_in((0, claim_of(1)), *((2 * n, commit_of(n)) for n in (1, 2, 3))) == []


@pytest.mark.parametrize(
    ("changes", "invariant", "said"),
    [
        ({"commit": 4}, "I4", "commits 3 to 3 are not in the ledger"),
        ({"commit": 2}, "I4", "the number is repeated"),
        ({"source": {"in": {0: (22, 30)}}}, "I4", "source offsets 20 to 21 are in no commit"),
        ({"source": {"in": {0: (18, 30)}}}, "I4", "source offsets 18 to 19 are in an earlier commit, too"),
        ({"source": {"in": {0: (20, 19)}}}, "I4", "ends at 19, before its start 20"),
        ({"source_topic_ids": {"in": "other"}}, "I4", "source topic in was recreated: i became other"),
        ({"batch": 1}, "I1", "batch 1 of lineage l is committed twice"),
        ({"batch": 0}, "I1", "batch 0 of lineage l is committed twice"),
        ({"batch": 3}, "I4", "lineage l went from batch 1 to 3"),
        ({"run": 2}, "I5", "run 2 committed it on the claim of run 1"),
        ({"epoch": 2}, "I5", "it has producer epoch 2, as commit 2 has"),
        ({"rows": 6}, "I7", "it says 6 rows"),
        ({"digest": 1}, "I7", "with digest 0000000000000001 and 0 bad records; its partitions add up to 5 with f"),
        ({"bad_records": 1}, "I7", "and 1 bad records"),
        ({"records": 11}, "I4", "it says 11 records were read, and its source ranges have 10 offsets"),
        (
            {"late": [LATE], "late_total": 4},
            "I4",
            "it says 4 late rows up to here, 3 of them its own, and commit 2 says 0",
        ),
        ({"late": [replace(LATE, rows=0)]}, "I4", "operator 1 can't have left out 0 rows"),
        (
            {"late": [LATE], "late_total": 3, "late_topic": "late"},
            "I4",
            "it has left out 3 late rows, and 0 were written to late",
        ),
        ({"pipeline": "other"}, "I7", "it is a commit of pipeline other"),
        (
            {"before": LedgerPointer(commit=2, commit_offset=3, run=1, run_offset=0)},
            "I7",
            "commit 2 at offset 3 as the one",
        ),
        (
            {"sink": {"out": {0: SinkRange(first=16, last=20, rows=5, digest=2**64 - 1)}}},
            "I1",
            "overlaps an earlier commit's",
        ),
        (
            {"sink": {"out": {0: SinkRange(first=18, last=21, rows=5, digest=2**64 - 1)}}},
            "I7",
            "5 rows can't be at the offsets 18 to 21",
        ),
    ],
)
def test_one_contradiction_is_one_violation(changes: dict[str, Any], invariant: str, said: str) -> None:
    third = replace(commit_of(3), **changes)
    (violation,) = found_in((0, claim_of(1)), (2, commit_of(1)), (4, commit_of(2)), (6, third))
    assert (violation.invariant, violation.commit) == (invariant, third.commit)
    assert said in violation.message


def test_a_run_that_commits_after_its_successor_has_claimed_is_found() -> None:
    (violation,) = found_in((0, claim_of(1)), (2, commit_of(1)), (3, claim_of(2, base=1)), (4, commit_of(2)))
    assert (violation.invariant, violation.commit) == ("I5", 2)


def test_a_lower_run_that_claims_after_a_higher_one_is_found() -> None:
    (violation,) = found_in((0, claim_of(2)), (1, claim_of(1)))
    assert violation.invariant == "I5"


def test_a_claim_that_builds_on_another_commit_is_found() -> None:
    (violation,) = found_in((0, claim_of(1)), (2, commit_of(1)), (3, claim_of(2, base=0)))
    assert violation.invariant == "I7"


def test_a_claim_that_was_repeated_and_whose_older_record_is_compacted_away_is_right() -> None:
    again = claim_of(2, base=2)
    second = commit_of(2, run=2, run_offset=3)
    third = commit_of(3, run=2, run_offset=5)
    assert found_in((0, claim_of(1)), (2, commit_of(1)), (4, second), (5, again), (6, third)) == []


def test_commits_that_retention_has_tombstoned_are_not_judged() -> None:
    gone = commit_of(1, rows=99)
    assert found_in((0, claim_of(1)), (2, gone), (6, commit_of(3)), (8, commit_of(4)), oldest=3) == []
    (violation,) = found_in((8, commit_of(4)), oldest=3)
    assert violation.message == "commits 3 to 3 are not in the ledger"


def test_a_lineage_may_begin_anywhere_and_a_source_may_grow() -> None:
    restored = commit_of(2, lineage="m", batch=17, source={"in": {0: (10, 20), 1: (5, 8)}, "new": {0: (3, 3)}})
    following = commit_of(3, lineage="m", batch=18, source={"in": {0: (20, 20), 1: (8, 9)}, "new": {0: (3, 4)}})
    assert found_in((0, claim_of(1)), (2, commit_of(1)), (4, restored), (6, following)) == []


def test_bad_records_are_in_the_sums_of_their_topic_only() -> None:
    bad = {"bad": {0: SinkRange(first=0, last=2, rows=3, digest=17)}}
    record = commit_of(1)
    assert found_in((0, claim_of(1)), (2, replace(record, sink={**record.sink, **bad}, bad_records=3))) == []
    (violation,) = found_in((0, claim_of(1)), (2, replace(record, sink={**record.sink, **bad})))
    assert violation.invariant == "I7"


def test_late_rows_are_in_the_sums_of_their_topic_only_and_are_added_up() -> None:
    late = {"late": {0: SinkRange(first=0, last=2, rows=3, digest=17)}}
    changes: dict[str, Any] = {"late": [LATE], "late_total": 3, "late_topic": "late", "records": 10}
    second = commit_of(2, **changes, sink={**commit_of(2).sink, **late})
    third = commit_of(3, late=[], late_total=3, records=0)
    records: list[tuple[int, Record]] = [(0, claim_of(1)), (2, commit_of(1)), (4, second), (6, third)]
    assert found_in(*records) == []
    check = LedgerCheck("shop", 1, Findings())
    for offset, record in records:
        check.add(offset, record)
    assert (check.records, check.uncounted, check.late_rows) == (10, 1, 3)
