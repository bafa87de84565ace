"""What a customer has paid for an item so far, at each payment."""

# [START job_shop_payments]
import operator
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.state import Context, KeyedProcessFunction, ReducingState
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, key_by, pipeline


class Payments(KeyedProcessFunction[Any, Any]):
    """Adds prices up, in decimals."""

    output = "uuid STRING, itemCode STRING, paid DECIMAL(18,2), event_id BIGINT"
    order_by = ("position",)

    paid: ReducingState[Decimal] = ReducingState("DECIMAL(18,2)", reduce=operator.add)

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        if value.behavior == "pay":
            self.paid.add(value.price)
            yield value.uuid, value.itemCode, self.paid.get(), value.event_id


@pipeline(
    name="shop-payments",
    source=KafkaSource(
        "shop.events",
        schema="event_id BIGINT NOT NULL, uuid STRING NOT NULL, itemCode STRING NOT NULL, behavior STRING NOT NULL, "
        "price DECIMAL(12,2) NOT NULL, ts TIMESTAMP",
        max_offsets_per_trigger=20_000,
        offset_column="position",
    ),
    sink=KafkaSink("shop.payments", key="uuid"),
)
def shop_payments(events: DataFrame) -> DataFrame:
    return key_by(events, "uuid", "itemCode").process(Payments())


if __name__ == "__main__":
    shop_payments.main()
# [END job_shop_payments]
