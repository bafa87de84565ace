"""The digest that readers compute is the one that Spark computes in the sink."""

from __future__ import annotations

import random
from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka.digest import MODULUS, record_digest
from airflow_provider_exactlyonce.streaming import KafkaSink
from airflow_provider_exactlyonce.streaming.sinks.kafka import columns

COLUMNS = "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


def rows(seed: int, count: int) -> list[tuple[Any, Any, Any]]:
    generator = random.Random(seed)

    def content(longest: int) -> bytes | None:
        return None if generator.random() < 0.15 else generator.randbytes(generator.randint(0, longest))

    def headers() -> list[tuple[str, bytes | None]] | None:
        if generator.random() < 0.3:
            return None
        return [("".join(generator.choices("aé漢", k=generator.randint(0, 40))), content(50)) for _ in range(3)]

    return [(content(70), content(300), headers()) for _ in range(count)]


def test_a_readers_digest_is_sparks_for_all_lengths_nulls_and_headers(spark: Any) -> None:
    from pyspark.sql import functions as F

    given = [*rows(1, 2000), (None, None, None), (b"", b"", []), (b"\0", None, [("", None)]), (None, b"\0" * 64, None)]
    frame = spark.createDataFrame(given, COLUMNS)
    digest = F.xxhash64("key", F.isnull("key"), "value", F.isnull("value"), "headers")
    expected = [row[0] % MODULUS for row in frame.select(digest).collect()]
    assert [record_digest(*record) for record in given] == expected


def test_a_readers_digest_is_the_sinks(spark: Any) -> None:
    given = rows(2, 500)
    sink = KafkaSink("t", headers="headers")
    encoded = columns.encode(sink, spark.createDataFrame(given, COLUMNS)).collect()
    records = [(_bytes(row.key), _bytes(row.value), row.headers) for row in encoded]
    assert [record[:2] for record in records] == [record[:2] for record in given]
    assert [row.digest % MODULUS for row in encoded] == [
        record_digest(key, value, headers and [(name, _bytes(content)) for name, content in headers])
        for key, value, headers in records
    ]


@pytest.mark.parametrize(
    ("sink", "key", "value"),
    [
        (KafkaSink("t"), "k", "v"),
        (KafkaSink("t", value_format="raw"), "k", "v"),
        (KafkaSink("t", key="key", value_format="raw"), "k", "v"),
        (KafkaSink("t", key="value", value_format="raw"), "v", "v"),
        (KafkaSink("t", key="key"), "k", '{"key":"k","value":"v"}'),
        (KafkaSink("t", value_format="json"), None, '{"key":"k","value":"v"}'),
    ],
)
def test_a_value_is_written_as_it_is_where_that_is_asked_for_or_nothing_else_is_named(
    spark: Any, sink: KafkaSink, key: str | None, value: str
) -> None:
    (row,) = columns.encode(sink, spark.sql("SELECT 'k' AS key, 'v' AS value")).collect()
    assert (row.key, row.value) == (key, value)


@pytest.mark.parametrize("value_format", [None, "raw"])
def test_a_key_that_the_result_does_not_have_is_refused(spark: Any, value_format: str | None) -> None:
    sink = KafkaSink("t", key="id", value_format=value_format)
    with pytest.raises(RefusedError, match=r"KafkaSink\(key='id'\): the result has the columns key, value"):
        columns.encode(sink, spark.sql("SELECT 'k' AS key, 'v' AS value"))


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
