"""How many numbers came: counted by copies of a function, each with a count of its own. A zero stops it."""

# [START job_shop_counts]
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.state import Context, KeyedProcessFunction, ValueState
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline, spread


class Counts(KeyedProcessFunction[Any, Any]):
    """Divides ten by each number. Once the zero is handled, the count goes on from the retained checkpoint."""

    output = "copy STRING, count BIGINT"

    count: ValueState[int] = ValueState("BIGINT")

    def process_element(self, value: Any, context: Context) -> None:
        10 / value.number
        self.count.update((self.count.value() or 0) + 1)

    def finish_batch(self, context: Context) -> Iterator[Any]:
        yield str(context.key[0]), self.count.value()


@pipeline(
    name="shop-counts",
    source=KafkaSource("shop.numbers", schema="number BIGINT NOT NULL", max_offsets_per_trigger=20_000),
    sink=KafkaSink("shop.counts", key="copy"),
)
def shop_counts(numbers: DataFrame) -> DataFrame:
    return spread(numbers, copies=2).process(Counts())


if __name__ == "__main__":
    shop_counts.main()
# [END job_shop_counts]
