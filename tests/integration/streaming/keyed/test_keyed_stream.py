"""One function in Spark and in the harness, on the same seeded events: the same rows from every batch."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.exceptions import RefusedError, StateValueError
from airflow_provider_exactlyonce.state import (
    Aggregation,
    Context,
    KeyedHarness,
    KeyedProcessFunction,
    ListState,
    MapState,
    ValueState,
)
from airflow_provider_exactlyonce.streaming import key_by
from airflow_provider_exactlyonce.streaming.spark import typed_errors
from tests.unit.state import functions
from tests.unit.state.functions import Everything

SCHEMA = "k STRING, i BIGINT, v DECIMAL(12,2), ts TIMESTAMP"
DELAY = dt.timedelta(seconds=10)


@pytest.fixture(autouse=True, scope="module")
def pickled_by_value() -> Iterator[None]:
    """Workers can't import tests."""
    modules = (sys.modules[__name__], functions)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


def events(seed: int, *, batches: int = 7, rows: int = 40) -> list[list[dict[str, Any]]]:
    """Return batches of rows of ten seconds each, a tenth of them late by up to 40 s, some without a value or a key."""
    chance = random.Random(seed)
    made: list[list[dict[str, Any]]] = []
    for batch in range(batches):
        events_of_batch = []
        for number in range(rows):
            seconds = 1_000_000 + batch * 10 + chance.random() * 10
            if chance.random() < 0.1:
                seconds -= chance.random() * 40
            events_of_batch.append(
                {
                    "k": chance.choice(["a", "b", "c", "d", None]),
                    "i": batch * rows + number,
                    "v": None if chance.random() < 0.03 else Decimal(chance.randint(1, 400)) / 4,
                    "ts": dt.datetime.fromtimestamp(round(seconds, 3), dt.UTC),
                }
            )
        made.append(events_of_batch)
    return made


@dataclass
class Run:
    """What Spark gave out and what it began each batch with."""

    rows: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    clocks: dict[int, tuple[int, int]] = field(default_factory=dict)


