"""The example with PostgreSQL: ``dag.test()`` with a real driver that is killed once, and Airflow's own connections."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.failpoints import VARIABLE as FAILPOINTS
from tests.integration.airflow.conftest import ROOT, Airflow
from tests.integration.streaming.harness import World
from tests.postgres import PostgresServer

TABLES = (ROOT / "dags" / "jobs" / "shop_postgres.py").read_text().partition('"""')[2].partition('"""')[0]
RUN = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
assert not bag.import_errors, bag.import_errors
run = bag.dags["shop_postgres"].test(run_conf=json.loads(sys.argv[2]))
assert run.state == "success", run.state
print("counted", [ti for ti in run.get_task_instances() if ti.task_id == "count"][0].xcom_pull("count"))
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_tables_have_what_was_sent_and_no_password_is_shown(
    airflow: Airflow, world: World, postgres: PostgresServer, database: Mapping[str, str], tmp_path: Path
) -> None:
    with postgres.connect(database) as connection:
        for line in TABLES.splitlines():
            if line.strip().startswith("CREATE TABLE"):
                connection.execute(line)
    world.pipeline = "shop-postgres"
    world.send(300)
    password = "s3cret-of-postgres"
    given = {"host": database["host"], "schema": database["dbname"], "login": "postgres", "password": password}
    environment = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": dict(world.config)}),
        "AIRFLOW_CONN_POSTGRES_DEFAULT": json.dumps({"conn_type": "postgres", **given}),
        "SHOP_SOURCE": world.source,
        "SHOP_TOPIC": world.sink,
        FAILPOINTS: "after-sink-commit:run=1:batch=0",
    }
    conf = json.dumps({"home": str(world.home)})
    airflow.run([sys.executable, "-c", RUN, str(ROOT / "dags" / "shop_postgres.py"), conf], environment, 380)
    with postgres.connect(database) as connection:
        assert connection.execute("SELECT id FROM shop_events ORDER BY id").fetchall() == [(n,) for n in range(300)]
    assert [run.run for run in world.ledger()[1]] == [1, 2]
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not [file for file in written if password.encode() in file.read_bytes()]
