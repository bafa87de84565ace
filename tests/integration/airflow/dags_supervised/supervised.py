"""A stream that a worker supervises, and one that defers; what it is about comes with the run's configuration."""

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator
from tests.integration.airflow.parts import CONTRACT_DRIVER

for deferrable in (False, True):
    with DAG("deferred" if deferrable else "worker", schedule=None, max_active_runs=8):
        StreamingPipelineOperator(
            task_id="stream",
            application=str(CONTRACT_DRIVER),
            checkpoint="{{ dag_run.conf['home'] }}",
            conn_id="spark_contract",
            until="{{ dag_run.conf['until'] }}",
            application_args=["{{ dag_run.conf['first'] }}", "{{ dag_run.conf['then'] }}"],
            jars="connector.jar",
            deferrable=deferrable,
            restart_strategy=RestartStrategy.fixed_delay(attempts=2, delay=timedelta(0)),
            poll_interval=0.2,
            stop_timeout=10,
            retries=2,
            retry_delay=timedelta(seconds=1),
        )