def run(
    spark: SparkSession,
    folder: Path,
    batches: Sequence[Sequence[Mapping[str, Any]]],
    query: Callable[[DataFrame], DataFrame],
    *,
    until: int,
    output_mode: str = "append",
) -> Run:
    """Run a query over batches.

    :param until: the number of batches after which it is stopped, those without data included
    """
    source = folder / "in"
    source.mkdir(parents=True)
    for number, rows in enumerate(batches):
        file = source / f"{number:03}.json"
        file.write_text("\n".join(json.dumps(row, default=str) for row in rows))
        os.utime(file, (1_700_000_000 + number,) * 2)
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))
    ran = Run()

    def keep(result: DataFrame, batch: int) -> None:
        ran.rows[batch] = [tuple(row) for row in result.collect()]

    stream = (
        query(frame.withWatermark("ts", f"{DELAY.seconds} seconds"))
        .writeStream.outputMode(output_mode)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .foreachBatch(keep)
        .start()
    )
    while stream.isActive and len(ran.rows) < until:
        stream.awaitTermination(0.05)  # type: ignore[arg-type]  # PySpark takes fractions
    stream.stop()
    assert stream.exception() is None, stream.exception()
    for batch in ran.rows:
        described = json.loads((folder / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[1])
        ran.clocks[batch] = described["batchTimestampMs"], described["batchWatermarkMs"]
    return ran


def by_key(rows: Sequence[Sequence[Any]]) -> dict[Any, list[tuple[Any, ...]]]:
    """Return the rows of each key in their order; that of the keys is Spark's own."""
    grouped: dict[Any, list[tuple[Any, ...]]] = {}
    for row in rows:
        grouped.setdefault(row[0], []).append(tuple(row))
    return grouped


class Timed(Everything):
    """Everything, with a timer at every full ten seconds that reports a key and one in four times forgets it."""

    event_time = "ts"
    order_by = ("i",)

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        yield from super().process_element(value, context)
        full = -(-int(value.ts.timestamp() * 1000) // 10_000) * 10_000
        context.timer_service.register_event_time_timer(full)
        if value.i % 5 == 0:
            context.timer_service.delete_event_time_timer(full - 10_000)

    def on_timer(self, timestamp: int, context: Context) -> Iterator[Any]:
        service = context.timer_service
        now = service.current_watermark()
        yield context.key.k, timestamp, self.total.get(), None, self.seen.get(), now
        if timestamp % 40_000 == 0:
            for state in (self.count, self.total, self.average, self.seen, self.by_value):
                state.clear()
            service.register_event_time_timer(timestamp + 4_000)
            service.delete_event_time_timer(timestamp + 10_000)


@pytest.mark.slow
def test_spark_and_the_harness_give_the_same_by_event_time(spark: SparkSession, tmp_path: Path) -> None:
    batches = events(seed=11)
    expected = KeyedHarness(Timed(), "k", watermark_delay=DELAY)
    ran = run(spark, tmp_path, batches, lambda frame: key_by(frame, "k").process(Timed()), until=len(batches) + 1)
    late = timers = 0
    for batch, rows in sorted(ran.rows.items()):
        given = batches[batch] if batch < len(batches) else []
        assert ran.clocks[batch][1] == expected.watermark
        wanted = expected.process(given, processing_time=ran.clocks[batch][0])
        assert by_key(rows) == by_key(wanted), f"batch {batch}"
        timers += sum(row[3] is None for row in rows)
        before = ran.clocks[batch - 1][1] if batch else 0
        late += sum(row["ts"].timestamp() * 1000 <= before for row in given)
    assert timers > 5, "the events try the timers"
    assert late > 5, "the events try what is late"


class Fading(KeyedProcessFunction[Any, Any]):
    """Keeps for a moment of processing time what it has seen, and reports it by a timer that outlasts it."""

    output = "k STRING, value BIGINT, many ARRAY<BIGINT>, named MAP<BIGINT, DECIMAL(12,2)>, at BIGINT"
    order_by = ("i",)
    value: ValueState[int] = ValueState("BIGINT", ttl=dt.timedelta(milliseconds=900))
    many: ListState[int] = ListState("BIGINT", ttl=dt.timedelta(milliseconds=900))
    named: MapState[int, Decimal] = MapState("BIGINT", "DECIMAL(12,2)", ttl=dt.timedelta(milliseconds=900))

    def process_element(self, value: Any, context: Context) -> None:
        now = context.timer_service.current_processing_time()
        if value.i % 3:
            self.value.update(value.i)
        self.many.add(value.i)
        self.named.put(value.i % 7, value.v)
        context.timer_service.register_processing_time_timer(now + 1)
        context.timer_service.register_processing_time_timer(now + 1_100)

    def on_timer(self, timestamp: int, context: Context) -> Iterator[Any]:
        yield context.key.k, self.value.value(), self.many.get(), dict(self.named.items()), timestamp


@pytest.mark.slow
def test_spark_and_the_harness_give_the_same_by_processing_time(spark: SparkSession, tmp_path: Path) -> None:
    batches = events(seed=5, batches=5, rows=12)
    expected = KeyedHarness(Fading(), "k")
    ran = run(spark, tmp_path, batches, lambda frame: key_by(frame, "k").process(Fading()), until=12)
    kept: list[int] = []
    for batch, rows in sorted(ran.rows.items()):
        wanted = expected.process(batches[batch] if batch < 5 else [], processing_time=ran.clocks[batch][0])
        assert by_key(rows) == by_key(wanted), f"batch {batch}"
        kept += [len(row[2]) for row in rows]
    assert 0 in kept, "some state has ended its time to live"
    assert max(kept) > 1, "and some has not"


class Types(KeyedProcessFunction[Any, Any]):
    """Keeps a row with every type and gives out what it kept before."""

    output = (
        "k STRING, moment TIMESTAMP, local TIMESTAMP_NTZ, day DATE, raw BINARY, real FLOAT, whole DOUBLE, "
        "inner STRUCT<n: INT, at: TIMESTAMP>, many ARRAY<STRUCT<n: INT>>, named MAP<STRING, DECIMAL(4,1)>, no BOOLEAN"
    )
    kept: ValueState[tuple[Any, ...]] = ValueState(output)
    inner: ListState[Any] = ListState("n INT, at TIMESTAMP")
    named: MapState[Any, Any] = MapState("TIMESTAMP", "MAP<STRING, DECIMAL(4,1)>")
    timed: ValueState[dt.datetime] = ValueState("TIMESTAMP")

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        before = self.kept.value()
        if before is not None:
            yield before
            assert self.timed.value() == before[1] == value.ts
            assert self.inner.get() == [before[7]]
            assert dict(self.named.items()) == {value.ts: before[9]}
            assert self.named.get(value.ts) == before[9]
        moment = value.ts
        inner = (1, moment)
        self.timed.update(moment)
        self.inner.update([inner])
        self.named.put(moment, {"x": Decimal(1)})
        self.kept.update(
            (
                *(value.k, moment, moment.replace(tzinfo=None), moment.date(), b"\x00", 0.5, 2),
                *(inner, [{"n": 1}, None], {"x": Decimal(1)}, None),
            )
        )


def test_every_type_comes_back_from_spark_as_from_the_harness(spark: SparkSession, tmp_path: Path) -> None:
    moment = dt.datetime(2026, 1, 1, 12, 30, 0, 250_000, tzinfo=dt.UTC)
    batches = [[{"k": key, "i": 0, "v": 0, "ts": moment} for key in ("a", None)] for _ in range(3)]

    def query(frame: DataFrame) -> DataFrame:
        # As text, because what the driver makes of a time zone is not in question here.
        return key_by(frame, "k").process(Types()).select("k", F.to_json(F.struct("*")).alias("all"))

    ran = run(spark, tmp_path, batches, query, until=3)
    harness = KeyedHarness(Types(), "k")
    wanted = [harness.process(rows) for rows in batches]
    assert [row[1:4] for rows in wanted for row in rows] == [(moment, moment.replace(tzinfo=None), moment.date())] * 4
    for rows in ran.rows.values():
        for key, text in rows:
            assert json.loads(text) == {
                **({} if key is None else {"k": key}),
                "moment": "2026-01-01T12:30:00.250Z",
                "local": "2026-01-01T12:30:00.250",
                "day": "2026-01-01",
                "raw": "AA==",
                "real": 0.5,
                "whole": 2.0,
                "inner": {"n": 1, "at": "2026-01-01T12:30:00.250Z"},
                "many": [{"n": 1}, None],
                "named": {"x": 1.0},
            }
    assert [len(rows) for _, rows in sorted(ran.rows.items())] == [0, 2, 2]


def aggregation(*, merges: bool) -> Aggregation:
    return Aggregation(
        accumulator="total DECIMAL(18,2), n BIGINT, ids ARRAY<BIGINT>, last STRUCT<at: TIMESTAMP>",
        create=lambda: (Decimal(0), 0, [], (dt.datetime.min.replace(tzinfo=dt.UTC),)),
        add=lambda before, row: (
            *(before[0] + (row.v or 0), before[1] + 1, [*before[2], row.i]),
            max(before[3], (row["ts"],)),
        ),
        merge=(lambda left, right: (left[0] + right[0], left[1] + right[1], left[2] + right[2], max(left[3], right[3])))
        if merges
        else None,
        get=lambda made: (made[0], made[1], sum(made[2]), made[3][0]),
        output="total DECIMAL(18,2), n BIGINT, ids BIGINT, last TIMESTAMP",
    )


SQL = ("coalesce(sum(v), 0.00) AS total", "count(*) AS n", "sum(i) AS ids", "max(ts) AS last")


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(SQL, id="sql", marks=pytest.mark.slow),
        pytest.param((aggregation(merges=True),), id="combined"),
        pytest.param((aggregation(merges=False),), id="rows", marks=pytest.mark.slow),
    ],
)
def test_an_aggregation_gives_the_same_in_sql_and_in_python(spark: SparkSession, tmp_path: Path, what: Any) -> None:
    batches = events(seed=23, batches=3, rows=60)

    def query(frame: DataFrame) -> DataFrame:
        return key_by(frame, "k").aggregate(*what).withColumn("last", F.date_format("last", "yyyy-MM-dd HH:mm:ss.SSS"))

    ran = run(spark, tmp_path, batches, query, until=3, output_mode="update")
    rows: dict[Any, list[dict[str, Any]]] = {}
    for batch, given in enumerate(batches):
        for row in given:
            rows.setdefault(row["k"], []).append(row)
        expected = {
            key: [
                (
                    *(key, sum((row["v"] or Decimal(0) for row in rows_of_key), Decimal(0)), len(rows_of_key)),
                    sum(row["i"] for row in rows_of_key),
                    max(row["ts"] for row in rows_of_key).isoformat(" ", "milliseconds")[:-6],
                )
            ]
            for key, rows_of_key in rows.items()
            if key in {row["k"] for row in given}
        }
        assert by_key(ran.rows[batch]) == expected


