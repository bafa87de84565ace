"""The ledger, or a sink, is one commit ahead of the checkpoint: a crash between the two leaves it so."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.control.status import Status
from airflow_provider_exactlyonce.exceptions import DivergedError
from tests.integration.restore.harness import Bench, Case
from tests.integration.restore.shapes import Shape

pytestmark = pytest.mark.timeout(180)

SALT = {"salt": 0}


def salted(events: DataFrame) -> DataFrame:
    return events.select("id", "k", F.lit(SALT["salt"]).alias("salt"))


def forget_newest(case: Case) -> None:
    """Leave the checkpoint as a crash between the commit and Spark's note of it does."""
    current = case.home.current()
    assert current is not None
    checkpoint = Checkpoint(case.home.checkpoint(current.id))
    checkpoint.remove("commits", int(checkpoint.newest_commit() or 0))


def test_a_commit_that_the_checkpoint_runs_again_with_other_rows_is_judged_as_a_replay_of_one_commit(
    bench: Bench,
) -> None:
    SALT["salt"] = 0
    topics, rounds = bench.topics("stateless"), bench.input()
    case = bench.case(Shape(salted), topics)
    for _ in range(2):
        rounds.send(topics)
        case.run()
    before = case.commits()
    forget_newest(case)

    SALT["salt"] = 1
    case.run(expected=DivergedError.exit_code)
    assert case.commits() == before

    rounds.send(topics)
    assert account(case.run(accept_nondeterminism=True)) == (2, 2, [2], [])
    assert case.commits()[:2] == before, "what was delivered stays"

    forget_newest(case)
    SALT["salt"] = 2
    rounds.send(topics)
    delivered = case.commits()[2].version
    assert account(case.run(compression="gzip")) == (3, 3, [], [[delivered, 3, 3]]), (
        "another version's can't be compared"
    )
    assert [commit.commit for commit in case.commits()] == [1, 2, 3, 4]


def account(status: Status) -> tuple[int, int, list[int], list[Any]]:
    assert status.replay is not None and not status.replay.pending
    return status.replay.first, status.replay.last, status.replay.diverged, status.replay.not_compared
