"""The digest that readers compute is the one that Spark computes in the sink."""

from __future__ import annotations

import random
from typing import Any

from airflow_provider_exactlyonce.kafka.digest import MODULUS, record_digest
from airflow_provider_exactlyonce.streaming import KafkaSink

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
    assert [record_digest(*one) for one in given] == expected


def test_a_readers_digest_is_the_sinks(spark: Any) -> None:
    given = [(key, value) for key, value, _ in rows(2, 500)]
    encoded = KafkaSink("t").encode(spark.createDataFrame(given, "key BINARY, value BINARY")).collect()
    assert [(bytes(row.key) if row.key is not None else None) for row in encoded] == [key for key, _ in given]
    assert [row.digest % MODULUS for row in encoded] == [record_digest(*one) for one in given]
