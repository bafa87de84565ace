"""Kafka and two tables of PostgreSQL in one query: killed at each step, set back, restored, superseded."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import AuditFailedError
from tests import commands
from tests.integration.streaming.harness import Driver, World, check_ledger, read_committed
from tests.postgres import PostgresServer, environment
from tests.waiting import eventually

JOB = Path(__file__).parents[3] / "dags" / "jobs" / "shop_postgres.py"
EVENTS = "CREATE TABLE shop_events (id bigint PRIMARY KEY, k text NOT NULL, v numeric(12,2) NOT NULL, commit bigint)"
LATEST = "CREATE TABLE shop_latest (k text PRIMARY KEY, id bigint NOT NULL, v numeric(12,2) NOT NULL)"
BATCH = 100


class Shop:
    """The pipeline of the example, its topics and its database."""

    def __init__(self, world: World, server: PostgresServer, parameters: Mapping[str, str]) -> None:
        world.job = str(JOB)
        self.world, self.server, self.parameters = world, server, parameters

    def sql(self, *statements: str) -> list[Any]:
        with self.server.connect(self.parameters) as connection:
            cursors = [connection.execute(statement) for statement in statements]
            return cursors[-1].fetchall() if cursors[-1].description else []

    def start(self, failpoints: str | None = None, until: str = "available", own_jvm: bool = False) -> Driver:
        return self.world.start(environment=self.environment(), failpoints=failpoints, until=until, own_jvm=own_jvm)

    def environment(self) -> Mapping[str, str]:
        return {
            "SHOP_PIPELINE": self.world.pipeline,
            "SHOP_SOURCE": self.world.source,
            "SHOP_TOPIC": self.world.sink,
            "SHOP_BATCH": str(BATCH),
            **environment(self.parameters),
        }

    def finish(self) -> None:
        driver = self.start()
        assert driver.wait() == 0, driver.output()[-3000:]

    def check(self, *, reclaims: int = 0) -> None:
        """Compare all three sinks with the input, record by record, and all ledgers with each other."""
        world, sent = self.world, range(self.world.sent)
        events = [(number, f"k{number % 37}", Decimal(number) / 100) for number in sent]
        assert self.sql("SELECT id, k, v FROM shop_events ORDER BY id") == events
        latest = {key: (key, number, value) for number, key, value in events}
        kept = sorted(row for row in latest.values() if row[1] % 41)
        assert sorted(self.sql("SELECT k, id, v FROM shop_latest")) == kept
        values = [
            json.loads(record.value or b"", parse_float=Decimal) for record in read_committed(world.config, world.sink)
        ]
        assert sorted((value["id"], value["k"], Decimal(value["v"])) for value in values) == events[100:]
        commits = check_ledger(world, reclaims=reclaims)
        assert sum(commit.rows for commit in commits) == len(events[100:])
        for sink in ("events", "latest"):
            ledger = f"SELECT entry FROM exactlyonce.commits WHERE sink = '{sink}' ORDER BY number"
            assert [(of["commit"], of["rows"], int(of["digest"], 16)) for (of,) in self.sql(ledger)] == [
                (commit.commit, commit.others[sink].rows, commit.others[sink].digest) for commit in commits
            ]
        by_commit = dict(self.sql("SELECT commit, count(*) FROM shop_events GROUP BY commit"))
        assert by_commit == {commit.commit: commit.others["events"].rows for commit in commits}
        assert self.sql("SELECT relname FROM pg_class WHERE relname LIKE 'stage\\_%'") == []


@pytest.fixture
def shop(world: World, postgres: PostgresServer, database: Mapping[str, str]) -> Iterator[Shop]:
    shop = Shop(world, postgres, database)
    shop.sql(EVENTS, LATEST)
    yield shop
    world.end()


def killed_at(shop: Shop, step: str) -> None:
    driver = shop.start(step)
    assert driver.wait() == -signal.SIGKILL, f"{step}: {driver.output()[-3000:]}"


@pytest.mark.slow  # the crash matrix has drivers, and the sinks' conformance has each step of theirs
def test_each_sink_has_each_record_once_whichever_step_the_driver_dies_at(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.world.send(4 * BATCH)
    for step in ("after-sink-pre-commit:batch=0", "after-sink-commit:batch=1"):
        killed_at(shop, step)
    shop.finish()
    shop.check()
    for name, value in shop.environment().items():
        monkeypatch.setenv(name, value)
    audit = ["audit-sinks", str(JOB), *shop.world.servers]
    agree = "sink events: agrees with the ledger\nsink latest: agrees with the ledger"
    assert agree in commands.run(*audit).out
    shop.sql("DELETE FROM shop_events WHERE id = 7")
    assert "sink events: commit" in commands.run(*audit, code=AuditFailedError.exit_code).err


@pytest.mark.slow
def test_the_other_steps_lose_and_double_nothing_either(shop: Shop) -> None:
    shop.world.send(8 * BATCH)
    for step in (
        "after-sink-claim:run=1",
        "before-sink-decision:batch=0",
        "after-begin:batch=0",
        "during-send:batch=1",
        "after-pre-commit:batch=2",
        "after-end-transaction:batch=3",
        "after-commit:batch=4",
    ):
        killed_at(shop, step)
    shop.finish()
    shop.check()


@pytest.mark.slow
def test_a_database_that_was_set_back_alone_beside_its_driver_gets_what_it_lacks(shop: Shop) -> None:
    shop.world.send(3 * BATCH)
    shop.finish()
    commands.run("savepoint", shop.world.pipeline, *shop.world.at_home)
    saved = shop.world.commits()
    tables = ("shop_events", "shop_latest", "exactlyonce.commits", "exactlyonce.claims")
    copies = {table: f"backup.{table.rpartition('.')[2]}" for table in tables}
    shop.sql("CREATE SCHEMA backup", *[f"CREATE TABLE {copy} AS TABLE {table}" for table, copy in copies.items()])
    shop.world.send(3 * BATCH)
    running = shop.start(until="forever")
    eventually(lambda: shop.world.commits() == 2 * saved, "all is committed")
    shop.check()
    delivered = len(read_committed(shop.world.config, shop.world.sink))
    for table, copy in copies.items():
        shop.sql(f"DELETE FROM {table}", f"INSERT INTO {table} TABLE {copy}")
    shop.world.send(BATCH)
    for refused in (running, shop.start()):
        assert refused.wait() == 64, refused.output()[-3000:]
        assert f"the sink was set back. Restore a savepoint at or before commit {saved}" in refused.output()
    commands.run("restore", shop.world.pipeline, "--commit", str(saved), *shop.world.at_home)
    shop.finish()
    shop.check(reclaims=1)  # of the driver that was running
    assert len(read_committed(shop.world.config, shop.world.sink)) == delivered + BATCH


@pytest.mark.slow
def test_a_driver_that_holds_the_lock_is_superseded_and_commits_nothing_any_more(shop: Shop, tmp_path: Path) -> None:
    shop.world.send(3 * BATCH)
    held = tmp_path / "held"
    old = shop.start(f"before-sink-decision:batch=1:hold={held}", until="forever", own_jvm=True)
    eventually(held.exists, "the old driver holds the claim's lock")
    old.freeze(shop.world.home)
    shop.finish()
    old.thaw()
    held.unlink()
    assert old.wait() == 66, old.output()[-3000:]
    shop.check()


@pytest.mark.slow
def test_the_plan_runs_once_for_all_sinks(shop: Shop, tmp_path: Path) -> None:
    """A function of the plan notes each row that it is called with."""
    seen = tmp_path / "seen"
    counting = tmp_path / "counting.py"
    plain = JOB.read_text()
    noted = plain.replace(
        '    return payments.selectExpr("struct(id, k, v) AS event"',
        f"    from pyspark.sql.functions import udf\n\n"
        f"    note = udf(lambda number: (open({str(seen)!r}, 'a').write(f'{{number}}\\n'), number)[1], 'bigint')\n"
        '    payments = payments.withColumn("id", note("id"))\n'
        '    return payments.selectExpr("struct(id, k, v) AS event"',
    )
    assert noted != plain
    counting.write_text(noted)
    shop.world.job = str(counting)
    shop.world.send(2 * BATCH)
    shop.finish()
    shop.check()
    assert sorted(map(int, seen.read_text().split())) == list(range(2 * BATCH))
