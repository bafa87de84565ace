"""What the shop takes for each item: the job that ``dags/backfill.py`` runs again, hour by hour."""

# [START job_shop_items]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline


@pipeline(
    name="shop-items",
    source=KafkaSource(
        "shop.sales",
        schema="sale_id BIGINT NOT NULL, itemCode STRING NOT NULL, price DECIMAL(12,2) NOT NULL",
    ),
    sink=KafkaSink("shop.items", key="itemCode"),
    output_mode="update",
)
def shop_items(sales: DataFrame) -> DataFrame:
    return sales.groupBy("itemCode").agg(F.sum("price").alias("taken"), F.count("*").alias("sales"))


if __name__ == "__main__":
    shop_items.main()
# [END job_shop_items]
