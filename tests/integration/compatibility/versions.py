"""Pipelines in two versions: what each row of the table in docs/compatibility.md changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, StateBackend, pipeline
from airflow_provider_exactlyonce.streaming.declaration import Pipeline

SCHEMA = "id BIGINT, k STRING, j STRING, t BIGINT, u BIGINT, a BIGINT, b BIGINT"
AVRO = {"spark.sql.streaming.stateStore.encodingFormat": "avro"}


@dataclass(frozen=True)
class Spec:
    """One version.

    :param topics: of its sources, in the order in which the function gets them
    :param conf: Spark settings that it is started with
    :param in_one_batch: what it gives of all input, where the function itself can't be asked
    """

    function: Callable[..., DataFrame]
    mode: str = "append"
    topics: tuple[str, ...] = ("events",)
    name: str = "p"
    schema: str = SCHEMA
    sink: KafkaSink = field(default_factory=lambda: KafkaSink("out", key="k"))
    state_backend: StateBackend | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    in_one_batch: Callable[..., DataFrame] | None = None

    def pipeline(self) -> Pipeline:
        sources = {f"s{number}": KafkaSource(topic, schema=self.schema) for number, topic in enumerate(self.topics)}
        return pipeline(
            name=self.name,
            source=sources,
            sink=self.sink,
            output_mode=self.mode,
            state_backend=self.state_backend,
        )(self.applied)

    def applied(self, **frames: DataFrame) -> DataFrame:
        return self.function(*frames.values())


@dataclass(frozen=True)
class Change:
    """What a row changes.

    :param differs: tells, of what the new version wrote and what it writes of all input in one batch, that Spark has
        gone on wrongly
    :param fast: it is among those that every run of the tests makes
    """

    old: Spec
    new: Spec
    differs: Callable[[list[Row], list[Row]], bool] = lambda rows, whole: not set(rows) <= set(whole)
    fast: bool = False


def lacks(rows: list[Row], whole: list[Row]) -> bool:
    return not set(whole) <= set(rows)


def lacks_new(rows: list[Row], whole: list[Row]) -> bool:
    """Nothing is written of the rows that have come since."""
    return not rows and len(whole) > 0


def timed(events: DataFrame, delay: str = "10 seconds", column: str = "t") -> DataFrame:
    return events.withColumn("at", F.timestamp_seconds(column)).withWatermark("at", delay)


def group(*keys: str, **aggregates: str) -> Callable[[DataFrame], DataFrame]:
    named = aggregates or {"s": "sum(a)", "n": "count(*)"}
    return lambda events: events.groupBy(*map(F.expr, keys)).agg(
        *(F.expr(function).alias(name) for name, function in named.items())
    )


def window(length: str, slide: str | None = None, **watermark: str) -> Callable[[DataFrame], DataFrame]:
    def applied(events: DataFrame) -> DataFrame:
        counted = timed(events, **watermark).groupBy(F.window("at", length, slide), "k").agg(F.sum("a").alias("s"))
        return counted.select(F.unix_timestamp("window.start").alias("start"), "k", "s")

    return applied


def session(events: DataFrame) -> DataFrame:
    return timed(events).groupBy(F.session_window("at", "10 seconds"), "k").agg(F.sum("a").alias("s")).select("k", "s")


def unwatermarked(events: DataFrame) -> DataFrame:
    events = events.withColumn("at", F.timestamp_seconds("t"))
    counted = events.groupBy(F.window("at", "10 seconds"), "k").agg(F.sum("a").alias("s"))
    return counted.select(F.unix_timestamp("window.start").alias("start"), "k", "s")


def distinct(*columns: str, then: tuple[str, ...] | None = None) -> Callable[[DataFrame], DataFrame]:
    return lambda events: events.select(*(then or columns)).dropDuplicates(list(columns))


def distinct_within(key: str, column: str = "t") -> Spec:
    def applied(events: DataFrame) -> DataFrame:
        return timed(events, column=column).select(key, "at").dropDuplicatesWithinWatermark([key]).select(key)

    return Spec(applied, in_one_batch=distinct(key))


def join(
    on: str = "k = rk", seconds: int = 5, kind: str = "inner", left: tuple[str, ...] = ("k", "j", "a")
) -> Callable[[DataFrame, DataFrame], DataFrame]:
    def applied(ours: DataFrame, theirs: DataFrame) -> DataFrame:
        others = timed(theirs).select(F.col("k").alias("rk"), F.col("j").alias("rj"), F.col("b").alias("rb"), "at")
        near = F.expr(f"{on} AND rat BETWEEN lat - interval {seconds} seconds AND lat + interval {seconds} seconds")
        mine = timed(ours).withColumnRenamed("at", "lat").select(*left, "lat")
        joined = mine.join(others.withColumnRenamed("at", "rat"), near, kind)
        return joined.select(*left, "rk", "rj", "rb")

    return applied


class Counter(StatefulProcessor):
    """Counts a key's rows."""

    schema = "n BIGINT"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = self.open(handle)

    def open(self, handle: StatefulProcessorHandle) -> Any:
        return handle.getValueState("count", self.schema)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        before = self.state.get()
        count = (before[0] if before else 0) + sum(1 for _ in rows)
        self.state.update((count, *[None] * self.schema.count(",")))
        yield Row(k=key[0], n=count)

    def close(self) -> None:
        pass


