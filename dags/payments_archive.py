"""Payments go to a Delta table and are told to an HTTP endpoint; then small files are written together."""

# [START dag_payments_archive]
import pendulum
from airflow.sdk import DAG, task

from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator

PARAMS = {"home": "~/.exactlyonce/payments", "table": "/var/lib/payments"}

# One run at a time: what two calls of delta-rs' optimize write together at once is in the table twice.
with DAG("payments_archive", schedule=None, max_active_runs=1, params=PARAMS):
    stream = StreamingPipelineOperator(
        task_id="stream",
        application="jobs/payments_archive.py",
        checkpoint="{{ params.home }}",
        until="available",
        restart_strategy=RestartStrategy.fixed_delay(attempts=3, delay=pendulum.duration(seconds=1)),
        conf={"spark.sql.shuffle.partitions": "4"},
        env_vars={"ARCHIVE_PATH": "{{ params.table }}"},
    )

    @task
    def compact(path: str) -> int:
        from deltalake import DeltaTable

        return int(DeltaTable(path).optimize.compact()["numFilesRemoved"])

    stream >> compact("{{ params.table }}")
# [END dag_payments_archive]
