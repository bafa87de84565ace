"""Per topic: a sum and a count of the records of several topics, or of a pattern's; its names come from the test.

With ``TEST_TABLE`` the rows go to a Delta table, too; with ``TEST_CONN_ID`` the topics are on its cluster; with
``TEST_OPTIONS`` Spark's source has these options.
"""

import json
import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.streaming import DeltaSink, KafkaSink, KafkaSource, TopicPattern, pipeline

asked, table = os.environ["TEST_SOURCE"], os.environ.get("TEST_TABLE")


@pipeline(
    name=os.environ["TEST_PIPELINE"],
    source=KafkaSource(
        TopicPattern(asked[1:-1]) if asked.startswith("/") else asked.split(","),
        schema="id BIGINT NOT NULL",
        max_offsets_per_trigger=100,
        topic_column="source",
        options=json.loads(os.environ.get("TEST_OPTIONS", "{}")),
        conn_id=os.environ.get("TEST_CONN_ID"),
    ),
    sink=[
        KafkaSink(os.environ["TEST_SINK"], key="source"),
        *([DeltaSink(name="lake", path=table)] if table else []),
    ],
    output_mode="update",
)
def topics(events: DataFrame) -> DataFrame:
    return events.groupBy("source").agg(F.sum("id").alias("total"), F.count("*").alias("n"))


if __name__ == "__main__":
    topics.main()