class WiderCounter(Counter):
    schema = "n BIGINT, seen BIGINT"


class TwoVariables(Counter):
    def open(self, handle: StatefulProcessorHandle) -> Any:
        handle.getValueState("other", "x BIGINT")
        return super().open(handle)


class ListCounter(Counter):
    def open(self, handle: StatefulProcessorHandle) -> Any:
        return handle.getListState("count", self.schema)


class BrokenCounter(Counter):
    def open(self, handle: StatefulProcessorHandle) -> Any:
        raise ValueError("no state for it")


class DoubleCounter(Counter):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        return super().handleInputRows(key, iter([*rows] * 2), timerValues)


def processor(made: type[StatefulProcessor], time: str = "None") -> Callable[[DataFrame], DataFrame]:
    def applied(events: DataFrame) -> DataFrame:
        return timed(events).groupBy("k").transformWithState(made(), "k STRING, n BIGINT", "update", time)

    return applied


STATELESS = Spec(lambda events: events.select("k", "a"))
TOTALS = Spec(group("k"), "update")
SUM = Spec(group("k", s="sum(a)"), "update")
WINDOWS = Spec(window("10 seconds"))
WINDOW_UPDATES = Spec(window("10 seconds"), "update")
DISTINCT = Spec(distinct("k"))
JOINED = Spec(join(), topics=("events", "others"))
COUNTER = Spec(processor(Counter), "update")
TWO = Spec(lambda ours, theirs: ours.union(theirs).select("k", "a"), topics=("events", "others"))
BOTH = Spec(lambda events: events.dropDuplicates(["id"]).groupBy("k").agg(F.sum("a").alias("s")), "update")


def shouted(events: DataFrame) -> DataFrame:
    return events.groupBy(F.udf(lambda k: k + "!", "string")("k").alias("k")).agg(F.sum("a").alias("s"))


def whispered(events: DataFrame) -> DataFrame:
    return events.groupBy(F.udf(lambda k: k + "?", "string")("k").alias("k")).agg(F.sum("a").alias("s"))


