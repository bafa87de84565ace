"""What Spark's plan of a source in a registry's format shows, and what other parts know of it; no registry is asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming import AvroFormat, KafkaSink, KafkaSource
from airflow_provider_exactlyonce.streaming.analysis import determinism, logical_plans
from airflow_provider_exactlyonce.streaming.settings import REGISTRY_VARIABLE
from airflow_provider_exactlyonce.streaming.sinks.kafka.columns import encode

SOURCE = KafkaSource(
    "in", schema="id BIGINT NOT NULL, tags ARRAY<STRING>", offset_column="at", value_format=AvroFormat()
)


@pytest.fixture
def records(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    config = {"url": "http://nobody:8081", "basic.auth.user.info": "me:pass-word-1"}
    monkeypatch.setenv(REGISTRY_VARIABLE, json.dumps(config))
    return spark.createDataFrame([], SOURCE.columns)


def test_no_password_is_in_a_plan(records: Any) -> None:
    plan = SOURCE.stream_of(records)._jdf.queryExecution()
    assert "pass-word-1" not in plan.toString() + plan.analyzed().toJSON() + plan.executedPlan().treeString()
    assert "exactlyonce_decoding" in plan.toString()


def test_the_decoding_is_known_as_python_and_as_what_gives_the_same_again(records: Any) -> None:
    stream = SOURCE.stream_of(records)
    assert logical_plans.runs_python(stream)
    assert determinism.find(stream) == []


def test_a_stand_in_has_the_columns_of_the_stream(spark: Any, records: Any) -> None:
    assert SOURCE.stand_in(spark).schema == SOURCE.stream_of(records).schema


def test_without_a_registry_the_job_is_refused(records: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REGISTRY_VARIABLE)
    with pytest.raises(RefusedError, match="no registry is known: set EXACTLYONCE_SCHEMA_REGISTRY"):
        SOURCE.stream_of(records)


ID = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'


@pytest.mark.parametrize(
    ("given", "columns", "message"),
    [
        (AvroFormat(ID, 7), "CAST(1 AS STRING) AS id", "Cannot convert SQL field 'id' to Avro field 'id'"),
        (AvroFormat(ID, 7), "1 AS id, 2 AS other", "Cannot find field 'other' in Avro schema"),
        (AvroFormat('"long"', 7), "1 AS id", "the schema is no record"),
        (AvroFormat(), "1 AS `a b`", "column 'a b' can't be a field"),
        (AvroFormat(), "INTERVAL 1 DAY AS i", "'INTERVAL' is not a type"),
    ],
)
def test_columns_that_can_not_be_written_are_refused_by_name(
    spark: Any, records: Any, given: AvroFormat, columns: str, message: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        encode(KafkaSink("out", value_format=given), spark.sql(f"SELECT {columns}"))
    assert message in str(caught.value)
