"""Records that do not fit their schema: all of them go to their topic, and only what has some is read again."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType, TimestampType

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming import KafkaSource
from airflow_provider_exactlyonce.streaming.analysis.executed_batch import BatchCounts, ExecutedBatch
from airflow_provider_exactlyonce.streaming.analysis.logical_plans import check_read_once
from airflow_provider_exactlyonce.streaming.registry.encoded_values import EncodedValues
from airflow_provider_exactlyonce.streaming.settings import ADAPTIVE
from tests.integration.streaming.harness import World, check_ledger, read_committed

pytestmark = pytest.mark.timeout(600)

BATCH = 10
BAD = {3: b"no json", 4: b'{"id": "x", "k": "a"}', 7: None, 8: b'{"k": "a"}'}


def produce(producer: Producer, topic: str, first: int, bad: Mapping[int, bytes | None]) -> None:
    for number in range(BATCH):
        order = {"id": first + number, "k": "ab"[number % 2], "ts": f"2026-01-01T00:{first:02d}:00Z", "a": [number]}
        producer.produce(topic, bad.get(number, json.dumps(order).encode()), key=f"{first + number}", partition=0)
    assert producer.flush(30) == 0


def names(orders: DataFrame) -> DataFrame:
    return orders.sparkSession.createDataFrame([("a", "ann"), ("b", "bob")], "k STRING, name STRING")


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "nothing": lambda orders: orders,
    "a filter": lambda orders: orders.where("id % 3 > 0"),
    "a filter of a column alone": lambda orders: orders.select("k").where("k = 'a'"),
    "no column": lambda orders: orders.select(F.lit(1).alias("one")),
    "an aggregation": lambda orders: orders.groupBy("k").count(),
    "twice": lambda orders: orders.where("id > 5").union(orders.where("id <= 5")),
    "an array": lambda orders: orders.select(F.explode(F.array("id", "id"))).where("col > 5"),
    "a shuffle": lambda orders: orders.repartition(2, "id").where("id > 5"),
    "a join with what is broadcast": lambda orders: orders.join(F.broadcast(names(orders)), "k"),
    "a join of what is broadcast": lambda orders: names(orders).join(F.broadcast(orders), "k"),
}


def minutes(orders: DataFrame) -> DataFrame:
    return orders.withWatermark("ts", "1 second").groupBy(F.window("ts", "1 minute")).count()


SPARKS = "parsed by Spark"
SCHEMAS = {
    "decoded in blocks": "id BIGINT NOT NULL, k STRING NOT NULL",
    SPARKS: "id BIGINT NOT NULL, k STRING NOT NULL, ts TIMESTAMP",
    "nested": "id BIGINT NOT NULL, k STRING NOT NULL, a ARRAY<INT>",
}


@pytest.fixture(scope="module")
def orders(kafka_config: Mapping[str, str], make_topic: Callable[..., str]) -> str:
    """Give a topic with a batch of good records and one with bad ones."""
    topic, producer = make_topic(partitions=1), Producer(dict(kafka_config))
    produce(producer, topic, 0, {})
    produce(producer, topic, BATCH, BAD)
    return topic


class Counting:
    """Runs queries on a topic, and counts what they see."""

    def __init__(self, spark: SparkSession, config: Mapping[str, str], folder: Path) -> None:
        self.spark, self.config, self.folder = spark, config, folder

    def read(self, topic: str, schema: str | None) -> DataFrame:
        source = KafkaSource(topic, schema=schema, max_offsets_per_trigger=BATCH)
        return source.read(self.spark, self.config, leave_out_bad=True)

    def run(
        self,
        topic: str,
        schema: str | None,
        query: Callable[[DataFrame], DataFrame],
        mode: str = "update",
        attempts: int = 1,
    ) -> list[BatchCounts]:
        counts = []

        def process(batch: DataFrame, number: int) -> None:
            for _ in range(attempts):
                executed = ExecutedBatch(self.spark, json.loads((self.folder / "metadata").read_text())["id"])
                batch.collect()
            counts.append(executed.counts())

        writer = query(self.read(topic, schema)).writeStream.outputMode(mode)
        running = writer.option("checkpointLocation", str(self.folder)).foreachBatch(process)
        running.trigger(availableNow=True).start().awaitTermination()
        return counts


@pytest.fixture
def counting(spark: SparkSession, kafka_config: Mapping[str, str], tmp_path: Path) -> Counting:
    return Counting(spark, kafka_config, tmp_path)


def slow_but(*fast: str, of: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in fast else pytest.mark.slow) for name in of]


@pytest.mark.parametrize("query", slow_but("a filter", "no column", "an array", of=QUERIES))
@pytest.mark.parametrize("schema", slow_but(SPARKS, of=SCHEMAS))
def test_what_fits_is_counted_before_the_users_function_has_a_say(
    counting: Counting, orders: str, schema: str, query: str
) -> None:
    counts = counting.run(orders, SCHEMAS[schema], QUERIES[query])
    assert [(of.records, of.fitting) for of in counts if of.records] == [(BATCH, BATCH), (BATCH, BATCH - len(BAD))]


@pytest.mark.parametrize(
    "query",
    slow_but(
        *("twice", "an aggregation", "a join with what is broadcast"),
        of=["nothing", "twice", "an aggregation", "a shuffle", "a join with what is broadcast"],
    ),
)
def test_each_attempt_of_a_batch_reads_all_of_it(counting: Counting, orders: str, query: str) -> None:
    counts = counting.run(orders, SCHEMAS[SPARKS], QUERIES[query], attempts=3)
    assert [(of.records, of.fitting) for of in counts if of.records] == [(BATCH, BATCH), (BATCH, BATCH - len(BAD))]


def test_what_adaptive_execution_hides_is_refused(counting: Counting, orders: str) -> None:
    counting.spark.conf.set(ADAPTIVE, "true")
    try:
        with pytest.raises(Exception, match=f"{ADAPTIVE} is 'true'; it must be 'false'"):
            counting.run(orders, SCHEMAS[SPARKS], QUERIES["a shuffle"])
        assert len(counting.run(orders, SCHEMAS[SPARKS], QUERIES["a filter"])) == 2
    finally:
        counting.spark.conf.unset(ADAPTIVE)


@pytest.mark.parametrize("schema", [None, SCHEMAS[SPARKS]])
def test_a_source_that_spark_reads_twice_is_refused_and_one_with_other_names_is_read_once(
    counting: Counting, orders: str, schema: str | None
) -> None:
    stream = counting.read(orders, schema).select("*", F.lit("a").alias("word"))
    check_read_once(stream.union(stream))
    check_read_once(stream.join(stream.withColumnsRenamed({name: f"{name}_" for name in stream.columns})))
    if schema is None:
        with pytest.raises(RefusedError, match=f"joins the stream of {re.escape(orders)} with itself"):
            check_read_once(stream.join(stream, "word"))


def test_of_what_a_limit_leaves_unread_nothing_is_known(counting: Counting, orders: str) -> None:
    for counts in counting.run(orders, SCHEMAS[SPARKS], lambda orders: orders.limit(4), "append"):
        assert counts.fitting == 0


def test_a_batch_without_data_is_a_batch_too(counting: Counting, orders: str) -> None:
    counts = counting.run(orders, SCHEMAS[SPARKS], minutes)
    assert [(of.records, of.fitting) for of in counts] == [(BATCH, BATCH), (BATCH, BATCH - len(BAD)), (0, 0)]


def test_a_batch_without_data_of_what_workers_decode_is_a_batch_too(counting: Counting, orders: str) -> None:
    schema = StructType().add("id", LongType()).add("ts", TimestampType())

    class Decoder:
        def open(self) -> Decoder:
            return self

        def decode(self, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
            kinds = pa.struct([("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
            ids = [re.search(rb'"id": (\d+)', value or b"") for value in values.to_pylist()]
            minute = max(int(found[1]) for found in ids if found)
            times = [{"id": number, "ts": minute * 60_000_000} for number in range(len(values))]
            return pa.array(times, kinds), dict.fromkeys(range(1, len(values), 2), "odd")

    def decoded(records: DataFrame) -> DataFrame:
        return minutes(EncodedValues(cast(Any, Decoder()), schema).fitted(records, leave_out_bad=True))

    counts = counting.run(orders, None, decoded)
    assert [(of.records, of.undecoded) for of in counts] == [(BATCH, 5), (BATCH, 5), (0, None)]


def test_a_source_that_has_nothing_new_is_one_of_several(
    counting: Counting, orders: str, make_topic: Callable[..., str]
) -> None:
    idle = counting.read(make_topic(partitions=1), SCHEMAS[SPARKS])
    counts = counting.run(orders, SCHEMAS[SPARKS], lambda orders: orders.union(idle))
    assert [(of.records, of.fitting) for of in counts] == [(BATCH, BATCH), (BATCH, BATCH - len(BAD))]


@pytest.mark.parametrize(
    ("schema", "fitting"),
    [
        ("id BIGINT NOT NULL", [10, 6]),
        pytest.param("k STRING", [10, 6], marks=pytest.mark.slow),
        pytest.param("more STRING NOT NULL", [0, 0], marks=pytest.mark.slow),
    ],
)
def test_of_two_sources_that_read_one_topic_both_have_to_fit(
    counting: Counting, orders: str, schema: str, fitting: list[int]
) -> None:
    other = counting.read(orders, schema).select(F.lit("another").alias("k"))
    counts = counting.run(orders, SCHEMAS[SPARKS], lambda orders: orders.select("k").union(other))
    assert [of.fitting for of in counts] == fitting


def test_everything_fits_a_source_without_a_schema(counting: Counting, orders: str) -> None:
    raw = counting.read(orders, None).select(F.lit("raw").alias("k"))
    counts = counting.run(orders, SCHEMAS[SPARKS], lambda orders: orders.select("k").union(raw))
    assert [of.fitting for of in counts] == [BATCH, BATCH - len(BAD)]


def test_bad_records_reach_their_topic_over_a_death_and_only_ranges_that_may_have_some_are_read_again(
    world: World, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    world = replace(world, job="diverting.py", source=make_topic(partitions=1))
    bad, notes = make_topic(partitions=1), tmp_path / "read-again"
    environment = {"TEST_BAD_RECORDS": bad, "TEST_READ_AGAIN": str(notes)}
    producer = Producer(dict(world.config))
    for first, among in ((0, {}), (BATCH, BAD), (2 * BATCH, {})):
        produce(producer, world.source, first, among)
    killed = world.start(environment=environment, failpoints="after-pre-commit:batch=1")
    assert killed.wait() == -signal.SIGKILL, killed.output()[-3000:]
    transactional = Producer({**world.config, "transactional.id": f"orders-{world.source}"})
    transactional.init_transactions(30)
    transactional.begin_transaction()
    produce(transactional, world.source, 3 * BATCH, {})
    transactional.commit_transaction(30)
    driver = world.start(environment=environment)
    assert driver.wait() == 0, driver.output()[-3000:]

    commits = check_ledger(world)
    written = [json.loads(record.value or b"")["id"] for record in read_committed(world.config, world.sink)]
    numbers = [n for n in range(4 * BATCH) if n % 3 and n - BATCH not in BAD]
    assert sorted(written) == numbers
    assert [commit.bad_records for commit in commits][:3] == [0, len(BAD), 0]
    diverted = read_committed(world.config, bad)
    assert [record.value for record in diverted] == list(BAD.values())
    origins = [dict(record.headers)["exactlyonce.origin"].decode() for record in diverted]
    assert origins == [f"{world.source}-0 offset {BATCH + number}" for number in BAD]
    read_again = [json.loads(line)["0"] for line in notes.read_text().splitlines()]
    ranges = [[start, end] for commit in commits for start, end in commit.source[world.source].values()]
    with_a_gap = [[start, end] for start, end in ranges if end == 4 * BATCH + 1]  # the transaction's end has an offset
    assert len(with_a_gap) == 1
    assert read_again == [[10, 20], [10, 20], *with_a_gap]
