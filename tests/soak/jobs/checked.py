"""The second pipeline: reads what the first has committed, counts and adds it up once more, into a Delta table."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.state import Context, KeyedProcessFunction, ValueState
from airflow_provider_exactlyonce.streaming import DeltaSink, KafkaSource, key_by, pipeline
from tests.soak import names


class Checked(KeyedProcessFunction[Any, Any]):
    """Takes nothing but the amounts, so that a record that came twice, or not at all, shows in all later balances."""

    output = "id BIGINT, account STRING, number BIGINT, amount DECIMAL(12,2), balance DECIMAL(18,2)"
    order_by = ("position",)

    booked: ValueState[tuple[int, Decimal]] = ValueState("number BIGINT, balance DECIMAL(18,2)")

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        number, balance = self.booked.value() or (0, Decimal(0))
        number, balance = number + 1, balance + value.amount
        self.booked.update((number, balance))
        yield value.id, value.account, number, value.amount, balance


@pipeline(
    name=names.CHECKED,
    source=KafkaSource(
        names.POSTED_TOPIC,
        schema="id BIGINT NOT NULL, account STRING NOT NULL, number BIGINT NOT NULL, amount DECIMAL(12,2) NOT NULL, "
        "balance DECIMAL(18,2) NOT NULL",
        max_offsets_per_trigger=20_000,
        offset_column="position",
    ),
    sink=DeltaSink(name="lake", path=names.DELTA_TABLE, conn_id=names.STORE_CONNECTION, compact_every=100),
)
def checked(posted: DataFrame) -> DataFrame:
    return key_by(posted, "account").process(Checked())


if __name__ == "__main__":
    checked.main()
