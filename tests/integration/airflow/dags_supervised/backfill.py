"""A backfill that defers; the pipeline's home and the driver's plan come with the run's configuration."""

from airflow.sdk import DAG

from airflow_provider_exactlyonce.operators.backfill import BackfillPipelineOperator
from tests.integration.airflow.parts import CONTRACT_DRIVER

with DAG("backfill", schedule=None):
    BackfillPipelineOperator(
        task_id="stream",
        pipeline="shop",
        application=str(CONTRACT_DRIVER),
        checkpoint="{{ dag_run.conf['home'] }}",
        commits="1..2",
        conn_id="spark_contract",
        application_args=["{{ dag_run.conf['first'] }}"],
        jars="connector.jar",
        deferrable=True,
        poll_interval=0.2,
    )
