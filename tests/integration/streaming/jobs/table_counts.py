"""Per key: a sum and a count of the rows that are added to a table, in update mode. Its names come from the test.

With ``TEST_OUT`` the rows go to a Delta table, too.
"""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.streaming import DeltaSink, DeltaSource, IcebergSource, KafkaSink, pipeline

out = os.environ.get("TEST_OUT")
source = {"delta": DeltaSource, "iceberg": IcebergSource}[os.environ["TEST_KIND"]]


@pipeline(
    name=os.environ["TEST_PIPELINE"],
    source=source(
        os.environ["TEST_TABLE"],
        "id BIGINT NOT NULL, k STRING NOT NULL, v DECIMAL(12,2) NOT NULL",
        starting_version=int(os.environ.get("TEST_STARTING_VERSION", "0")),
        initial_snapshot="TEST_STARTING_VERSION" in os.environ,
        max_files_per_trigger=int(os.environ.get("TEST_FILES", "3")),
        on_rewrite=os.environ.get("TEST_ON_REWRITE", "stop"),
        conn_id=os.environ.get("TEST_CONN_ID"),
    ),
    sink=[KafkaSink(os.environ["TEST_SINK"], key="k"), *([DeltaSink(name="lake", path=out)] if out else [])],
    output_mode="update",
)
def counts(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.sum("v").alias("total"), F.count("*").alias("n"))


if __name__ == "__main__":
    counts.main()
