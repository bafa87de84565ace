"""A stream into a Delta table and Kafka, and a task that queries the table with DuckDB once both have the commit."""

# [START dag_lakehouse]
import pendulum
from airflow.sdk import DAG, task

from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator
from airflow_provider_exactlyonce.sensors.commit_gate import CommitGateSensor

PARAMS = {"home": "~/.exactlyonce/lakehouse", "table": "/var/lib/lakehouse/events"}

with DAG("lakehouse", schedule=None, params=PARAMS):
    stream = StreamingPipelineOperator(
        task_id="stream",
        application="jobs/lakehouse.py",
        checkpoint="{{ params.home }}",
        until="available",
        restart_strategy=RestartStrategy.fixed_delay(attempts=3, delay=pendulum.duration(seconds=1)),
        conf={"spark.sql.shuffle.partitions": "4"},
        env_vars={"SHOP_LAKE": "{{ params.table }}"},
    )
    gate = CommitGateSensor(
        task_id="gate",
        pipeline="lakehouse",
        commit="{{ ti.xcom_pull('stream')['commit'] }}",
        deferrable=True,
    )

    @task
    def revenue(table: str) -> dict[str, str]:
        """Return what was paid in each month."""
        import duckdb
        import duckdb_ext  # of the wheel duckdb-ext-delta; without it DuckDB loads its extension from the internet

        extensions = f"{duckdb_ext.__path__[0]}/extensions"
        query = "SELECT month, sum(price) FROM delta_scan(?) WHERE behavior = 'pay' GROUP BY month ORDER BY month"
        with duckdb.connect(config={"extension_directory": extensions}) as connection:
            return {month: str(paid) for month, paid in connection.execute(query, [table]).fetchall()}

    stream >> gate >> revenue("{{ params.table }}")
# [END dag_lakehouse]
