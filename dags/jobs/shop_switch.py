"""Each event of the shop with the switches as they are: set at run time, by the records of a control topic."""

# [START job_shop_switch]
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.state import BroadcastProcessFunction, BroadcastState, Context
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, connect, pipeline


class Switch(BroadcastProcessFunction[Any, Any, Any]):
    """Answers each event with the switch's value; every task sees the switch change with the same batch."""

    output = "uuid STRING, event_id BIGINT, switch STRING"
    control_order_by = ("position",)

    switches: BroadcastState[str, str] = BroadcastState("STRING", "STRING")

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        yield value.uuid, value.event_id, self.switches.get("switch")

    def process_broadcast_element(self, value: Any, context: Context) -> None:
        self.switches.put(value.name, value.setting)


@pipeline(
    name="shop-switch",
    source={
        "events": KafkaSource(
            "shop.events",
            schema="event_id BIGINT NOT NULL, uuid STRING NOT NULL, behavior STRING NOT NULL",
            max_offsets_per_trigger=20_000,
        ),
        "switches": KafkaSource(
            "shop.switches", schema="name STRING NOT NULL, setting STRING", offset_column="position"
        ),
    },
    sink=KafkaSink("shop.switched", key="uuid"),
)
def shop_switch(events: DataFrame, switches: DataFrame) -> DataFrame:
    return connect(events, switches).process(Switch())


if __name__ == "__main__":
    shop_switch.main()
# [END job_shop_switch]
