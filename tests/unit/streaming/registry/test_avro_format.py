"""What an Avro format declares of a source or a sink, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming import AvroFormat, KafkaSink, KafkaSource

SCHEMA = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "owner", "type": {"type": "record", "name": "Owner", "fields": [{"name": "name", "type": "string"}]}},
        {"name": "again", "type": {"type": "map", "values": "Owner"}},
    ],
}
COLUMNS = (
    "`id` BIGINT NOT NULL, `price` DECIMAL(12,2), `at` TIMESTAMP NOT NULL, `tags` ARRAY<STRING> NOT NULL, "
    "`owner` STRUCT<`name`: STRING> NOT NULL, `again` MAP<STRING, STRUCT<`name`: STRING>> NOT NULL"
)


def test_a_sources_columns_are_the_fields_of_the_schema() -> None:
    source = KafkaSource("in", value_format=AvroFormat(json.dumps(SCHEMA)))
    assert source.schema == COLUMNS
    assert KafkaSource("in", schema=COLUMNS, value_format=AvroFormat(json.dumps(SCHEMA))) == source


def test_a_sinks_format_as_it_was_before_registries_has_the_text_that_it_had() -> None:
    assert repr(AvroFormat("{}", 7)) == "AvroFormat(schema='{}', schema_id=7)"
    sink = KafkaSink("out", value_format=AvroFormat("{}", subject="record"))
    assert sink.facts["value_format"] == ("AvroFormat(schema='{}', schema_id=None), subject record",)


def fields(*types: Any) -> str:
    named = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(types)]
    return json.dumps({"type": "record", "name": "R", "fields": named})


REFUSED: dict[str, dict[str, Any]] = {
    "of KafkaSource('in'): it needs a schema, of its own or of the source": {"value_format": AvroFormat()},
    "None for JSON, or an AvroFormat or a ProtobufFormat without schema_id: each record has one": {
        "value_format": AvroFormat("{}", 7)
    },
    "the columns are those of value_format's schema": {
        "schema": "id INT",
        "value_format": AvroFormat(json.dumps(SCHEMA)),
    },
    "is no Avro schema: Expecting value": {"value_format": AvroFormat("latest")},
    "is no Avro schema: there is no type 'Nothing'": {"value_format": AvroFormat(fields("Nothing"))},
    "is no Avro schema: it lacks 'items'": {"value_format": AvroFormat(fields({"type": "array"}))},
    "no column can have values of the Avro type int or string": {"value_format": AvroFormat(fields(["int", "string"]))},
    "and the Avro schema is of the type string": {"value_format": AvroFormat('"string"')},
    "the Avro type R has itself in its fields": {"value_format": AvroFormat(fields(["null", "R"]))},
    "decimal(40,2) has more than the 38 digits": {
        "value_format": AvroFormat(fields({"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}))
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_source_that_could_not_be_read_is_refused_when_it_is_declared(message: str) -> None:
    with pytest.raises(RefusedError) as caught:
        KafkaSource("in", **REFUSED[message])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subject": "file"}, "AvroFormat(subject='file'): topic, record, topic_record"),
        ({"schema_id": 7}, "the id is of a schema, which it needs, too"),
        ({"schema": "latest", "subject": "record"}, "the record is not known before; 'topic'"),
        ({"schema": "{}", "schema_id": -1}, "0 to 2147483647"),
    ],
)
def test_words_that_do_not_go_together_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError) as caught:
        AvroFormat(**given)
    assert message in str(caught.value)


def test_a_sink_whose_rows_name_their_topics_has_no_subject_of_one() -> None:
    with pytest.raises(RefusedError, match="subject='record'"):
        KafkaSink(topic_column="where", value_format=AvroFormat())
    KafkaSink(topic_column="where", value_format=AvroFormat(subject="record"))
    KafkaSink(topic_column="where", value_format=AvroFormat("{}", 7))
