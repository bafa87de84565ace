"""A pipeline that was restored wrote what one that never was did: record by record, with an independent reader."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_provider_exactlyonce.control.status import Status
from tests.integration.streaming.harness import clean_audit
from tests.integration.streaming.replay.harness import Bench
from tests.integration.streaming.replay.shapes import ROWS_A_BATCH, SHAPES


def replayed(last_status: Status, first: int, last: int) -> Status:
    """Check that a run has replayed these commits, compared all of them, and steered."""
    assert last_status.replay is not None
    assert (last_status.replay.first, last_status.replay.last, last_status.replay.done) == (first, last, last)
    assert not last_status.replay.not_compared and not last_status.replay.diverged
    assert last_status.replay.one_start_per_batch is None
    return last_status


def prove(bench: Bench, shape: str, *, at: Sequence[int], last: int) -> None:
    """Run to a commit with savepoints on the way; restore each, and go on to the end of the input every time.

    The pipeline that is never restored stops where the other does: a restart forgets what each watermark has seen.
    """
    topics = bench.topics(shape)
    case, plain = (bench.case(shape, topics, limit=ROWS_A_BATCH) for _ in range(2))
    rounds = bench.input()
    for _ in range(last // 2):
        rounds.send(topics)
    savepoints = {}
    for stop in (*at, last):
        while case.tail().place.commit < stop if case.home.current() else True:
            for twin in (case, plain):
                twin.run(stop_at=stop)
            if case.tail().place.commit < stop:  # all of the first half, with a batch without data at its end
                for _ in range(last):
                    rounds.send(topics)
        savepoints[stop] = case.save()
    for commit in at:
        newest = case.tail().place.commit
        case.restore(savepoints[commit])
        rounds.send(topics)
        replayed(case.run(), commit + 1, newest)
        plain.run()
        assert case.written() == plain.written(), f"after the restore of commit {commit}"
    assert case.tail().place.commit == plain.tail().place.commit
    clean_audit(case.config, case.name)


@pytest.mark.slow  # crashes, rescales and backfills restore, too
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shape", ["windowed", "update"])
def test_what_a_restored_pipeline_writes_is_what_one_that_never_was_does(bench: Bench, shape: str) -> None:
    prove(bench, shape, at=(1, 3), last=4)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shape", list(SHAPES))
def test_savepoints_of_commit_5_20_and_39_restore_at_commit_40(bench: Bench, shape: str) -> None:
    prove(bench, shape, at=(5, 20, 39), last=40)
