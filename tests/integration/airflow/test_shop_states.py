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
from tests.integration.streaming.test_shop import (
    NUMBERS,
    SOURCE,
    SWITCHES,
    check,
    check_parcels,
    check_switched,
    counted,
    create,
    kafka,
    send,
    send_numbers,
    turn,
    world_of,
)

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
@pytest.mark.timeout(3600)
def test_each_program_goes_through_the_dag(airflow: Airflow, kafka: Mapping[str, str], tmp_path: Path) -> None:
    worlds = {job: world_of(job, kafka, tmp_path) for job in (*shop.JOBS, "shop_switch", "shop_counts", "shop_parcels")}
    create(kafka, [SOURCE, SWITCHES, NUMBERS, *(world.sink for world in worlds.values())])
    events = list(shop.events(2000, users=50, seed=41))
    send(kafka, events)
    send_numbers(kafka, range(1, 2001))
    turn(kafka, "on")
    environment = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": dict(kafka)}),
        FAILPOINTS: "after-pre-commit:run=1:batch=0",
    }
    conf = json.dumps({"homes": str(tmp_path)})
    airflow.run([sys.executable, "-c", RUN, str(ROOT / "dags" / "shop_states.py"), conf], environment, 1400)
    for job, world in worlds.items():
        if job in shop.JOBS:
            check(world, job, events)
        assert [run.run for run in world.ledger()[1]] == [1, 2], job
    check_switched(worlds["shop_switch"], {"on"})
    assert counted(worlds["shop_counts"]) == 2000
    check_parcels(worlds["shop_parcels"], events)
