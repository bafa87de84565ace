"""A sink that was set back, or is one commit ahead: what the pipeline's start and its recovery make of it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka.transaction import TransactionSession
from airflow_provider_exactlyonce.kafka.wire import WireClient
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord, transactional_id
from dags.jobs.own_sink import SqliteSink
from tests.integration.protocol.alone import Alone, offsets_text


@pytest.fixture
def alone(tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str]) -> Alone:
    name = f"alone-{uuid.uuid4().hex[:8]}"
    return Alone(
        config=kafka_config,
        name=name,
        source=make_topic(partitions=1),
        home=Home(tmp_path / "home"),
        sinks=[table(tmp_path, "one")],
    )


def table(folder: Path, name: str) -> SqliteSink:
    with closing(sqlite3.connect(folder / f"{name}.db")) as database:
        database.execute("CREATE TABLE payments (id INT, k TEXT, v REAL)")
    return SqliteSink(name=name, path=folder / f"{name}.db", table="payments")


def tables(alone: Alone) -> list[SqliteSink]:
    return cast(list[SqliteSink], alone.sinks)


def ids(sink: SqliteSink) -> list[int]:
    with closing(sqlite3.connect(sink.path)) as database:
        return [number for (number,) in database.execute("SELECT id FROM payments ORDER BY id")]


def commits(alone: Alone) -> list[CommitRecord]:
    with LedgerReader(alone.config, alone.name) as reader:
        return list(reader.commits())


def lose_producer(alone: Alone) -> None:
    """Take the pipeline's transactional id, as a stray client does: its next request is refused."""
    client = WireClient(dict(alone.config))
    TransactionSession(client, transactional_id(alone.name), timeout_milliseconds=60_000).initialise()
    client.close()


def test_a_producer_that_is_lost_while_a_set_back_sink_is_brought_up_is_replaced_and_the_replay_goes_on(
    alone: Alone, tmp_path: Path
) -> None:
    (sink,) = tables(alone)
    with alone.life() as life:
        life.fit()
        life.batch(0)
        shutil.copy(sink.path, tmp_path / "backup.db")
        for number in (1, 2, 3):
            life.batch(number)
    shutil.copy(tmp_path / "backup.db", sink.path)
    alone.lineage_at(1)
    with alone.life() as life:
        assert life.fit(), "commits 2 to 4 have to be run again"
        recorded = {commit.commit: commit for commit in commits(alone)}
        life.batch(1, recorded=recorded[2])
        lose_producer(alone)
        life.batch(2, recorded=recorded[3])
        life.batch(3, recorded=recorded[4])
        assert life.told == [(2, True), (3, True), (4, True)]
    assert ids(sink) == list(range(40))


class DeathError(BaseException):
    """The process dies here."""


def die_behind(monkeypatch: pytest.MonkeyPatch, sinks: int) -> None:
    """Die when so many sinks have committed and the pipeline's ledger has not."""
    left = [sinks]

    def reach(name: str) -> None:
        left[0] -= name == "after-sink-commit"
        if not left[0]:
            monkeypatch.undo()
            raise DeathError

    monkeypatch.setattr(failpoints, "reach", reach)


def leave_ahead(alone: Alone, monkeypatch: pytest.MonkeyPatch, *, sinks: int = 1) -> list[int]:
    """Commit two batches, and a third one to so many sinks only; returns the first rows of the fourth."""
    with alone.life() as life:
        life.fit()
        life.batch(0)
        life.batch(1)
        die_behind(monkeypatch, sinks)
        with pytest.raises(DeathError):
            life.batch(2, end=37)  # 17 records
    assert len(commits(alone)) == 2
    return list(range(37))


def tear(alone: Alone) -> None:
    current = alone.home.current()
    assert current is not None
    (alone.home.checkpoint(current.id) / "offsets/2").write_text("v1\n{")


def halve(alone: Alone) -> None:
    current = alone.home.current()
    assert current is not None
    Checkpoint(alone.home.checkpoint(current.id)).write_offsets(2, offsets_text(alone.source, {0: 28}))


