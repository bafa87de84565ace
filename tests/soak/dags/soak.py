"""The soak's DAGs: both streams, always; savepoints, upgrades, rollbacks and gates, as they are triggered."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pendulum
from airflow.sdk import DAG

from airflow_provider_exactlyonce.operators.savepoint import SavepointOperator
from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator
from airflow_provider_exactlyonce.operators.upgrade import RollbackPipelineOperator, UpgradePipelineOperator
from airflow_provider_exactlyonce.sensors.commit_gate import CommitGateSensor
from tests.class_archives import SHORT_LIVED
from tests.soak import names

FOLDER = Path(os.environ["SOAK_FOLDER"])
#: The heap is there from the beginning: what a JVM grows by afterwards is not its filling.
HEAP = f"-Xms{names.DRIVER_HEAP} -XX:+AlwaysPreTouch -Djava.io.tmpdir={FOLDER / 'tmp'}"
DRIVER: dict[str, Any] = {
    "conf": {
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": names.DRIVER_HEAP,
        "spark.driver.extraJavaOptions": f"{SHORT_LIVED} {HEAP}",
        "spark.ui.enabled": "false",
    },
    "application_args": ["--interval", names.INTERVAL],
    "deferrable": True,
    "retries": 8,
    "retry_delay": timedelta(seconds=2),
}
OF: dict[str, dict[str, Any]] = {
    names.POSTED: {"postgres_conn_ids": [names.POSTGRES_CONNECTION]},
    names.CHECKED: {"store_conn_ids": [names.STORE_CONNECTION]},
}
PATIENT: dict[str, Any] = {"deferrable": True, "retries": 8, "retry_delay": timedelta(seconds=2)}
GIVEN: dict[str, Any] = {"pipeline": "{{ dag_run.conf['pipeline'] }}"}

for pipeline in names.PIPELINES:
    with DAG(pipeline, schedule="@continuous", start_date=pendulum.datetime(2026, 1, 1), max_active_runs=1):
        StreamingPipelineOperator(
            task_id="stream",
            application=str(names.version_file(FOLDER, pipeline, names.VERSIONS[0])),
            checkpoint=str(names.home(FOLDER, pipeline)),
            until="forever",
            restart_strategy=RestartStrategy.exponential(
                maximum=timedelta(seconds=10), reset_after=timedelta(seconds=30)
            ),
            **DRIVER,
            **OF[pipeline],
        )
    with DAG(f"{pipeline}-upgrade", schedule=None):
        UpgradePipelineOperator(
            task_id="task",
            pipeline=pipeline,
            application=str(names.version_file(FOLDER, pipeline, names.VERSIONS[1])),
            savepoint="before the second version",
            stable_after=2,
            stable_timeout=timedelta(minutes=5),
            **DRIVER,
            **OF[pipeline],
        )
    with DAG(f"{pipeline}-rollback", schedule=None):
        RollbackPipelineOperator(task_id="task", pipeline=pipeline, **DRIVER, **OF[pipeline])

with DAG("soak-savepoint", schedule=None):
    SavepointOperator(task_id="task", label="soak", **GIVEN, **PATIENT)

with DAG("soak-gate", schedule=None, max_active_runs=100, max_active_tasks=100):
    CommitGateSensor(task_id="task", up_to_now=True, timeout=1800, **GIVEN, **PATIENT)
