"""The average price of what a customer deals with, at each event."""

# [START job_shop_averages]
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.state import AggregatingState, Context, KeyedProcessFunction
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, key_by, pipeline


class Averages(KeyedProcessFunction[Any, Any]):
    """Keeps the sum of the prices and their number; the average is made of them when it is asked for."""

    output = "uuid STRING, average DECIMAL(16,4), event_id BIGINT"
    order_by = ("position",)

    price: AggregatingState[Decimal, tuple[Decimal, int], Decimal] = AggregatingState(
        "total DECIMAL(18,2), n BIGINT",
        create=lambda: (Decimal(0), 0),
        add=lambda before, price: (before[0] + price, before[1] + 1),
        get=lambda both: (both[0] / both[1]).quantize(Decimal("0.0001")),
        merge=lambda one, other: (one[0] + other[0], one[1] + other[1]),
    )

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        self.price.add(value.price)
        yield value.uuid, self.price.get(), value.event_id


@pipeline(
    name="shop-averages",
    source=KafkaSource(
        "shop.events",
        schema="event_id BIGINT NOT NULL, uuid STRING NOT NULL, itemCode STRING NOT NULL, behavior STRING NOT NULL, "
        "price DECIMAL(12,2) NOT NULL, ts TIMESTAMP",
        max_offsets_per_trigger=20_000,
        offset_column="position",
    ),
    sink=KafkaSink("shop.averages", key="uuid"),
)
def shop_averages(events: DataFrame) -> DataFrame:
    return key_by(events, "uuid").process(Averages())


if __name__ == "__main__":
    shop_averages.main()
# [END job_shop_averages]
