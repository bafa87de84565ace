"""Each event of the shop once, however often it was delivered."""

# [START job_shop_distinct]
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.state import Context, KeyedProcessFunction, MapState
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, key_by, pipeline


class Distinct(KeyedProcessFunction[Any, Any]):
    """Remembers the events of a customer; a `ttl` would forget those that are not repeated any more."""

    output = "uuid STRING, itemCode STRING, behavior STRING, price DECIMAL(12,2), event_id BIGINT"
    order_by = ("position",)

    seen: MapState[int, bool] = MapState("BIGINT", "BOOLEAN")

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        if not self.seen.contains(value.event_id):
            self.seen.put(value.event_id, True)
            yield value.uuid, value.itemCode, value.behavior, value.price, value.event_id


@pipeline(
    name="shop-distinct",
    source=KafkaSource(
        "shop.events",
        schema="event_id BIGINT NOT NULL, uuid STRING NOT NULL, itemCode STRING NOT NULL, behavior STRING NOT NULL, "
        "price DECIMAL(12,2) NOT NULL, ts TIMESTAMP",
        max_offsets_per_trigger=20_000,
        offset_column="position",
    ),
    sink=KafkaSink("shop.distinct", key="uuid"),
)
def shop_distinct(events: DataFrame) -> DataFrame:
    return key_by(events, "uuid").process(Distinct())


if __name__ == "__main__":
    shop_distinct.main()
# [END job_shop_distinct]
