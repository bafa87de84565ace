"""The first pipeline: each booking with its number and the balance after it, to Kafka and to PostgreSQL."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.state import Context, KeyedProcessFunction, ValueState
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, PostgresSink, key_by, pipeline
from tests.soak import names


class Posted(KeyedProcessFunction[Any, Any]):
    """Counts an account's bookings and adds them up."""

    output = "id BIGINT, account STRING, number BIGINT, amount DECIMAL(12,2), balance DECIMAL(18,2)"
    order_by = ("position",)

    booked: ValueState[tuple[int, Decimal]] = ValueState("number BIGINT, balance DECIMAL(18,2)")

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        number, balance = self.booked.value() or (0, Decimal(0))
        number, balance = number + 1, balance + value.amount
        self.booked.update((number, balance))
        yield value.id, value.account, number, value.amount, balance


@pipeline(
    name=names.POSTED,
    source=KafkaSource(
        names.BOOKINGS_TOPIC,
        schema="id BIGINT NOT NULL, account STRING NOT NULL, amount DECIMAL(12,2) NOT NULL",
        max_offsets_per_trigger=20_000,
        offset_column="position",
    ),
    sink=[
        PostgresSink(name="table", table=names.POSTGRES_TABLE, commit_column="commit"),
        KafkaSink(names.POSTED_TOPIC, key="account"),
    ],
)
def posted(bookings: DataFrame) -> DataFrame:
    return key_by(bookings, "account").process(Posted())


if __name__ == "__main__":
    posted.main()