def test_a_reduction_is_an_aggregation_of_one_column(spark: SparkSession, tmp_path: Path) -> None:
    largest = Aggregation.reducing("v", "DECIMAL(12,2)", max)

    def query(frame: DataFrame) -> DataFrame:
        return key_by(frame, "k").aggregate(largest)

    given: list[list[tuple[str, int | None]]] = [[("a", 5), ("a", None), ("b", None)], [("a", 3), ("b", 2)]]
    batches = [[{"k": k, "v": v} for k, v in rows] for rows in given]
    ran = run(spark, tmp_path, batches, query, until=2, output_mode="update")
    assert [sorted(rows) for _, rows in sorted(ran.rows.items())] == [[("a", 5), ("b", None)], [("a", 5), ("b", 2)]]


def test_a_struct_as_a_key_is_refused_where_rows_are_added_up_before_they_are_shuffled(spark: SparkSession) -> None:
    stream = key_by(spark.createDataFrame([], SCHEMA).withColumn("w", F.struct("k", "i")), "k", "w")
    with pytest.raises(RefusedError, match=r"w is struct<k:string,i:bigint>; .* such as w\.k AS k"):
        stream.aggregate(aggregation(merges=True))
    assert stream.aggregate(aggregation(merges=False)).columns == ["k", "w", "total", "n", "ids", "last"]