def restore(alone: Alone) -> None:
    alone.lineage_at(2)


@pytest.mark.parametrize("change", [tear, halve, restore])
def test_a_batch_that_a_sink_has_and_the_ledger_lacks_is_planned_from_the_sinks_entry_whatever_the_checkpoint_says(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, change: Callable[[Alone], None]
) -> None:
    rows = leave_ahead(alone, monkeypatch)
    change(alone)
    with alone.life() as life:
        life.fit()
        planned = life.checkpoint.offsets(2)
        assert planned is not None
        assert planned.timestamp == 1_700_000_000_002, "what a job computes of it comes out again"
        life.batch(2)
        life.batch(3, end=50)
        assert life.told == [(3, False), (4, False)]
    assert ids(tables(alone)[0]) == [*rows, *range(37, 50)]
    assert [commit.source[alone.source][0] for commit in commits(alone)][2:] == [(20, 37), (37, 50)]


def test_an_entry_of_0_1_0_has_the_ranges_and_no_times_and_is_planned_now(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = leave_ahead(alone, monkeypatch)
    with closing(sqlite3.connect(tables(alone)[0].path)) as database:
        ((text,),) = database.execute("SELECT entry FROM ledger WHERE number = 3").fetchall()
        old = {name: of for name, of in json.loads(text).items() if name not in ("watermark", "batch_timestamp")}
        database.execute("UPDATE ledger SET entry = ? WHERE number = 3", (json.dumps(old),))
        database.commit()
    tear(alone)
    with alone.life() as life:
        life.fit()
        life.batch(2)
        assert life.told == [(3, False)]
    assert ids(tables(alone)[0]) == rows


@pytest.mark.parametrize("ahead", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_two_sinks_of_which_one_or_both_are_ahead_get_the_same_batch(
    alone: Alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    both = replace(alone, sinks=[*alone.sinks, table(tmp_path, "two")])
    rows = leave_ahead(both, monkeypatch, sinks=ahead)
    halve(both)
    with both.life() as life:
        life.fit()
        life.batch(2)
    assert [ids(sink) for sink in tables(both)] == [rows, rows]


def test_two_sinks_that_are_ahead_with_different_input_are_refused_by_name_before_anybody_is_fenced(
    alone: Alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = replace(alone, sinks=[*alone.sinks, table(tmp_path, "two")])
    leave_ahead(both, monkeypatch, sinks=2)
    with closing(sqlite3.connect(tables(both)[1].path)) as database:
        database.execute("UPDATE ledger SET entry = replace(entry, '37', '38') WHERE number = 3")
        database.commit()
    said = r"sinks one and two have commit 3.* 20\.\.37 of run 1.* 20\.\.38 of run 1"
    with pytest.raises(RefusedError, match=said), both.life():
        pass
    with LedgerReader(both.config, both.name) as reader:
        tail = reader.tail()
    assert tail is not None and tail.place.run == 1


def test_a_lineage_that_writes_again_what_is_older_than_the_sinks_commit_is_refused_with_the_way_out(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_ahead(alone, monkeypatch)
    lineage = alone.lineage_at(1)
    alone.home.remember(replace(lineage, base_commit=2, reemits=1))
    with (
        alone.life() as life,
        pytest.raises(RefusedError, match=r"commit 3.* offset 20 .* goes on at 10: a restore in"),
    ):
        life.fit()


def test_input_of_the_owed_batch_that_is_gone_is_named(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(dict(alone.config))
    for number in range(40):
        producer.produce(alone.source, str(number))
    assert producer.flush(30) == 0
    leave_ahead(alone, monkeypatch)
    tear(alone)
    admin = AdminClient(dict(alone.config))
    place = TopicPartition(alone.source, 0, 25)
    admin.delete_records([place])[place].result(30)
    with alone.life() as life, pytest.raises(RefusedError, match=rf"gone: first {alone.source}-0, offsets 20 to 24"):
        life.fit()
