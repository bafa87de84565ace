"""A stream, a gate and a task behind it. Names and targets come from the test."""

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_exactlyonce.operators.savepoint import StopPipelineOperator
from airflow_provider_exactlyonce.operators.streaming import Commits, RestartStrategy, StreamingPipelineOperator
from airflow_provider_exactlyonce.sensors.commit_gate import CommitGateSensor
from tests.integration.airflow.job import CONF, JOB


def stream(**options: Any) -> StreamingPipelineOperator:
    return StreamingPipelineOperator(
        task_id="stream",
        application=str(JOB),
        checkpoint=os.environ["TEST_HOME"],
        until=options.pop("until", "available"),
        restart_strategy=RestartStrategy.fixed_delay(attempts=2, delay=timedelta(0)),
        conf={**CONF, **json.loads(os.environ.get("TEST_CONF", "{}"))},
        env_vars={"EXACTLYONCE_FAILPOINTS": os.environ.get("TEST_FAILPOINTS", "")},
        source_conn_ids=[os.environ["TEST_CONN_ID"]] if "TEST_CONN_ID" in os.environ else [],
        **options,
    )


def gate(**target: Any) -> CommitGateSensor:
    return CommitGateSensor(
        task_id="gate",
        pipeline=os.environ["TEST_PIPELINE"],
        deferrable=True,
        poke_interval=0.5,
        timeout=120,
        **target,
    )


@task
def count(opened: dict[str, Any], streamed: dict[str, Any]) -> None:
    from tests.integration.streaming.harness import read_committed

    config = json.loads(os.environ["AIRFLOW_CONN_KAFKA_DEFAULT"])["extra"]
    rows = len(read_committed(config, os.environ["TEST_SINK"]))
    Path(os.environ["TEST_RESULT"]).write_text(json.dumps({"rows": rows, "gate": opened, "stream": streamed}))


with DAG("stream_then_gate", schedule=None):
    streamed = stream()
    opened = gate(commit="{{ ti.xcom_pull('stream')['commit'] }}")
    streamed >> opened
    count(opened.output, streamed.output)

with DAG("deferred_until_two_commits", schedule=None):
    bounded = stream(until=Commits(2), deferrable=True)
    opened = gate(commit="{{ ti.xcom_pull('stream')['commit'] }}")
    bounded >> opened
    count(opened.output, bounded.output)

with DAG("stopped_by_teardown", schedule=None):

    @task
    def fail(opened: dict[str, Any]) -> None:
        raise RuntimeError(f"what comes after commit {opened['commit']} fails")

    running = stream(until="running").as_setup()
    stop = StopPipelineOperator(task_id="stop", checkpoint=os.environ["TEST_HOME"], savepoint=True, deferrable=True)
    with stop.as_teardown(setups=running):
        fail(gate(commit=1).output)
