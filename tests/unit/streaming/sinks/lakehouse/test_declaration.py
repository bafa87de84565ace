"""What is refused of the sink of a table before anything is opened."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming import DeltaSink, IcebergSink


def declare(kind: str, **options: Any) -> DeltaSink | IcebergSink:
    if kind == "DeltaSink":
        return DeltaSink(name="lake", path="/lake/shop", **options)
    return IcebergSink("lake.shop.events", name="lake", **options)


@pytest.mark.parametrize("kind", ["DeltaSink", "IcebergSink"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "upsert", "key": ["id", "id"]}, r"key=\['id', 'id'\]\): names of columns, each once"),
        ({"partition_by": ["day", "day"]}, r"partition_by=\['day', 'day'\]\): names of columns, each once"),
        ({"mode": "upsert", "key": [1]}, r"key=\[1\]\): names of columns"),
        ({"mode": "upsert", "key": None}, "goes by a key"),
        ({"compact_every": "10"}, "compact_every='10'\\): a number of commits"),
        ({"compact_every": 2.5}, "compact_every=2.5\\): a number of commits"),
        ({"max_file_bytes": "64MB"}, "max_file_bytes='64MB'\\): a number of bytes"),
    ],
)
def test_what_makes_no_sense_is_named(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        declare(kind, **options)


@pytest.mark.parametrize("kind", ["DeltaSink", "IcebergSink"])
@pytest.mark.parametrize("name", ["key", "order"])
def test_texts_that_are_equal_by_other_rules_tell_no_rows_apart(kind: str, name: str) -> None:
    columns = StructType().add("id", LongType()).add("text", StringType("UTF8_LCASE"))
    given: dict[str, Any] = {"key": "text"} if name == "key" else {"key": "id", "order": "text"}
    with pytest.raises(RefusedError, match=r"text.* is string collate UTF8_LCASE"):
        declare(kind, mode="upsert", **given).check_key(columns)
