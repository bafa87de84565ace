"""Payments go to a Delta table and are told to an HTTP endpoint; then small files are written together."""

# [START dag_payments_archive]
import pendulum
from airflow.sdk import DAG, task

from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator

with DAG("payments_archive", schedule=None, params={"home": "~/.exactlyonce/payments", "table": "/var/lib/payments"}):
    stream = StreamingPipelineOperator(
        task_id="stream",
        application="jobs/payments_archive.py",
        checkpoint="{{ params.home }}",
        until="available",
        restart_strategy=RestartStrategy.fixed_delay(attempts=3, delay=pendulum.duration(seconds=1)),
        conf={"spark.sql.shuffle.partitions": "4"},
    )

    @task
    def compact(path: str) -> int:
        from deltalake import DeltaTable

        return int(DeltaTable(path).optimize.compact()["numFilesRemoved"])

    stream >> compact("{{ params.table }}")
# [END dag_payments_archive]