CHANGES: Mapping[str, Change] = {
    # Without state
    "a filter is added, nothing has state": Change(
        STATELESS, Spec(lambda events: events.where("a >= 0").select("k", "a"))
    ),
    "a column is added to the output": Change(STATELESS, Spec(lambda events: events.select("k", "a", "b"))),
    "a column of the output is removed": Change(STATELESS, Spec(lambda events: events.select("k"))),
    "a column of the output is renamed": Change(
        STATELESS, Spec(lambda events: events.select("k", F.col("a").alias("amount")))
    ),
    "output mode, nothing has state": Change(STATELESS, Spec(lambda events: events.select("k", "a"), "update")),
    "state where there was none": Change(STATELESS, SUM, fast=True),
    # Aggregations
    "nothing": Change(TOTALS, TOTALS, fast=True),
    "a filter is added before an aggregation": Change(
        TOTALS, Spec(lambda events: group("k")(events.where("a >= 0")), "update")
    ),
    "a projection is added before an aggregation": Change(
        TOTALS, Spec(lambda events: group("k")(events.select("a", "k", (F.col("a") * 2).alias("c"))), "update")
    ),
    "a grouping column is renamed": Change(
        TOTALS,
        Spec(
            lambda events: group("customer")(events.withColumnRenamed("k", "customer")).withColumnRenamed(
                "customer", "k"
            ),
            "update",
        ),
    ),
    "a column is computed from an aggregate": Change(
        TOTALS, Spec(lambda events: group("k")(events).withColumn("mean", F.col("s") / F.col("n")), "update")
    ),
    "sum becomes max": Change(SUM, Spec(group("k", s="max(a)"), "update"), fast=True),
    "sum of another column of the same type": Change(SUM, Spec(group("k", s="sum(b)"), "update")),
    "count becomes sum": Change(Spec(group("k", s="count(*)"), "update"), Spec(group("k", s="sum(a)"), "update")),
    "sum becomes count": Change(SUM, Spec(group("k", s="count(*)"), "update")),
    "two aggregates change places": Change(
        Spec(group("k", x="sum(a)", y="sum(b)"), "update"), Spec(group("k", y="sum(b)", x="sum(a)"), "update")
    ),
    "an aggregate is added": Change(SUM, TOTALS),
    "an aggregate is removed": Change(TOTALS, SUM),
    "another grouping column of the same type": Change(SUM, Spec(group("j AS k", s="sum(a)"), "update")),
    "a grouping column is computed otherwise": Change(SUM, Spec(group("lower(j) AS k", s="sum(a)"), "update")),
    "the type of a grouping column": Change(SUM, Spec(group("length(k) AS k", s="sum(a)"), "update"), fast=True),
    "a grouping column is added": Change(SUM, Spec(group("k", "j", s="sum(a)"), "update")),
    "grouping columns of the same type change places": Change(
        Spec(group("k", "j", s="sum(a)"), "update"), Spec(group("j", "k", s="sum(a)"), "update")
    ),
    "a filter on nulls of the grouping column is removed": Change(
        Spec(lambda events: SUM.function(events.where("k IS NOT NULL")), "update"), SUM
    ),
    "a user function in a grouping column gets another body": Change(
        Spec(shouted, "update"), Spec(whispered, "update")
    ),
    "update becomes complete": Change(SUM, Spec(SUM.function, "complete")),
    "update becomes append, without a watermark": Change(SUM, Spec(SUM.function, "append")),
    # Event time
    "append becomes update": Change(WINDOWS, WINDOW_UPDATES),
    "update becomes append, with a watermark": Change(WINDOW_UPDATES, WINDOWS),
    "update becomes complete, with a watermark": Change(
        Spec(window("10 seconds", delay="1 second"), "update"),
        Spec(window("10 seconds", delay="1 second"), "complete"),
        differs=lacks,
    ),
    "the length of a window": Change(WINDOW_UPDATES, Spec(window("20 seconds"), "update")),
    "a window slides": Change(WINDOW_UPDATES, Spec(window("10 seconds", "5 seconds"), "update")),
    "a window becomes a session": Change(WINDOWS, Spec(session)),
    "a longer watermark": Change(WINDOWS, Spec(window("10 seconds", delay="20 seconds")), fast=True),
    "a shorter watermark": Change(WINDOWS, Spec(window("10 seconds", delay="5 seconds"))),
    "the watermark is on another column": Change(
        distinct_within("id"), distinct_within("id", column="u"), differs=lacks_new
    ),
    "the watermark is removed": Change(WINDOW_UPDATES, Spec(unwatermarked, "update")),
    "a watermark is added": Change(Spec(unwatermarked, "update"), WINDOW_UPDATES),
    # Duplicates
    "the column of dropDuplicates": Change(DISTINCT, Spec(distinct("j")), differs=lacks),
    "a column is added to dropDuplicates": Change(DISTINCT, Spec(distinct("k", "j"))),
    "dropDuplicates becomes dropDuplicatesWithinWatermark": Change(
        Spec(lambda events: timed(events).dropDuplicates(["k"]).select("k")), distinct_within("k")
    ),
    # Joins
    "an inner join becomes an outer join": Change(JOINED, Spec(join(kind="leftOuter"), topics=JOINED.topics)),
    "a join on another column of the same type": Change(JOINED, Spec(join("j = rj"), topics=JOINED.topics)),
    "the type of a join column": Change(JOINED, Spec(join("a = rb"), topics=JOINED.topics)),
    "the time range of an inner join": Change(JOINED, Spec(join(seconds=3), topics=JOINED.topics)),
    "the time range of an outer join": Change(
        Spec(join(kind="leftOuter"), topics=JOINED.topics),
        Spec(join(seconds=3, kind="leftOuter"), topics=JOINED.topics),
    ),
    "a joined side has one more column": Change(JOINED, Spec(join(left=("k", "j", "a", "b")), topics=JOINED.topics)),
    "columns of a joined side change places": Change(
        Spec(join(left=("k", "a", "b")), topics=JOINED.topics), Spec(join(left=("k", "b", "a")), topics=JOINED.topics)
    ),
    # transformWithState
    "a state variable has one more column": Change(COUNTER, Spec(processor(WiderCounter), "update"), fast=True),
    "a state variable has one more column, encoded in Avro": Change(
        Spec(processor(Counter), "update", conf=AVRO), Spec(processor(WiderCounter), "update", conf=AVRO)
    ),
    "a state variable is added": Change(COUNTER, Spec(processor(TwoVariables), "update")),
    "a state variable is removed": Change(Spec(processor(TwoVariables), "update"), COUNTER),
    "a value state becomes a list state": Change(COUNTER, Spec(processor(ListCounter), "update")),
    "the time mode of a processor": Change(COUNTER, Spec(processor(Counter, "ProcessingTime"), "update")),
    "the body of a processor": Change(COUNTER, Spec(processor(DoubleCounter), "update")),
    # Operators
    "a stateful operator is added": Change(SUM, BOTH),
    "a stateful operator is removed": Change(BOTH, SUM),
    "stateful operators change places": Change(
        Spec(lambda events: timed(events).dropDuplicates(["id"]).dropDuplicatesWithinWatermark(["k"]).select("k")),
        Spec(lambda events: timed(events).dropDuplicatesWithinWatermark(["k"]).dropDuplicates(["id"]).select("k")),
    ),
    "the only stateful operator is removed": Change(DISTINCT, Spec(lambda events: events.select("k")), fast=True),
    # Sources
    "a column is added to a source": Change(TOTALS, Spec(group("k"), "update", schema=f"{SCHEMA}, c BIGINT")),
    "a source is added": Change(STATELESS, TWO),
    "a source is removed": Change(TWO, STATELESS),
    # Sink and settings
    "the sink's topic": Change(TOTALS, Spec(group("k"), "update", sink=KafkaSink("elsewhere", key="k"))),
    "the sink's key": Change(TOTALS, Spec(group("k"), "update", sink=KafkaSink("out", key="n"))),
    "another state backend": Change(TOTALS, Spec(group("k"), "update", state_backend=StateBackend.hashmap())),
    "another number of state partitions": Change(
        TOTALS, Spec(group("k"), "update", conf={"spark.sql.shuffle.partitions": "3"})
    ),
    "the pipeline's name": Change(TOTALS, Spec(group("k"), "update", name="other")),
}
