"""What the shop has taken for each item, hour by hour, from the records that Kafka still has.

Each run takes the records of its data interval, by their timestamps, and begins with an empty state. Hours of the past:

    airflow backfill create --dag-id shop_hours --from-date 2026-01-01T00:00 --to-date 2026-01-01T23:00

runs as many intervals at once as it likes: backfills of one pipeline take turns, and an hour that is run again is not
written again.
"""

# [START dag_shop_hours]
import pendulum
from airflow.sdk import DAG, CronDataIntervalTimetable, task

from airflow_provider_exactlyonce.operators.backfill import BackfillPipelineOperator

with DAG(
    "shop_hours",
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1),
    catchup=False,
    params={"home": "~/.exactlyonce/shop-items"},
):
    hour = BackfillPipelineOperator(
        task_id="hour",
        pipeline="shop-items",
        checkpoint="{{ params.home }}",
        application="jobs/shop_items.py",
        state="empty",
        output_to="topic=shop.items.hourly",
        conf={"spark.sql.shuffle.partitions": "4"},
        retries=2,
        deferrable=True,
    )

    @task
    def told(hour: dict[str, object]) -> str:
        return f"{hour['rows']} items in {hour['records']} sales"

    told(hour.output)
# [END dag_shop_hours]
