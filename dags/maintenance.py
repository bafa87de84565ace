"""A nightly maintenance window of a stream that runs for ever: save it, stop it, audit it, work, clean up.

The task that runs the stream (``until="forever"``) ends in success when it is stopped; start it again afterwards.
"""

# [START dag_shop_maintenance]
from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_provider_exactlyonce.operators.audit import AuditPipelineOperator
from airflow_provider_exactlyonce.operators.savepoint import (
    CleanUpSavepointsOperator,
    SavepointOperator,
    StopPipelineOperator,
)
from airflow_provider_exactlyonce.sensors.kafka_transactions import KafkaTransactionsSensor
from airflow_provider_exactlyonce.sensors.pipeline_state import PipelineStateSensor

PIPELINE = {"pipeline": "{{ params.pipeline }}"}

with DAG(
    "shop_maintenance",
    schedule="0 3 * * *",
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    params={"pipeline": "shop-totals", "sink": "shop.totals"},
):
    running = PipelineStateSensor(task_id="running", **PIPELINE, states=["running"], timeout=600, deferrable=True)
    save = SavepointOperator(task_id="save", **PIPELINE, label="before {{ run_id }}", deferrable=True)
    stop = StopPipelineOperator(task_id="stop", **PIPELINE, savepoint="end of {{ run_id }}", deferrable=True)
    stopped = PipelineStateSensor(task_id="stopped", **PIPELINE, states=["stopped", "finished"], timeout=60)
    decided = KafkaTransactionsSensor(task_id="decided", topics=["{{ params.sink }}"], timeout=900, deferrable=True)

    audit = AuditPipelineOperator(task_id="audit", **PIPELINE)

    @task
    def work(stopped_at: dict[str, object]) -> str:
        return f"nobody writes; all is readable up to commit {stopped_at['commit']}"

    clean_up = CleanUpSavepointsOperator(task_id="clean_up", **PIPELINE, count=10, days=7)

    running >> save >> stop >> stopped >> decided >> audit >> work(stop.output) >> clean_up
# [END dag_shop_maintenance]
