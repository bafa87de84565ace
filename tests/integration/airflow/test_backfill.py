"""The example of hourly intervals: ``dag.test()`` for one, and Airflow's own backfill of a day, with a scheduler."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from tests.integration.airflow.conftest import ROOT, Airflow
from tests.integration.airflow.standalone import eventually, standalone
from tests.integration.streaming.harness import CONF, read_committed

DAY = datetime(2026, 1, 1, tzinfo=UTC)
ITEMS = 20
Totals = dict[str, tuple[Decimal, int]]

RUN = """
import sys
import pendulum
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
assert not bag.import_errors, bag.import_errors
moment = pendulum.parse(sys.argv[2])
run = bag.dags["shop_hours"].test(logical_date=moment)
assert run.state == sys.argv[3], run.state
"""


@pytest.fixture(scope="module")
def truth(kafka_config: Mapping[str, str]) -> dict[datetime, Totals]:
    """Produce a day of sales with timestamps of its hours; gives what each hour took for each item."""
    admin = AdminClient(dict(kafka_config))
    topics = [
        NewTopic(name, num_partitions=3, replication_factor=1)
        for name in ("shop.sales", "shop.items.hourly", "shop.items")
    ]
    for future in admin.create_topics(topics).values():
        future.result(30)
    producer, chance = Producer({**kafka_config, "enable.idempotence": True}), random.Random(11)
    totals: dict[datetime, Totals] = {}
    sale = 0
    for hour in range(24):
        begins = DAY + timedelta(hours=hour)
        of_hour = totals.setdefault(begins, {})
        seconds = sorted(chance.random() * 3600 for _ in range(0 if hour == 5 else chance.randrange(50, 400)))
        for second in seconds:
            item, price = f"i{chance.randrange(ITEMS)}", Decimal(chance.randrange(1, 10_000)) / 100
            taken, sales = of_hour.get(item, (Decimal(0), 0))
            of_hour[item] = taken + price, sales + 1
            value = json.dumps({"sale_id": sale, "itemCode": item, "price": float(price)})
            stamp = int((begins + timedelta(seconds=second)).timestamp() * 1000)
            producer.produce("shop.sales", value, partition=sale % 3, timestamp=stamp)
            sale += 1
    assert producer.flush(30) == 0
    return totals


def committed(config: Mapping[str, str]) -> dict[str, tuple[int, Totals]]:
    """Return of each backfill how many rows it wrote and their totals, by the ranges of its ledger."""
    with LedgerReader(config, "shop-items.backfill") as reader:
        records = list(reader.commits())
    rows = {
        (row.partition, row.offset): json.loads(row.value or b"") for row in read_committed(config, "shop.items.hourly")
    }
    totals: dict[str, tuple[int, Totals]] = {}
    for record in records:
        number, of_backfill = totals.get(str(record.backfill), (0, {}))
        for partition, span in record.sink.get("shop.items.hourly", {}).items():
            for offset in range(span.first, span.last + 1):
                row = rows.pop((partition, offset))
                of_backfill[row["itemCode"]] = Decimal(str(row["taken"])), row["sales"]
                number += 1
        totals[str(record.backfill)] = number, of_backfill
    assert rows == {}, "every row is in the ledger, once"
    return totals


def check(
    config: Mapping[str, str], results: Mapping[datetime, dict[str, Any]], truth: Mapping[datetime, Totals]
) -> None:
    """Compare what each interval wrote with what was sold in it."""
    written = committed(config)
    for hour, result in results.items():
        number, totals = written[result["backfill"]]
        wanted = truth.get(hour, {})  # Airflow runs the hour before now by itself
        assert totals == wanted, hour
        assert (result["rows"], number) == (len(wanted), len(wanted))
        assert result["records"] == sum(sales for _, sales in wanted.values())
    assert {result["backfill"] for result in results.values()} == set(written)


def results_of(airflow: Airflow) -> dict[datetime, dict[str, Any]]:
    rows = airflow.query(
        "SELECT r.data_interval_start, x.value FROM xcom x "
        "JOIN dag_run r ON r.dag_id = x.dag_id AND r.run_id = x.run_id WHERE x.dag_id = 'shop_hours' "
        "AND x.key = 'return_value' AND x.task_id = 'hour'"
    )
    return {datetime.fromisoformat(start).replace(tzinfo=UTC): json.loads(value) for start, value in rows}


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the example in a folder of its own, with a home there and settings that let Spark start faster."""
    folder = tmp_path_factory.mktemp("dags")
    text = (ROOT / "dags" / "backfill.py").read_text()
    for said, ours in (
        ('conf={"spark.sql.shuffle.partitions": "4"}', f"conf={CONF!r}"),
        ("~/.exactlyonce/shop-items", str(folder / "home")),
    ):
        assert said in text
        text = text.replace(said, ours)
    (folder / "backfill.py").write_text(text)
    (folder / "jobs").symlink_to(ROOT / "dags" / "jobs")
    (folder / ".airflowignore").write_text("jobs\nhome\n")
    return folder


@pytest.mark.slow
def test_an_interval_gives_its_truth_and_is_not_written_twice(
    airflow: Airflow,
    kafka_config: Mapping[str, str],
    truth: Mapping[datetime, Totals],
    example: Path,
) -> None:
    # Its interval is from 2 to 3 o'clock. Airflow's backfill, below, leaves out a logical date that has a run.
    moment = (DAY + timedelta(hours=3, minutes=30)).isoformat()
    for _ in range(2):
        command = [sys.executable, "-c", RUN, str(example / "backfill.py"), moment, "success"]
        airflow.run(command, {"AIRFLOW__CORE__DAGS_FOLDER": str(example)})
    results = results_of(airflow)
    assert len(results) == 1
    check(kafka_config, results, truth)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_airflows_backfill_of_a_day_gives_each_hour_its_truth(
    airflow: Airflow,
    kafka_config: Mapping[str, str],
    truth: Mapping[datetime, Totals],
    example: Path,
) -> None:
    names = {"AIRFLOW__CORE__DAGS_FOLDER": str(example)}
    # Asked before the scheduler runs: SQLite lets nobody read and then write while another one writes.
    airflow.run(airflow.command("dags", "reserialize"), names)
    airflow.run(
        airflow.command(
            *("backfill", "create", "--dag-id", "shop_hours", "--max-active-runs", "6"),
            *("--from-date", DAY.isoformat(), "--to-date", (DAY + timedelta(hours=23)).isoformat()),
        ),
        names,
    )
    with standalone(airflow, names) as output:

        def states() -> list[str]:
            query = "SELECT state FROM dag_run WHERE dag_id = 'shop_hours' AND backfill_id IS NOT NULL"
            return [state for (state,) in airflow.query(query)]

        def ended() -> bool:
            current = states()
            return len(current) == 24 and set(current) <= {"success", "failed"}

        eventually(ended, "all runs have ended", output, 3000)
        assert set(states()) == {"success"}, airflow.task_logs()
    results = {hour: result for hour, result in results_of(airflow).items() if hour in truth}
    assert len(results) == 24
    check(kafka_config, results_of(airflow), truth)
    assert airflow.processes() == []
