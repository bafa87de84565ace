"""What Spark's plan of a source in a registry's format shows, and what other parts know of it; no registry is asked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from google.protobuf import message_factory

from airflow_provider_exactlyonce.exceptions import RecordRefusedError, RefusedError
from airflow_provider_exactlyonce.streaming import AvroFormat, KafkaSink, KafkaSource, ProtobufFormat
from airflow_provider_exactlyonce.streaming.analysis import determinism, logical_plans
from airflow_provider_exactlyonce.streaming.registry import protobuf_schemas
from airflow_provider_exactlyonce.streaming.registry.registry_format import RegistryFormat
from airflow_provider_exactlyonce.streaming.registry.wire_format import head, message_indexes
from airflow_provider_exactlyonce.streaming.settings import REGISTRY_VARIABLE
from airflow_provider_exactlyonce.streaming.sinks.kafka.columns import encode
from airflow_provider_exactlyonce.streaming.spark import errors, typed_errors
from tests.apicurio import Apicurio

COLUMNS = "id BIGINT NOT NULL, tags ARRAY<STRING>"
SOURCE = KafkaSource("in", schema=COLUMNS, offset_column="at", value_format=AvroFormat())


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


SOLD = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Other { bool no = 1; }
message Sold {
  message Item { int64 id = 1; optional string name = 2; }
  Item item = 1;
  google.protobuf.Timestamp at = 2;
  repeated string tags = 3;
  string price = 4;
  map<string, int32> counts = 5;
}
"""


def test_protobuf_is_written_by_python_workers_in_the_wire_format(spark: Any) -> None:
    frame = spark.sql(
        "SELECT struct(id, if(id % 2 = 0, null, string(id)) AS name) AS item, timestamp_micros(id) AS at, "
        "array('a', string(id)) AS tags, cast(id AS DECIMAL(12,2)) AS price, map('x', int(id)) AS counts FROM range(50)"
    )
    sink = KafkaSink("out", value_format=ProtobufFormat(SOLD, 70_000, message="Sold"))
    kind = message_factory.GetMessageClass(protobuf_schemas.message_named(protobuf_schemas.compiled(SOLD), "Sold"))
    written = {}
    for [value] in encode(sink, frame).select("value").collect():
        assert bytes(value[:7]) == head(70_000) + message_indexes([1])
        message = kind.FromString(bytes(value[7:]))
        written[message.item.id] = message
    assert sorted(written) == list(range(50))
    for number, message in written.items():
        expected = kind(item={"id": number}, tags=["a", str(number)], price=f"{number}.00", counts={"x": number})
        expected.at.FromMicroseconds(number)
        if number % 2:
            expected.item.name = str(number)
        assert message == expected


def test_a_row_that_protobuf_can_not_have_stops_the_batch_by_its_column(spark: Any) -> None:
    sink = KafkaSink("out", value_format=ProtobufFormat(SOLD, 7, message="Sold"))
    with pytest.raises(Exception, match="column price is null") as caught:
        encode(sink, spark.sql("SELECT cast(null AS STRING) AS price")).collect()
    assert isinstance(typed_errors.find(str(caught.value)), RecordRefusedError)


@pytest.mark.parametrize(
    ("kind", "column", "said"),
    [
        ("string", "cast(null AS STRING)", "null"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "'C'", "not defined in enum"),
        (
            {"type": "record", "name": "I", "fields": [{"name": "n", "type": "int"}]},
            "struct(cast(null AS INT) AS n)",
            "null",
        ),
    ],
)
def test_a_row_that_avro_can_not_have_stops_the_batch(spark: Any, kind: object, column: str, said: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "it", "type": kind}]}
    sink = KafkaSink("out", value_format=AvroFormat(json.dumps(schema), 7))
    with pytest.raises(Exception, match=said) as caught:
        encode(sink, spark.sql(f"SELECT {column} AS it")).collect()
    meaning = errors.meaning_of_batch(str(caught.value))
    assert isinstance(meaning, RecordRefusedError)
    assert said in str(meaning)


@pytest.mark.slow
def test_a_schema_that_columns_make_keeps_the_numbers_of_the_subjects_latest(
    spark: Any, registry_server: Apicurio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, registry_server.url)
    client = SchemaRegistryClient({"url": registry_server.url})
    sink = KafkaSink("numbered", value_format=ProtobufFormat())

    def numbers(columns: str) -> dict[str, int]:
        encode(sink, spark.sql(f"SELECT {columns}"))
        client.clear_latest_caches()
        schema = str(client.get_latest_version("numbered-value").schema.schema_str)
        message = protobuf_schemas.message_named(protobuf_schemas.compiled(schema), "numbered_value")
        return {field.name: field.number for field in message.fields}

    first = "1L AS id, 'a' AS name, 2 AS old"
    assert numbers(first) == {"id": 1, "name": 2, "old": 3}
    client.set_compatibility("numbered-value", level="BACKWARD")
    assert numbers("3 AS new, 'a' AS name, 1L AS id") == {"id": 1, "name": 2, "new": 4}
    for refused in ("'x' AS id, 'a' AS name, 3 AS new", first):  # another type; a name that was given up
        with pytest.raises(RefusedError, match="Incompatible artifact: numbered-value"):
            numbers(refused)
    client.set_compatibility("numbered-value", level="NONE")
    assert numbers(first) == {"id": 1, "name": 2, "old": 5}
    assert numbers(first) == {"id": 1, "name": 2, "old": 5}
    assert len(client.get_versions("numbered-value")) == 3, "the same columns make the same schema"
    latest = KafkaSink("numbered", value_format=ProtobufFormat("latest"))
    [[value]] = encode(latest, spark.sql("SELECT 7L AS id, 'a' AS name")).select("value").collect()
    assert bytes(value[5:]) == b"\0\x08\x07\x12\x01a"


ID = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'


@pytest.mark.parametrize(
    ("given", "columns", "message"),
    [
        (AvroFormat(ID, 7), "CAST(1 AS STRING) AS id", "Cannot convert SQL field 'id' to Avro field 'id'"),
        (AvroFormat(ID, 7), "1 AS id, 2 AS other", "Cannot find field 'other' in Avro schema"),
        (ProtobufFormat(SOLD, 7), "1 AS other", "column other is no field of the message Other"),
        (ProtobufFormat(SOLD, 7, message="None"), "1 AS id", "no message None; it has Other, Sold, Sold.Item"),
        (ProtobufFormat("message", 7), "1 AS id", "is no Protobuf schema: 1:8: Expected message name"),
        (ProtobufFormat(), "INTERVAL 1 DAY AS i", "'INTERVAL' is not a type"),
        (AvroFormat('"long"', 7), "1 AS id", "the schema is no record"),
        (AvroFormat(), "1 AS `a b`", "column 'a b' can't be a field"),
        (AvroFormat(), "INTERVAL 1 DAY AS i", "'INTERVAL' is not a type"),
    ],
)
def test_columns_that_can_not_be_written_are_refused_by_name(
    spark: Any, records: Any, given: RegistryFormat, columns: str, message: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        encode(KafkaSink("out", value_format=given), spark.sql(f"SELECT {columns}"))
    assert message in str(caught.value)
