"""The ledger, or a sink, is one commit ahead of the checkpoint: a crash between the two leaves it so."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.control.status import Status
from airflow_provider_exactlyonce.exceptions import DivergedError
from airflow_provider_exactlyonce.streaming.declaration import Pipeline
from airflow_provider_exactlyonce.streaming.sinks.spi import Share
from dags.jobs.own_sink import SqliteSink
from tests.integration.streaming.replay.harness import Bench, Case
from tests.integration.streaming.replay.shapes import Shape

SALT = {"salt": 0}


def salted(events: DataFrame) -> DataFrame:
    return events.select("id", "k", F.lit(SALT["salt"]).alias("salt"))


def forget_newest(case: Case) -> None:
    """Leave the checkpoint as a crash between the commit and Spark's note of it does."""
    current = case.home.current()
    assert current is not None
    checkpoint = Checkpoint(case.home.checkpoint(current.id))
    checkpoint.removal("commits", int(checkpoint.newest_commit() or 0))()


@pytest.mark.slow
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
    other_version = case.run(compression="gzip")
    assert account(other_version) == (3, 3, [], [(delivered, 3, 3)]), "its rows can't be compared"
    assert [commit.commit for commit in case.commits()] == [1, 2, 3, 4]


def account(status: Status) -> tuple[int, int, list[int], list[Any]]:
    assert status.replay is not None and not status.replay.pending
    return status.replay.first, status.replay.last, status.replay.diverged, status.replay.not_compared


class WithTable(Case):
    """The case with a table before its Kafka sink."""

    table: SqliteSink

    def pipeline(self, **sink_options: Any) -> Pipeline:
        alone = super().pipeline(**sink_options)
        return replace(alone, routes=replace(alone.routes, others=[Share(self.table)]))


def rows_of(table: SqliteSink) -> Counter[str]:
    with closing(sqlite3.connect(table.path)) as database:
        rows = database.execute("SELECT start, k, n, s FROM windows").fetchall()
    names = ("start", "k", "n", "s", "seen")
    return Counter(json.dumps(dict(zip(names, (*row, None), strict=True)), sort_keys=True) for row in rows)


def numbers(table: SqliteSink) -> list[int]:
    with closing(sqlite3.connect(table.path)) as database:
        return [number for (number,) in database.execute("SELECT number FROM ledger ORDER BY number")]


@pytest.mark.slow
def test_a_restore_replays_up_to_the_ledger_and_then_runs_what_a_sink_has_more(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(tmp_path / "windows.db")) as database:
        database.execute("CREATE TABLE windows (start INT, k TEXT, n INT, s INT)")
    topics, rounds = bench.topics("windowed"), bench.input()
    case = WithTable(**vars(bench.case("windowed", topics)))
    case.table = SqliteSink(name="table", path=tmp_path / "windows.db", table="windows")
    rounds.send(topics)
    case.run()
    savepoint = case.save()
    rounds.send(topics)
    case.run()
    delivered = case.commits()

    rounds.send(topics)
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "reach", die_behind_the_sink)
        case.run(expected=1)
    assert case.commits() == delivered
    assert numbers(case.table)[-1] == len(delivered) + 1, "the table is one commit ahead"
    rounds.send(topics)
    case.restore(savepoint)
    status = case.run()

    assert status.replay is not None
    assert (status.replay.last, status.replay.pending) == (len(delivered), False)
    assert rows_of(case.table) == case.written(), "each row once in both"
    assert numbers(case.table) == [commit.commit for commit in case.commits()]
    assert sum(end - start for commit in case.commits() for start, end in commit.source[topics[""]].values()) == 160


def die_behind_the_sink(name: str) -> None:
    if name == "after-sink-commit":
        raise RuntimeError("dies here")
