"""A stream into Kafka and two tables of PostgreSQL, and a task that counts the rows once all three have the commit."""

# [START dag_shop_postgres]
import pendulum
from airflow.sdk import DAG, Connection, task

from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator
from airflow_provider_exactlyonce.sensors.commit_gate import CommitGateSensor

with DAG("shop_postgres", schedule=None, params={"home": "~/.exactlyonce/shop-postgres"}):
    stream = StreamingPipelineOperator(
        task_id="stream",
        application="jobs/shop_postgres.py",
        checkpoint="{{ params.home }}",
        postgres_conn_ids=["postgres_default"],
        until="available",
        restart_strategy=RestartStrategy.fixed_delay(attempts=3, delay=pendulum.duration(seconds=1)),
        conf={"spark.sql.shuffle.partitions": "4"},
    )
    gate = CommitGateSensor(
        task_id="gate",
        pipeline="shop-postgres",
        commit="{{ ti.xcom_pull('stream')['commit'] }}",
        deferrable=True,
    )

    @task
    def count(commit: int) -> int:
        import psycopg

        given = Connection.get("postgres_default")
        named = {"host": given.host, "port": given.port, "user": given.login, "password": given.password}
        with psycopg.connect("", dbname=given.schema, **{name: of for name, of in named.items() if of}) as connection:
            found = connection.execute("SELECT count(*) FROM shop_events WHERE commit <= %s", [commit]).fetchone()
        return found[0] if found else 0

    stream >> gate >> count("{{ ti.xcom_pull('stream')['commit'] }}")
# [END dag_shop_postgres]