class Pairs(KeyedProcessFunction[Any, Any]):
    output = "k STRING, given STRING, attributes MAP<STRING, BIGINT>"

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        yield context.key.k, repr((value.attributes, value.inner["many"])), dict(value.attributes)


def test_a_map_of_the_stream_is_a_list_of_pairs(spark: SparkSession, tmp_path: Path) -> None:
    def query(frame: DataFrame) -> DataFrame:
        named = F.create_map(F.lit("x"), "i")
        inner = F.struct(F.array(named).alias("many"))
        return key_by(frame.withColumns({"attributes": named, "inner": inner}), "k").process(Pairs())

    ran = run(spark, tmp_path, [[{"k": "a", "i": 1}]], query, until=1)
    assert [tuple(row) for row in ran.rows[0]] == [("a", "([('x', 1)], [[('x', 1)]])", {"x": 1})]


@pytest.mark.parametrize("what", [(), (aggregation(merges=True), "sum(v) AS v"), (5,)])
def test_what_is_no_aggregation_is_refused(spark: SparkSession, what: Any) -> None:
    frame = spark.createDataFrame([], SCHEMA)
    with pytest.raises(RefusedError, match="one or more expressions of Spark's SQL, or one Aggregation"):
        key_by(frame, "k").aggregate(*what)


def test_a_value_that_does_not_fit_reaches_the_driver_as_an_error_of_the_data(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Wrong(KeyedProcessFunction[Any, Any]):
        output = "n BIGINT"
        sum: ValueState[Decimal] = ValueState("DECIMAL(12,2)")

        def process_element(self, value: Any, context: Context) -> None:
            self.sum.update(Decimal("0.125"))

    (tmp_path / "one.json").write_text('{"k": "a"}')
    stream = key_by(spark.readStream.schema(SCHEMA).json(str(tmp_path)), "k").process(Wrong())
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException) as raised:
        query.processAllAvailable()
    error = typed_errors.find(str(raised.value))
    assert isinstance(error, StateValueError)
    assert str(error) == "state sum: Decimal('0.125') does not fit DECIMAL(12,2): it would be rounded; quantize it"


@pytest.mark.parametrize(
    ("key", "function", "message"),
    [
        ([], Everything(), r"key_by\(\): none given; the frame's columns are k, i, v, ts"),
        (["z"], Everything(), r"key_by\(\): z; the frame's columns"),
        (["many"], Everything(), "many is array<int>; Python can't look up such a key"),
        (["k"], Timed(), "Timed runs by event time, and ts has no watermark"),
    ],
)
def test_a_stream_that_does_not_fit_its_function_is_refused(
    spark: SparkSession, key: list[str], function: Any, message: str
) -> None:
    frame = spark.createDataFrame([], SCHEMA + (", many ARRAY<INT>" if "many" in key else ""))
    with pytest.raises(RefusedError, match=message):
        key_by(frame, *key).process(function)
