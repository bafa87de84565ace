"""A sink that was set back, or is one commit ahead, and what the pipeline's start and its recovery make of it."""

from __future__ import annotations

import shutil
import sqlite3
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.kafka.transaction import TransactionSession
from airflow_provider_exactlyonce.kafka.wire import WireClient
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord, transactional_id
from dags.jobs.own_sink import SqliteSink
from tests.integration.protocol.alone import Alone

pytestmark = pytest.mark.timeout(120)


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
    (sink,) = alone.sinks
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
