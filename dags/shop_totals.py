"""A stateful stream from Kafka to Kafka, exactly once, and a task that starts when its commit can be read."""

# [START dag_shop_totals]
from pathlib import Path

import pendulum
from airflow.sdk import DAG, Connection, task

from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator
from airflow_provider_exactlyonce.sensors.commit_gate import CommitGateSensor

DAGS = Path(__file__).parent

with DAG("shop_totals", schedule=None, params={"home": "~/.exactlyonce/shop-totals"}):
    stream = StreamingPipelineOperator(
        task_id="stream",
        application="jobs/shop_totals.py",
        checkpoint="{{ params.home }}",
        until="available",
        restart_strategy=RestartStrategy.fixed_delay(attempts=3, delay=pendulum.duration(seconds=1)),
        conf={"spark.sql.shuffle.partitions": "4"},
    )
    gate = CommitGateSensor(
        task_id="gate",
        pipeline="shop-totals",
        commit="{{ ti.xcom_pull('stream')['commit'] }}",
        deferrable=True,
    )

    @task
    def compare() -> str:
        import shop_totals_check

        kafka = Connection.get("kafka_default").extra_dejson
        return shop_totals_check.compare(DAGS / "data" / "cdnow.txt.gz", "shop.totals", kafka)

    stream >> gate >> compare()
# [END dag_shop_totals]
