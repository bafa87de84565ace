"""The kit for tests of a job, tried on example jobs and on small ones: the rows of each batch as its sinks get them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.exceptions import BadRecordError, DivergedError, ExactlyOnceError
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, Share, Sink, TopicPattern, pipeline
from airflow_provider_exactlyonce.streaming.job import loader
from airflow_provider_exactlyonce.streaming.sinks.spi import TWO_PHASE_COMMIT
from airflow_provider_exactlyonce.testing import InputRecord, run_job

JOBS = Path(__file__).parents[3] / "dags" / "jobs"
NUMBERS = KafkaSource("numbers", schema="n INT NOT NULL, at TIMESTAMP")


def event(number: int, behavior: str, price: str = "1.00", uuid: str = "ann") -> Mapping[str, Any]:
    return {"event_id": number, "uuid": uuid, "itemCode": "tea", "behavior": behavior, "price": Decimal(price)}


def test_a_sum_goes_on_from_batch_to_batch(spark: Any) -> None:
    job = loader.load(str(JOBS / "shop_totals.py"))
    first, second = run_job(
        job,
        [
            [event(1, "pay", "10.50"), event(2, "add"), event(3, "pay", "0.25", uuid="bob")],
            [event(4, "pay", "1.50")],
        ],
        spark,
        deterministic=True,
    )
    assert sorted(first.values, key=str) == [
        {"uuid": "ann", "paid": Decimal("10.50"), "purchases": 1},
        {"uuid": "bob", "paid": Decimal("0.25"), "purchases": 1},
    ]
    assert second.values == [{"uuid": "ann", "paid": Decimal("12.00"), "purchases": 2}]
    assert [(record.topic, record.key) for record in second.records] == [("shop.totals", b"ann")]


def test_records_of_several_topics_are_told_apart(spark: Any) -> None:
    source = KafkaSource(TopicPattern("[ab]"), schema="n INT NOT NULL", topic_column="of", offset_column="at")
    sink = KafkaSink("out", bad_records="topic")

    @pipeline(name="diverted", source=source, sink=sink)
    def diverted(numbers: DataFrame) -> DataFrame:
        return numbers

    records = [InputRecord(value=b'{"n": 1}', topic="b"), InputRecord(value=b'{"n": 2}', topic="a")]
    (batch,) = run_job(diverted, [[*records, InputRecord(value=b"no", topic="b")]], spark)
    rows = [{"n": 1, "at": 0, "of": "b"}, {"n": 2, "at": 1, "of": "a"}]
    assert sorted(batch.values, key=str) == sorted(rows, key=str)
    assert [dict(record.headers)["exactlyonce.origin"] for record in batch.bad] == [b"b-0 offset 2"]
    with pytest.raises(ExactlyOnceError, match=r"a record of topic c for a source of"):
        run_job(diverted, [[InputRecord(value=b"{}", topic="c")]], spark)


def test_keyed_state_of_a_users_function_goes_on_from_batch_to_batch(spark: Any) -> None:
    job = loader.load(str(JOBS / "shop_alerts.py"))
    batches = run_job(job, [[event(1, "add"), event(2, "add")], [], [event(3, "add"), event(4, "add")]], spark)
    assert [batch.values for batch in batches if batch.records] == [
        [{"uuid": "ann", "itemCode": "tea", "event_ids": [1, 2, 3]}]
    ]


def test_a_watermark_advances_between_batches(spark: Any) -> None:
    @pipeline(name="windows", source=NUMBERS, sink=KafkaSink("out"))
    def windows(numbers: DataFrame) -> DataFrame:
        return numbers.withWatermark("at", "0 seconds").groupBy(F.window("at", "1 minute")).agg(F.sum("n").alias("s"))

    def at(minute: int) -> str:
        return dt.datetime(2026, 3, 1, 12, minute, tzinfo=dt.UTC).isoformat()

    given = [[{"n": 1, "at": at(0)}], [{"n": 2, "at": at(5)}], [{"n": 3, "at": at(5)}], [{"n": 4, "at": at(0)}]]
    batches = run_job(windows, given, spark)
    # The second batch moves the watermark, the third lets the first window go, the fourth drops what is late for it.
    assert [[value["s"] for value in batch.values] for batch in batches[:4]] == [[], [], [1], []]


@dataclass(frozen=True, kw_only=True)
class NamedSink(Sink):
    guarantee = TWO_PHASE_COMMIT

    @property
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        return {}

    def check_columns(self, columns: Any) -> None:
        assert columns.names

    def open(self, context: Any) -> Any:
        raise NotImplementedError


def test_each_sink_gets_its_share(spark: Any) -> None:
    even = Share(NamedSink(name="even"), where="n % 2 = 0", select=("n", "n * n AS square"))

    @pipeline(name="shares", source=NUMBERS, sink=[KafkaSink("out"), even])
    def shares(numbers: DataFrame) -> DataFrame:
        return numbers.select("n")

    [batch] = run_job(shares, [[{"n": 1}, {"n": 2}]], spark)
    assert batch.values == [{"n": 1}, {"n": 2}]
    assert batch.rows == {"even": [{"n": 2, "square": 4}]}


def test_several_sources_have_their_rows_by_name(spark: Any) -> None:
    @pipeline(name="both", source={"one": NUMBERS, "other": KafkaSource("raw")}, sink=KafkaSink("out"))
    def both(one: DataFrame, other: DataFrame) -> DataFrame:
        return one.selectExpr("CAST(n AS STRING) AS value").union(other.selectExpr("concat(key, value, offset)"))

    record = InputRecord(key=b"k", value=b"v")
    batches = run_job(both, [{"one": [{"n": 1}], "other": [record]}, {"other": [record]}], spark)
    assert [[record.value for record in batch.records] for batch in batches] == [[b"1", b"kv0"], [b"kv1"]]
    with pytest.raises(ExactlyOnceError, match="has no source 'third', it has one, other"):
        run_job(both, [{"third": []}], spark)


def test_a_bad_record_stops_the_job_or_goes_where_the_sink_says(spark: Any) -> None:
    def job(sink: KafkaSink) -> Any:
        return pipeline(name="bad", source=NUMBERS, sink=sink)(lambda numbers: numbers.select("n"))

    given: list[list[Any]] = [[{"n": 1}], ['{"n": "many"}', {"n": 2}]]
    with pytest.raises(BadRecordError, match="numbers-0 offset 1: field n is not int: many"):
        run_job(job(KafkaSink("out")), given, spark)
    first, second = run_job(job(KafkaSink("out", bad_records="topic")), given, spark)
    assert (first.values, first.bad, second.values) == ([{"n": 1}], [], [{"n": 2}])
    [bad] = second.bad
    assert (bad.topic, json.loads(bad.value or b"")) == ("out.bad", {"n": "many"})
    assert dict(bad.headers)["exactlyonce.origin"] == b"numbers-0 offset 1"


def test_rows_by_chance_are_told_on_wish(spark: Any) -> None:
    @pipeline(name="chance", source=NUMBERS, sink=KafkaSink("out"))
    def chance(numbers: DataFrame) -> DataFrame:
        return numbers.selectExpr("n", "uuid() AS id")

    run_job(chance, [[{"n": 1}]], spark)
    with pytest.raises(DivergedError, match="uuid"):
        run_job(chance, [[{"n": 1}]], spark, deterministic=True)


def test_a_function_that_hides_its_chance_is_found_by_running_twice(spark: Any) -> None:
    @F.udf("string")
    def fresh(number):  # type: ignore[no-untyped-def]  # Spark reads hints as a pandas function's
        import uuid

        return str(uuid.uuid4())

    @pipeline(name="hidden", source=NUMBERS, sink=KafkaSink("out"))
    def hidden(numbers: DataFrame) -> DataFrame:
        return numbers.select("n", fresh("n").alias("id"))

    with pytest.raises(DivergedError, match="batch 0 of hidden gave"):
        run_job(hidden, [[{"n": 1}]], spark, deterministic=True)
