"""The example with a Delta table: ``dag.test()``, a driver that dies between its sinks, and DuckDB behind the gate."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.failpoints import VARIABLE as FAILPOINTS
from demo import purchases, topics
from tests.delta_reader import read_delta
from tests.integration.airflow.conftest import ROOT, Airflow
from tests.integration.streaming.harness import World, read_committed

RUN = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
assert not bag.import_errors, bag.import_errors
run = bag.dags["lakehouse"].test(run_conf=json.loads(sys.argv[2]))
assert run.state == "success", run.state
revenue = [ti for ti in run.get_task_instances() if ti.task_id == "revenue"][0].xcom_pull("revenue")
open(sys.argv[3], "w").write(json.dumps(revenue))
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_query_behind_the_gate_sees_every_event_once(airflow: Airflow, world: World, tmp_path: Path) -> None:
    world.pipeline = "lakehouse"
    sent = purchases.read()[:3000]
    topics.feed(world.config, world.source, sent)
    table, result = tmp_path / "events", tmp_path / "revenue.json"
    environment = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": dict(world.config)}),
        "SHOP_SOURCE": world.source,
        "SHOP_TOPIC": world.sink,
        "SHOP_BATCH": "1000",
        FAILPOINTS: "after-sink-commit:run=1:batch=1",
    }
    conf = json.dumps({"home": str(world.home), "table": str(table)})
    dag = str(ROOT / "dags" / "lakehouse.py")
    airflow.run([sys.executable, "-c", RUN, dag, conf, str(result)], environment, 380)

    paid: dict[str, Decimal] = defaultdict(Decimal)
    for event in sent:
        paid[f"{event.day[:4]}-{event.day[4:6]}"] += event.dollars
    assert json.loads(result.read_text()) == {month: f"{dollars:.2f}" for month, dollars in sorted(paid.items())}
    rows = sorted(read_delta(table), key=lambda row: row["event_id"])
    assert rows == [row_of(event) for event in sorted(sent, key=lambda event: event.line)]
    values = [json.loads(record.value or b"")["event_id"] for record in read_committed(world.config, world.sink)]
    assert sorted(values) == sorted(event.line for event in sent)
    assert [run.run for run in world.ledger()[1]] == [1, 2]


def row_of(purchase: purchases.Purchase) -> dict[str, object]:
    day = dt.datetime.strptime(purchase.day, "%Y%m%d").replace(tzinfo=dt.UTC)
    return {
        "event_id": purchase.line,
        "uuid": purchase.customer,
        "itemCode": f"cd-{purchase.disks}",
        "behavior": "pay",
        "price": purchase.dollars,
        "ts": day,
        "month": f"{day:%Y-%m}",
    }
