"""A stream that works off what there is, again and again; paused until its test wants it."""

import os
from datetime import timedelta

import pendulum
from airflow.sdk import DAG

from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator
from tests.integration.airflow.parts import CONTRACT_DRIVER

with DAG(
    "continuous",
    schedule="@continuous",
    start_date=pendulum.datetime(2026, 1, 1),
    max_active_runs=1,
    is_paused_upon_creation=True,
):
    StreamingPipelineOperator(
        task_id="stream",
        application=str(CONTRACT_DRIVER),
        checkpoint=os.environ["TEST_CONTINUOUS_HOME"],
        conn_id="spark_contract",
        until="available",
        application_args=["take-lease commit sleep=1 end=finished"],
        jars="connector.jar",
        deferrable=False,
        restart_strategy=RestartStrategy.none(),
        poll_interval=0.2,
        retry_delay=timedelta(seconds=1),
    )
