"""The pipelines that are restored, and their input: the same rows every time, some of them late."""

from __future__ import annotations

import json
import operator
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from airflow_provider_exactlyonce.state import (
    AggregatingState,
    BroadcastProcessFunction,
    BroadcastState,
    Context,
    KeyedProcessFunction,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from airflow_provider_exactlyonce.streaming import (
    KafkaSink,
    KafkaSource,
    StateBackend,
    connect,
    key_by,
    pipeline,
    spread,
)
from airflow_provider_exactlyonce.streaming.declaration import Pipeline

SCHEMA = "id BIGINT NOT NULL, k STRING NOT NULL, t BIGINT NOT NULL"
ROWS_A_BATCH = 40
KEYS = 7
LATE_SHARE = 0.1
SECONDS_A_BATCH = 20


def with_time(events: DataFrame) -> DataFrame:
    return events.withColumn("at", F.timestamp_seconds("t")).withWatermark("at", "10 seconds")


def stateless(events: DataFrame) -> DataFrame:
    return events.select("id", "k", F.current_timestamp().alias("seen"))


def windowed(events: DataFrame) -> DataFrame:
    counted = (
        with_time(events)
        .groupBy(F.window("at", "10 seconds"), "k")
        .agg(F.count("*").alias("n"), F.sum("id").alias("s"))
    )
    return counted.select(F.unix_timestamp("window.start").alias("start"), "k", "n", "s")


def update(events: DataFrame) -> DataFrame:
    return events.groupBy("k").agg(F.count("*").alias("n"), F.sum("id").alias("s"))


def deduplicated(events: DataFrame) -> DataFrame:
    groups = with_time(events).withColumn("k", F.concat("k", F.col("t").cast("string")))
    return groups.select("k", "at").dropDuplicatesWithinWatermark(["k"]).select("k")


def joined(left: DataFrame, right: DataFrame) -> DataFrame:
    ours = with_time(left).select(F.col("id").alias("left"), "k", F.col("at").alias("left_at"))
    theirs = (
        right.withColumn("right_at", F.timestamp_seconds("t"))
        .withWatermark("right_at", "20 seconds")
        .select(F.col("id").alias("right"), F.col("k").alias("right_k"), "right_at")
    )
    near = F.expr("k = right_k AND right_at BETWEEN left_at - interval 5 seconds AND left_at + interval 5 seconds")
    return ours.join(theirs, near, "leftOuter").select("k", "left", "right")


def random_rows(events: DataFrame) -> DataFrame:
    return events.select("id", "k", F.rand().alias("r"))


class Sessions(StatefulProcessor):
    """Counts a key's events; 30 s of event time after its first one a timer reports and forgets them."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("session", "n BIGINT, ids BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        before = self._state.get()
        count, ids = (before[0], before[1]) if before else (0, 0)
        for row in rows:
            count, ids = count + 1, ids + row["id"]
        self._state.update((count, ids))
        if before is None:
            self._handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 30_000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        before = self._state.get()
        assert before is not None
        count, ids = before
        self._state.clear()
        yield Row(k=key[0], n=count, s=ids)

    def close(self) -> None:
        pass


def timed(events: DataFrame) -> DataFrame:
    return (
        with_time(events)
        .groupBy("k")
        .transformWithState(Sessions(), "k STRING, n BIGINT, s BIGINT", "append", "EventTime")
    )


class Ticks(StatefulProcessor):
    """Counts a key's events for two seconds of processing time; a timer reports them, their state expires by itself."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("ticks", "n BIGINT", 2_000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        before = self._state.get()
        count = (before[0] if before else 0) + sum(1 for _ in rows)
        self._state.update((count,))
        now = timerValues.getCurrentProcessingTimeInMs()
        self._handle.registerTimer(now + 1_000)
        yield Row(k=key[0], n=count, at=now)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        before = self._state.get()
        yield Row(k=key[0], n=-(before[0] if before else 0), at=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        pass


def ticking(events: DataFrame) -> DataFrame:
    return events.groupBy("k").transformWithState(Ticks(), "k STRING, n BIGINT, at BIGINT", "update", "ProcessingTime")


class Visits(KeyedProcessFunction[Any, Any]):
    """Keeps every kind of state for each event; at every full half minute of event time a timer reports and forgets."""

    output = (
        "k STRING, at BIGINT, n BIGINT, s BIGINT, newest ARRAY<BIGINT>, digits MAP<BIGINT, BIGINT>, "
        "average DECIMAL(18,4)"
    )
    event_time = "at"
    order_by = ("id",)

    n: ValueState[int] = ValueState("BIGINT")
    s: ReducingState[int] = ReducingState("BIGINT", reduce=operator.add)
    newest: ListState[int] = ListState("BIGINT")
    digits: MapState[int, int] = MapState("BIGINT", "BIGINT")
    average: AggregatingState[int, tuple[int, int], Decimal] = AggregatingState(
        "total BIGINT, n BIGINT",
        create=lambda: (0, 0),
        add=lambda before, value: (before[0] + value, before[1] + 1),
        get=lambda both: (Decimal(both[0]) / both[1]).quantize(Decimal("0.0001")),
    )

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        self.n.update((self.n.value() or 0) + 1)
        self.s.add(value.id)
        self.newest.add(value.id)
        self.digits.put(value.id % 10, (self.digits.get(value.id % 10) or 0) + 1)
        self.average.add(value.id)
        context.timer_service.register_event_time_timer((value.t // 30 + 1) * 30_000)
        yield self._row(context, value.t * 1000)

    def on_timer(self, timestamp: int, context: Context) -> Iterator[Any]:
        yield self._row(context, -timestamp)
        for state in (self.n, self.s, self.newest, self.digits, self.average):
            state.clear()

    def _row(self, context: Context, at: int) -> Any:
        newest, digits = self.newest.get(), dict(self.digits.items())
        return context.key.k, at, self.n.value(), self.s.get(), newest, digits, self.average.get()


def keyed(events: DataFrame) -> DataFrame:
    return key_by(with_time(events), "k").process(Visits())


class Tally(KeyedProcessFunction[Any, Any]):
    """Counts what its copy has seen, and keeps what is left over of each three events."""

    output = "k STRING, n BIGINT, three ARRAY<BIGINT>"
    order_by = ("id",)

    n: ValueState[int] = ValueState("BIGINT")
    waiting: ListState[int] = ListState("BIGINT")

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        self.n.update((self.n.value() or 0) + 1)
        self.waiting.add(value.id)
        if len(self.waiting.get()) == 3:
            yield value.k, self.n.value(), self.waiting.get()
            self.waiting.clear()


def tallied(events: DataFrame) -> DataFrame:
    return spread(events, copies=5).process(Tally())


class Ruled(BroadcastProcessFunction[Any, Any, Any]):
    """Answers an event with the newest rule for its key."""

    output = "k STRING, id BIGINT, rule BIGINT"
    control_order_by = ("id",)

    rules: BroadcastState[str, int] = BroadcastState("STRING", "BIGINT")

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        yield value.k, value.id, self.rules.get(value.k)

    def process_broadcast_element(self, value: Any, context: Context) -> None:
        self.rules.put(value.k, value.id)


def ruled(events: DataFrame, rules: DataFrame) -> DataFrame:
    return connect(events, rules, copies=5).process(Ruled())


@dataclass(frozen=True)
class Shape:
    """One kind of query.

    :param sources: names of its sources
    """

    function: Callable[..., DataFrame]
    output_mode: str = "append"
    sources: tuple[str, ...] = ("",)
    state_backend: StateBackend | None = None


SHAPES = {
    "stateless": Shape(stateless),
    "windowed": Shape(windowed),
    "update": Shape(update, "update"),
    "deduplicated": Shape(deduplicated),
    "joined": Shape(joined, sources=("left", "right")),
    "timed": Shape(timed),
    "keyed": Shape(keyed),
    "tallied": Shape(tallied),
    "ruled": Shape(ruled, sources=("events", "rules")),
}


#: By the clock on the wall: two runs of it never write the same.
TICKING = Shape(ticking, "update")
#: What can't be replayed exactly.
RANDOM = Shape(random_rows)


def declare(
    shape: Shape, name: str, topics: Mapping[str, str], sink: str, *, limit: int | None = None, **sink_options: Any
) -> Pipeline:
    """Declare a pipeline of this shape.

    :param sink_options: make it another version
    """
    sources = {
        source: KafkaSource(topic, schema=SCHEMA, max_offsets_per_trigger=limit) for source, topic in topics.items()
    }
    return pipeline(
        name=name,
        source=sources.get("", sources),
        sink=KafkaSink(sink, key="k", **sink_options),
        output_mode=shape.output_mode,
        state_backend=shape.state_backend,
    )(shape.function)


@dataclass
class Input:
    """Feeds topics with rounds of rows: one round is one batch."""

    config: Mapping[str, str]
    seed: int = 7
    rows: int = ROWS_A_BATCH
    rounds: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def send(self, topics: Mapping[str, str], partitions: int = 2) -> None:
        """Send the next round to each topic."""
        producer = Producer({**self.config, "enable.idempotence": True})
        start = 1_000_000 + self.rounds * SECONDS_A_BATCH
        for topic in topics.values():
            for row in range(self.rows):
                late = self._random.random() < LATE_SHARE
                at = start + self._random.randrange(SECONDS_A_BATCH) - (90 if late else 0)
                event = {"id": self.rounds * self.rows + row, "k": f"k{self._random.randrange(KEYS)}", "t": at}
                producer.produce(topic, json.dumps(event).encode(), partition=row % partitions)
        assert producer.flush(30) == 0
        self.rounds += 1
