"""A gate beside a stream of Spark, and a task behind it; what they are about comes with the run's configuration."""

import json
import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator
from airflow_provider_exactlyonce.sensors.commit_gate import CommitGateSensor
from tests.integration.airflow.job import CONF, JOB


def given(name: str) -> str:
    return f"{{{{ dag_run.conf['{name}'] }}}}"


@task
def count(sink: str, opened: Any) -> dict[str, Any]:
    from tests.integration.streaming.harness import read_committed

    config = json.loads(os.environ["AIRFLOW_CONN_KAFKA_DEFAULT"])["extra"]
    return {"rows": len(read_committed(config, sink)), "gate": opened}


with DAG("gate_beside_stream", schedule=None):
    StreamingPipelineOperator(
        task_id="stream",
        application=str(JOB),
        checkpoint=given("home"),
        until="available",
        restart_strategy=RestartStrategy.fixed_delay(attempts=1, delay=timedelta(0)),
        conf={**CONF, "spark.ui.enabled": "false"},
        env_vars={
            "EXACTLYONCE_FAILPOINTS": given("failpoints"),
            **{f"TEST_{name.upper()}": given(name) for name in ("pipeline", "source", "sink")},
        },
    )
    gate = CommitGateSensor(
        task_id="gate",
        pipeline=given("pipeline"),
        offsets=given("offsets"),
        deferrable=True,
        poke_interval=0.5,
        timeout=timedelta(minutes=10),
        retries=2,  # Airflow may fail a deferred task that goes on at once
        retry_delay=timedelta(seconds=1),
    )
    count(given("sink"), gate.output)
