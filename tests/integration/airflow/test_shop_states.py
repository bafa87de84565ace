"""The example of the shop's programs with state: ``dag.test()`` with real drivers, each of which is killed once."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.failpoints import VARIABLE as FAILPOINTS
from tests import shop
from tests.integration.airflow.conftest import ROOT, Airflow
from tests.integration.streaming.test_shop import SOURCE, check, create, kafka, send, world_of

__all__ = ["kafka"]

RUN = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
assert not bag.import_errors, bag.import_errors
run = bag.dags["shop_states"].test(run_conf=json.loads(sys.argv[2]))
assert run.state == "success", run.state
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_program_goes_through_the_dag(
    airflow: Airflow, kafka: Mapping[str, str], tmp_path: Path, spark_classes: None
) -> None:
    worlds = {job: world_of(job, kafka, tmp_path) for job in shop.JOBS}
    create(kafka, [SOURCE, *(world.sink for world in worlds.values())])
    events = list(shop.events(2000, users=50, seed=41))
    send(kafka, events)
    environment = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": dict(kafka)}),
        FAILPOINTS: "after-pre-commit:run=1:batch=0",
    }
    conf = json.dumps({"homes": str(tmp_path)})
    airflow.run([sys.executable, "-c", RUN, str(ROOT / "dags" / "shop_states.py"), conf], environment, 800)
    for job, world in worlds.items():
        check(world, job, events)
        assert [run.run for run in world.ledger()[1]] == [1, 2], job
