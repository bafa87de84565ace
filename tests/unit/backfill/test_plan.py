"""The batches of a backfill: each source record of the range is in one that counts, and no other record is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from airflow_provider_exactlyonce.backfill.plan import BackfillStep, PlanInputs, plan
from airflow_provider_exactlyonce.backfill.request import BackfillState, Output
from airflow_provider_exactlyonce.backfill.resolve import Positions, Resolved
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from tests.ledger_records import commit_record

TERMS = PlanInputs(state=BackfillState.SAVEPOINT, kind=Output.REEMIT, version="v", limits=[])


def at(*offsets: int) -> Positions:
    return {("in", partition): offset for partition, offset in enumerate(offsets)}


def commit(number: int, start: Positions, end: Positions, version: str = "v") -> CommitRecord:
    source: dict[str, dict[int, tuple[int, int]]] = {}
    for (topic, partition), offset in end.items():
        source.setdefault(topic, {})[partition] = (start[topic, partition], offset)
    return commit_record(number, batch=number, version=version, source=source)


#: Commits of ten records a partition, the third without data.
BOUNDS = [at(0, 0), at(10, 10), at(20, 20), at(20, 20), at(30, 30), at(40, 40)]
COMMITS = [commit(number, BOUNDS[number - 1], BOUNDS[number]) for number in range(1, 6)]


def covered(steps: list[BackfillStep], begins: Positions) -> tuple[Positions, Positions, Positions]:
    """Return how many records of each partition are suppressed, and where those that count begin and end."""
    position, first = begins, dict[tuple[str, int], int]()
    suppressed: Positions = {}
    counted: Positions = {}
    for step in steps:
        for place, end in step.ends.items():
            start = position[place]
            assert end >= start, "never backwards"
            if end > start and step.emits:
                assert counted.get(place, start) == start, "without a gap"
                first.setdefault(place, start)
                counted[place] = end
            elif end > start:
                assert place not in counted, "nothing is suppressed after the range has begun"
                suppressed[place] = suppressed.get(place, 0) + end - start
        position = step.ends
    return suppressed, first, counted


def test_whole_commits_are_exact_and_those_before_are_suppressed() -> None:
    steps = plan(Resolved(starts=at(20, 20), ends=at(40, 40), begins=at(0, 0), commits=(3, 5)), TERMS, COMMITS)
    assert [(step.commit, step.emits, step.exact, step.closing) for step in steps] == [
        (1, False, True, False),
        (2, False, True, False),
        (3, True, True, False),
        (4, True, True, False),
        (5, True, True, False),
    ]


def test_commits_of_another_version_are_not_exact_and_those_without_data_close() -> None:
    steps = plan(
        Resolved(starts=at(10, 10), ends=at(30, 30), begins=at(0, 0), commits=(2, 4)),
        replace(TERMS, version="w"),
        COMMITS,
    )
    assert [(step.commit, step.exact, step.closing) for step in steps] == [
        (1, False, False),
        (2, False, False),
        (3, False, True),
        (4, False, False),
    ]


@pytest.mark.parametrize(
    ("starts", "ends"),
    [
        (at(20, 20), at(30, 30)),
        (at(15, 20), at(33, 30)),
        (at(5, 38), at(6, 39)),
        (at(0, 0), at(40, 40)),
        (at(12, 31), at(45, 44)),
        (at(40, 40), at(50, 41)),
        (at(7, 7), at(7, 9)),
    ],
)
def test_a_range_of_offsets_counts_its_records_and_no_other(starts: Positions, ends: Positions) -> None:
    resolved = Resolved(starts=starts, ends=ends, begins=at(0, 0))
    suppressed, first, counted = covered(plan(resolved, TERMS, COMMITS), at(0, 0))
    wanted = {place: end for place, end in ends.items() if end > starts[place]}
    assert counted == wanted
    assert first == {place: starts[place] for place in wanted}
    assert suppressed == {place: start for place, start in starts.items() if start > 0}


def test_a_range_that_begins_and_ends_with_commits_is_exact() -> None:
    steps = plan(Resolved(starts=at(10, 10), ends=at(20, 20), begins=at(0, 0)), TERMS, COMMITS)
    assert [(step.commit, step.emits, step.exact) for step in steps] == [
        (1, False, True),
        (2, True, True),
        (3, True, True),
    ]


def test_two_ranges_that_follow_each_other_close_at_the_same_place() -> None:
    first = plan(Resolved(starts=at(0, 0), ends=at(15, 15), begins=at(0, 0)), TERMS, COMMITS)
    second = plan(Resolved(starts=at(15, 15), ends=at(25, 25), begins=at(0, 0)), TERMS, COMMITS)
    closed = [(step.ends, step.emits) for step in first if step.closing]
    assert closed == [(at(15, 15), True)]
    assert [(step.ends, step.emits) for step in second if step.closing] == [(at(15, 15), False), (at(25, 25), True)]


def test_partitions_that_a_range_does_not_name_stay_where_the_range_begins() -> None:
    resolved = Resolved(starts={("in", 0): 20}, ends={("in", 0): 30}, begins=at(0, 0))
    steps = plan(resolved, TERMS, COMMITS)
    assert {step.ends["in", 1] for step in steps if step.emits} == {20}
    assert covered(steps, at(0, 0))[2] == {("in", 0): 30}


def test_empty_state_warms_up_and_keeps_to_the_limits() -> None:
    terms = replace(TERMS, state=BackfillState.EMPTY, limits=[(SourceTopics.of(["in"]), 10)])
    resolved = Resolved(starts=at(10, 10), ends=at(25, 25), begins=at(5, 0))
    steps = plan(resolved, terms, ())
    suppressed, first, counted = covered(steps, at(5, 0))
    assert (suppressed, first, counted) == ({("in", 0): 5, ("in", 1): 10}, at(10, 10), at(25, 25))
    sizes = [sum(step.ends.values()) for step in steps]
    assert max(after - before for before, after in zip([5, *sizes], sizes, strict=False)) <= 10
    assert [step.emits for step in steps if step.closing] == [False, True]


def test_the_limit_of_a_source_is_for_all_its_topics_together() -> None:
    limits = [(SourceTopics.of(["a", "b"]), 10), (SourceTopics.of("c"), 100)]
    terms = replace(TERMS, state=BackfillState.EMPTY, limits=limits)
    ends = {("a", 0): 15, ("b", 0): 15, ("c", 0): 90}
    steps = plan(Resolved(starts=dict.fromkeys(ends, 0), ends=ends, begins=dict.fromkeys(ends, 0)), terms, ())
    assert len([step for step in steps if step.emits and not step.closing]) == 3


def test_what_is_compared_from_an_empty_state_has_the_recorded_batches() -> None:
    terms = replace(TERMS, state=BackfillState.EMPTY, kind=Output.COMPARE)
    resolved = Resolved(starts=at(10, 10), ends=at(30, 30), begins=at(10, 10), commits=(2, 4))
    steps = plan(resolved, terms, COMMITS)
    assert [(step.commit, step.exact) for step in steps if step.commit] == [(2, False), (3, False), (4, False)]


def test_commits_that_were_written_again_by_a_restore_are_refused() -> None:
    again = [*COMMITS, commit(6, at(20, 20), at(30, 30))]
    with pytest.raises(RefusedError, match=r"commit 6 ends at offset 30 of in-0, before the commits in front of it"):
        plan(Resolved(starts=at(20, 20), ends=at(30, 30), begins=at(0, 0), commits=(6, 6)), TERMS, again)


def test_a_partition_that_nobody_had_seen_is_read_from_its_beginning() -> None:
    resolved = Resolved(
        starts={**at(20), ("in", 1): 4}, ends={**at(30), ("in", 1): 9}, begins=at(0), unseen={("in", 1): 1}
    )
    commits: list[CommitRecord] = [
        commit(number, {("in", 0): 10 * number - 10}, {("in", 0): 10 * number}) for number in range(1, 4)
    ]
    begins: Mapping[tuple[str, int], int] = {("in", 0): 0, ("in", 1): 1}
    steps = plan(resolved, TERMS, commits)
    position = dict(begins)
    for step in steps:
        position = {**position, **step.ends}
    suppressed, first, counted = covered([replace(step, ends={**begins, **step.ends}) for step in steps], dict(begins))
    assert (suppressed["in", 1], first["in", 1], counted["in", 1]) == (3, 4, 9)


def test_commits_that_are_younger_than_the_range_do_not_cut_it_elsewhere() -> None:
    resolved = Resolved(starts=at(10, 10), ends=at(40, 40), begins=at(0, 0), newest_commit=3)
    assert plan(resolved, TERMS, COMMITS) == plan(resolved, TERMS, COMMITS[:3])
    assert plan(replace(resolved, newest_commit=None), TERMS, COMMITS) != plan(resolved, TERMS, COMMITS)


def test_a_commit_that_the_ledger_has_forgotten_is_missed() -> None:
    resolved = Resolved(starts=at(20, 20), ends=at(40, 40), begins=at(0, 0), commits=(4, 5))
    with pytest.raises(RefusedError, match=r"commit 2 of pipeline p is not in its ledger any more"):
        plan(resolved, TERMS, [COMMITS[0], *COMMITS[2:]])
