"""The example of a maintenance window: ``dag.test()`` with a real driver; and its operators on a stopped pipeline."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import lease, status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.operators.savepoint import SavepointOperator, StopPipelineOperator
from tests.integration.airflow.conftest import ROOT, Airflow
from tests.integration.streaming.harness import World, check_counts
from tests.waiting import eventually

RUN = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
assert not bag.import_errors, bag.import_errors
run = bag.dags["shop_maintenance"].test(run_conf=json.loads(sys.argv[2]))
assert run.state == "success", run.state
"""


def result(airflow: Airflow, task_id: str) -> Any:
    """Return what the task gave the last time: other tests, in the same Airflow, run the same DAG."""
    values = airflow.query(
        "SELECT value FROM xcom WHERE dag_id = 'shop_maintenance' AND key = 'return_value' AND task_id = ? "
        "ORDER BY timestamp",
        task_id,
    )
    return json.loads(values[-1][0])


@pytest.mark.slow
def test_the_window_saves_a_running_pipeline_stops_it_with_a_savepoint_and_cleans_up(
    airflow: Airflow, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send(1000)
    driver = world.start(until="forever")
    try:
        eventually(lambda: world.commits() >= 1, "it commits")
        conf = json.dumps({"pipeline": world.pipeline, "sink": world.sink})
        examples = {"AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags")}
        airflow.run([sys.executable, "-c", RUN, str(ROOT / "dags" / "maintenance.py"), conf], examples)
        assert driver.wait() == 0, driver.output()[-3000:]
    finally:
        driver.end()
    home = Home(world.home)
    last_status = status.read(home.status)
    assert last_status is not None
    assert last_status.state is DriverState.STOPPED
    commits, _ = world.ledger()
    saved, stopped = result(airflow, "save"), result(airflow, "stop")
    first, last = Savepoints(home.savepoints).list()
    assert (saved["savepoint"], saved["path"]) == (first.id, str(home.savepoints / first.id))
    assert (first.label or "").startswith("before manual__")
    assert (stopped["savepoint"]["savepoint"], stopped["state"], stopped["run"]) == (last.id, "stopped", 1)
    assert stopped["commit"] == last.commit == commits[-1].commit
    assert result(airflow, "clean_up") == {"pipeline": world.pipeline, "deleted": [], "kept": [first.id, last.id]}
    assert result(airflow, "running")["state"] == "running"
    assert result(airflow, "stopped")["state"] == "stopped"
    audited = result(airflow, "audit")
    assert (audited["clean"], audited["last"]) == (True, stopped["commit"])
    assert audited["rows"] == sum(commit.rows for commit in commits)
    decided = result(airflow, "decided")["offsets"]
    assert set(decided) == {world.sink}
    fixed = airflow.query(
        "SELECT value FROM task_state_store WHERE dag_id = 'shop_maintenance' AND task_id = 'decided' "
        "AND expires_at IS NULL"
    )
    assert decided in [json.loads(value)["fixed"]["targets"] for (value,) in fixed]
    for savepoint in (first, last):
        assert Savepoints(home.savepoints).verify(savepoint.id) == []
    assert list(home.commands.glob("savepoint-*")) == []

    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", airflow.environment["AIRFLOW_CONN_KAFKA_DEFAULT"])
    ti = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1)
    context: Any = {"ti": ti}
    here = SavepointOperator(task_id="t", pipeline=world.pipeline, label="of the stopped pipeline").execute(context)
    assert here["commit"] == commits[-1].commit
    assert SavepointOperator(task_id="t", pipeline=world.pipeline).execute(context) == here
    assert StopPipelineOperator(task_id="t", pipeline=world.pipeline).execute(context)["savepoint"] is None
    assert [savepoint.id for savepoint in Savepoints(home.savepoints).list()] == [first.id, last.id, here["savepoint"]]
    assert lease.read(home.lease) is None
    check_counts(world, complete=False)
