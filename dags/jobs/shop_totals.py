"""What each customer of the shop has paid and how often: the job that ``dags/shop_totals.py`` runs."""

# [START job_shop_totals]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline


@pipeline(
    name="shop-totals",
    source=KafkaSource(
        "shop.events",
        schema="event_id BIGINT NOT NULL, uuid STRING NOT NULL, itemCode STRING, behavior STRING NOT NULL, "
        "price DECIMAL(12,2) NOT NULL, ts TIMESTAMP",
        max_offsets_per_trigger=7_000,
    ),
    sink=KafkaSink("shop.totals", key="uuid"),
    output_mode="update",
)
def shop_totals(events: DataFrame) -> DataFrame:
    paid = events.where("behavior = 'pay'")
    return paid.groupBy("uuid").agg(F.sum("price").alias("paid"), F.count("*").alias("purchases"))


if __name__ == "__main__":
    shop_totals.main()
# [END job_shop_totals]
