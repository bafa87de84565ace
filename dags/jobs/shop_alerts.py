"""An alert for every three times in a row that a customer adds the same item."""

# [START job_shop_alerts]
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.state import Context, KeyedProcessFunction, ListState
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, key_by, pipeline


class ThreeAdds(KeyedProcessFunction[Any, Any]):
    """Collects adds until there are three; anything else that is done with the item begins afresh."""

    output = "uuid STRING, itemCode STRING, event_ids ARRAY<BIGINT>"
    order_by = ("position",)

    adds: ListState[int] = ListState("BIGINT")

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        if value.behavior != "add":
            self.adds.clear()
            return
        self.adds.add(value.event_id)
        adds = self.adds.get()
        if len(adds) == 3:
            self.adds.clear()
            yield value.uuid, value.itemCode, adds


@pipeline(
    name="shop-alerts",
    source=KafkaSource(
        "shop.events",
        schema="event_id BIGINT NOT NULL, uuid STRING NOT NULL, itemCode STRING NOT NULL, behavior STRING NOT NULL, "
        "price DECIMAL(12,2) NOT NULL, ts TIMESTAMP",
        max_offsets_per_trigger=20_000,
        offset_column="position",
    ),
    sink=KafkaSink("shop.alerts", key="uuid"),
)
def shop_alerts(events: DataFrame) -> DataFrame:
    return key_by(events, "uuid", "itemCode").process(ThreeAdds())


if __name__ == "__main__":
    shop_alerts.main()
# [END job_shop_alerts]
