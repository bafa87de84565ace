"""Payments in parcels of ten: a sink that buffers, whose buffer survives a restart."""

# [START job_shop_parcels]
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.state import Context, KeyedProcessFunction, ListState
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline, spread

SIZE = 10


class Parcels(KeyedProcessFunction[Any, Any]):
    """Gives out ten events at once, and keeps what is left for the next batch."""

    output = "event_ids ARRAY<BIGINT>"
    order_by = ("event_id",)

    buffer: ListState[int] = ListState("BIGINT")

    def process_element(self, value: Any, context: Context) -> None:
        self.buffer.add(value.event_id)

    def finish_batch(self, context: Context) -> Iterator[Any]:
        waiting = self.buffer.get()
        whole = len(waiting) - len(waiting) % SIZE
        if whole:
            self.buffer.update(waiting[whole:])
            for start in range(0, whole, SIZE):
                yield (waiting[start : start + SIZE],)


@pipeline(
    name="shop-parcels",
    source=KafkaSource(
        "shop.events",
        schema="event_id BIGINT NOT NULL, behavior STRING NOT NULL",
        max_offsets_per_trigger=20_000,
    ),
    sink=KafkaSink("shop.parcels"),
)
def shop_parcels(events: DataFrame) -> DataFrame:
    return spread(events.where("behavior = 'pay'"), copies=2).process(Parcels())


if __name__ == "__main__":
    shop_parcels.main()
# [END job_shop_parcels]
