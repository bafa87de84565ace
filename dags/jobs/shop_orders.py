"""What becomes of an item in a customer's basket: added, then paid or cancelled."""

# [START job_shop_orders]
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.state import Context, KeyedProcessFunction, ValueState
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, key_by, pipeline


class Orders(KeyedProcessFunction[Any, Any]):
    """An item is added once, until it is paid or cancelled; what does not follow an add is dropped."""

    output = "uuid STRING, itemCode STRING, status STRING, event_id BIGINT"
    order_by = ("position",)

    added: ValueState[bool] = ValueState("BOOLEAN")

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        if value.behavior == "add" and not self.added.value():
            self.added.update(True)
            yield value.uuid, value.itemCode, "added", value.event_id
        elif value.behavior in ("pay", "del") and self.added.value():
            self.added.clear()
            yield value.uuid, value.itemCode, "paid" if value.behavior == "pay" else "cancelled", value.event_id


@pipeline(
    name="shop-orders",
    source=KafkaSource(
        "shop.events",
        schema="event_id BIGINT NOT NULL, uuid STRING NOT NULL, itemCode STRING NOT NULL, behavior STRING NOT NULL, "
        "price DECIMAL(12,2) NOT NULL, ts TIMESTAMP",
        max_offsets_per_trigger=20_000,
        offset_column="position",
    ),
    sink=KafkaSink("shop.orders", key="uuid"),
)
def shop_orders(events: DataFrame) -> DataFrame:
    return key_by(events, "uuid", "itemCode").process(Orders())


if __name__ == "__main__":
    shop_orders.main()
# [END job_shop_orders]
