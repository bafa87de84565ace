"""The DAG in one process, as people try it: ``dag.test()``, with a driver that dies on the way."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel

from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import restarts, status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.status import DriverState
from tests import commands
from tests.integration.airflow.conftest import Airflow, names_of, result_of
from tests.integration.streaming.harness import World, check_counts, end_offsets

RUN = """
import sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
assert not bag.import_errors, bag.import_errors
run = bag.dags[sys.argv[2]].test()
assert run.state == sys.argv[3], run.state
"""


@pytest.mark.slow
def test_a_killed_driver_costs_nothing_and_the_gate_lets_through_what_is_readable(
    airflow: Airflow, world: World, tmp_path: Path
) -> None:
    world.send(1000)
    result = tmp_path / "result.json"
    events = tmp_path / "openlineage.json"
    names = names_of(
        world,
        result,
        TEST_FAILPOINTS="after-commit:run=1:batch=1",
        AIRFLOW__OPENLINEAGE__TRANSPORT=json.dumps({"type": "file", "log_file_path": str(events), "append": True}),
        AIRFLOW__OPENLINEAGE__NAMESPACE="tests",
    )
    airflow.run(
        [sys.executable, "-c", RUN, airflow.environment["AIRFLOW__CORE__DAGS_FOLDER"], "stream_then_gate", "success"],
        names,
    )

    check_counts(world)
    results = json.loads(result.read_text())
    commits, _ = world.ledger()
    assert results["rows"] == sum(commit.rows for commit in commits)
    assert results["stream"] == result_of(world)
    assert results["gate"] == {"pipeline": world.pipeline, "commit": 3, "idle": False, "late_rows": 0}
    [restart] = restarts.read(world.home / "control" / "restarts.json")
    assert (restart.run, restart.exit_code) == (1, -9)
    assert restart.relaunched is not None
    assert restart.due == restart.died
    links = dict(airflow.query("SELECT key, value FROM xcom WHERE key LIKE '_link_%' AND task_id = 'stream'"))
    assert set(links) == {"_link_PipelineStatusLink", "_link_SparkUILink", "_link_SparkApplicationLink"}
    emitted = [json.loads(line) for line in events.read_text().splitlines()]
    [event] = [
        candidate
        for candidate in emitted
        if (candidate["job"]["name"], candidate["eventType"]) == ("stream_then_gate.stream", "COMPLETE")
    ]
    [read], [written] = event["inputs"], event["outputs"]
    assert (read["name"], written["name"]) == (world.source, world.sink)
    ends = end_offsets(world.config, world.source, IsolationLevel.READ_COMMITTED)
    taken = {
        span["partition"]: (span["start"], span["end"])
        for span in read["inputFacets"]["exactlyonce_offsets"]["partitions"]
    }
    assert taken == {partition: (0, end) for partition, end in ends.items()}
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == sum(commit.rows for commit in commits)


@pytest.mark.slow
def test_a_deferred_stream_makes_as_many_commits_as_were_asked_for_over_a_restart(
    airflow: Airflow, world: World, tmp_path: Path
) -> None:
    world.send(2000)
    result = tmp_path / "result.json"
    names = names_of(world, result, TEST_FAILPOINTS="after-commit:run=1:batch=0")
    dags = airflow.environment["AIRFLOW__CORE__DAGS_FOLDER"]
    airflow.run([sys.executable, "-c", RUN, dags, "deferred_until_two_commits", "success"], names)

    results = json.loads(result.read_text())
    commits, runs = world.ledger()
    assert (len(commits), len(runs)) == (2, 2)
    assert (results["stream"]["commit"], results["stream"]["run"], results["stream"]["restarts"]) == (2, 2, 1)
    assert results["rows"] == sum(commit.rows for commit in commits)
    check_counts(world, complete=False)
    keys = {key for (key,) in airflow.query("SELECT key FROM xcom WHERE dag_id = 'deferred_until_two_commits'")}
    assert keys >= {"return_value", "_link_SparkUILink", "_link_SparkApplicationLink"}

    [death] = commands.run("status", world.pipeline, "--json", *world.servers).body["restarts"]
    assert (death["run"], death["restart"]) == (1, 1)
    assert "killed by signal 9" in death["cause"] or "without an account" in death["cause"]
    assert death["died"] < death["started_again"]
    assert death["cause"] in commands.run("status", world.pipeline, *world.servers).out


@pytest.mark.slow
def test_a_stream_is_stopped_by_its_teardown_when_what_follows_it_fails(
    airflow: Airflow, world: World, tmp_path: Path
) -> None:
    world.send(1000)
    dags = airflow.environment["AIRFLOW__CORE__DAGS_FOLDER"]
    names = names_of(world, tmp_path / "none")
    airflow.run([sys.executable, "-c", RUN, dags, "stopped_by_teardown", "failed"], names)

    states = dict(airflow.query("SELECT task_id, state FROM task_instance WHERE dag_id = 'stopped_by_teardown'"))
    assert states == {"stream": "success", "gate": "success", "fail": "failed", "stop": "success"}
    last_status = status.read(world.home / "control" / "status.json")
    assert last_status is not None
    assert last_status.state is DriverState.STOPPED
    [savepoint] = Savepoints(Home(world.home).savepoints).list()
    commits, _ = world.ledger()
    assert savepoint.commit == commits[-1].commit
    check_counts(world, complete=False)
