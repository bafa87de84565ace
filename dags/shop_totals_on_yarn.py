"""The stream of ``shop_totals`` on a cluster: its driver on YARN, its home in a bucket, and no worker that waits."""

# [START dag_shop_totals_on_yarn]
from pathlib import Path

from airflow.sdk import DAG, Connection, task

from airflow_provider_exactlyonce.operators.streaming import StreamingPipelineOperator
from airflow_provider_exactlyonce.sensors.commit_gate import CommitGateSensor

PURCHASES = Path(__file__).parent / "data" / "cdnow.txt.gz"

with DAG("shop_totals_on_yarn", schedule=None):
    stream = StreamingPipelineOperator(
        task_id="stream",
        application="jobs/shop_totals.py",
        checkpoint="s3://aws_default@bucket/pipelines/shop-totals",
        until="available",
        conf={"spark.sql.shuffle.partitions": "4"},
        deferrable=True,
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

        return shop_totals_check.compare(PURCHASES, "shop.totals", Connection.get("kafka_default").extra_dejson)

    stream >> gate >> compare()
# [END dag_shop_totals_on_yarn]
