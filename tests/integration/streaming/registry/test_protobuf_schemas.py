"""Protobuf schemas as a registry has them, compiled by protoc: texts, base64, imports; and those that columns make."""

from __future__ import annotations

import base64
import importlib.util
import sys
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from airflow_provider_exactlyonce.exceptions import BatchFailedError, RefusedError
from airflow_provider_exactlyonce.streaming import KafkaSource, ProtobufFormat
from airflow_provider_exactlyonce.streaming.registry import protobuf_schemas
from airflow_provider_exactlyonce.streaming.registry.protobuf_schemas import compiled, message_named

SCHEMA = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/duration.proto";
message Order {
  int64 id = 1;
  optional string name = 2;
  google.protobuf.Timestamp at = 3;
  google.protobuf.Int64Value seen = 4;
  map<uint32, Owner> owners = 5;
  message Owner { uint64 number = 1; bytes seal = 2; }
  enum Kind { NONE = 0; SOLD = 1; }
  Kind kind = 6;
  oneof paid { sint32 cash = 7; double rate = 8; }
  repeated float parts = 9;
  google.protobuf.Duration took = 10;
  bool ok = 11;
}
message Tree { Tree left = 1; }
message Empty {}
"""
COLUMNS = (
    "`id` BIGINT NOT NULL, `name` STRING, `at` TIMESTAMP, `seen` BIGINT, "
    "`owners` MAP<BIGINT, STRUCT<`number`: DECIMAL(20,0), `seal`: BINARY>> NOT NULL, `kind` STRING NOT NULL, "
    "`cash` INT, `rate` DOUBLE, `parts` ARRAY<FLOAT> NOT NULL, `took` STRUCT<`seconds`: BIGINT, `nanos`: INT>, "
    "`ok` BOOLEAN NOT NULL"
)


def test_a_sources_columns_are_the_fields_of_the_message() -> None:
    source = KafkaSource("in", value_format=ProtobufFormat(SCHEMA))
    assert source.schema == COLUMNS
    assert KafkaSource("in", value_format=ProtobufFormat(SCHEMA, message="shop.Order.Owner")).schema == (
        "`number` DECIMAL(20,0) NOT NULL, `seal` BINARY NOT NULL"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"schema": "message"}, "is no Protobuf schema: 1:8: Expected message name"),
        ({"schema": 'syntax = "proto3"; import "dep.proto";'}, "is no Protobuf schema: dep.proto: File not found"),
        ({"schema": 'syntax = "proto3";'}, "the Protobuf schema has no message ; it has none"),
        (
            {"schema": SCHEMA, "message": "Gone"},
            "the Protobuf schema has no message Gone; it has shop.Order, shop.Order",
        ),
        ({"schema": SCHEMA, "message": "Tree"}, "the Protobuf message shop.Tree has itself in its fields"),
        ({"schema": SCHEMA, "message": "Empty"}, "the Protobuf message shop.Empty has no fields"),
        ({"schema": 'syntax = "proto2"; message A { optional group B = 1 { } }'}, "the Protobuf field A.b is a group"),
    ],
)
def test_what_can_not_be_read_is_refused_when_it_is_declared(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError) as caught:
        KafkaSource("in", value_format=ProtobufFormat(**given))
    assert message in str(caught.value)


def test_without_the_compiler_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RefusedError, match=r"grpc_tools is missing.*install airflow-provider-exactlyonce.registry"):
        KafkaSource("in", value_format=ProtobufFormat(SCHEMA))


def test_a_compiler_that_fails_says_nothing_of_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BatchFailedError, match="protoc ended with 1, and says of no schema"):
        compiled('syntax = "proto3"; message NotCompiledBefore {}')


def serialized(text: str, name: str) -> str:
    """Return a schema as confluent-kafka's serializer registers it."""
    file = FileDescriptorProto()
    compiled(text).CopyToProto(file)
    file.name = name
    return base64.b64encode(file.SerializeToString()).decode()


DEEPEST = 'syntax = "proto3"; package deep; message Deepest { int32 x = 1; }'
DEEP = 'syntax = "proto3"; package deep; import "deep/est.proto"; message Deep { Deepest d = 1; }'
TOP = 'syntax = "proto3"; import "deep/deep.proto"; message Top { deep.Deep d = 1; }'


@pytest.mark.parametrize("base64s", range(4))
def test_a_schema_may_import_others_and_each_may_be_text_or_base64(base64s: int) -> None:
    imports = (
        ("deep/est.proto", serialized(DEEPEST, "any.proto") if base64s & 1 else DEEPEST),
        ("deep/deep.proto", DEEP),
    )
    top = TOP
    if base64s & 2:
        file = FileDescriptorProto()
        compiled(TOP, imports).CopyToProto(file)
        top = base64.b64encode(file.SerializeToString()).decode()
    message = message_named(compiled(top, imports), None)
    deepest = message.fields_by_name["d"].message_type.fields_by_name["d"].message_type
    assert (message.full_name, deepest.full_name) == ("Top", "deep.Deepest")


def test_an_imports_name_leads_out_of_no_folder() -> None:
    with pytest.raises(RefusedError, match="which is no name of a schema"):
        compiled('syntax = "proto3"; message A {}', (("../../outside.proto", DEEPEST),))


def test_schemas_with_messages_of_one_name_stand_side_by_side() -> None:
    kinds = [
        message_named(compiled(f'syntax = "proto3"; message A {{ {kind} x = 1; }}'), "A") for kind in ("int32", "bool")
    ]
    assert [kind.fields_by_name["x"].cpp_type for kind in kinds] == [1, 7]


#: Java's serializer counts the messages that a text declares; others count the entries of maps, too.
COUNTED = compiled(
    """syntax = "proto3"; message A { message B {} map<int32, int32> m = 1; message C {} message D {} }
    message E { message F {} }"""
)


def test_message_indexes_lead_to_messages_and_back() -> None:
    for name, indexes in {"A": [0], "A.B": [0, 0], "E": [1], "E.F": [1, 0]}.items():
        message = message_named(COUNTED, name)
        assert protobuf_schemas.indexes_of(message) == indexes
        assert protobuf_schemas.message_at(COUNTED, indexes) == message


def test_message_indexes_that_serializers_count_in_two_ways_are_not_guessed_at() -> None:
    assert protobuf_schemas.message_at(COUNTED, [0, 3]) == message_named(COUNTED, "A.D"), "only one way to count"
    assert protobuf_schemas.message_at(COUNTED, [0, 1]) == message_named(COUNTED, "A.C"), "no value is a map's entry"
    assert protobuf_schemas.message_at(COUNTED, [0, 2]) == (
        "its message indexes [0, 2] may mean several messages of its schema"
    )
    for indexes in ([2], [0, 4], [0, 0, 0], [-1]):
        assert f"{indexes} lead to no message" in str(protobuf_schemas.message_at(COUNTED, indexes))
    with pytest.raises(RefusedError, match=r"message A\.C is declared after a map field"):
        protobuf_schemas.indexes_of(message_named(COUNTED, "A.C"))


def made(columns: str, before: str | None = None) -> str:
    known = message_named(compiled(before), None) if before is not None else None
    text = protobuf_schemas.schema_of_columns(columns, "rows_value", known)
    compiled(text)
    return text


def test_columns_make_a_schema() -> None:
    columns = (
        "id BIGINT NOT NULL, price DECIMAL(12,2), at TIMESTAMP, tags ARRAY<STRING>, n TINYINT, ok BOOLEAN NOT NULL, "
        "home_town STRUCT<zip: INT NOT NULL, deep: STRUCT<seal: BINARY>>, sold MAP<BIGINT, STRUCT<rate: DOUBLE>>"
    )
    text = """\
syntax = "proto3";

import "google/protobuf/timestamp.proto";

message rows_value {
  int64 id = 1;
  optional string price = 2;
  optional google.protobuf.Timestamp at = 3;
  repeated string tags = 4;
  optional int32 n = 5;
  bool ok = 6;
  message HomeTown {
    int32 zip = 1;
    message Deep {
      optional bytes seal = 1;
    }
    optional Deep deep = 2;
  }
  optional HomeTown home_town = 7;
  message Sold {
    optional double rate = 1;
  }
  map<int64, Sold> sold = 8;
}
"""
    assert made(columns) == text
    assert made(columns, text) == text, "a restart makes the same"


def test_a_column_keeps_its_number_and_no_number_is_used_again() -> None:
    first = made("id INT NOT NULL, gone STRING, home STRUCT<zip: INT, street: STRING>")
    second = made("more INT NOT NULL, home STRUCT<town: STRING, street: STRING>, id INT NOT NULL", first)
    assert (
        second
        == """\
syntax = "proto3";

message rows_value {
  reserved 2;
  reserved "gone";
  int32 id = 1;
  message Home {
    reserved 1;
    reserved "zip";
    optional string street = 2;
    optional string town = 3;
  }
  optional Home home = 3;
  int32 more = 4;
}
"""
    )
    assert "string gone = 5;" in made("id INT NOT NULL, gone STRING", second)
    kept = 'syntax = "proto3"; message rows_value { reserved 5 to 7, 18999; int32 id = 1; }'
    assert "reserved 5 to 7, 18999;" in made("id INT, x INT", kept)
    assert "optional int32 x = 20000;" in made("id INT, x INT", kept), "19000 to 19999 are Protobuf's own"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("day DATE", "column day is DATE, for which Protobuf has no type: make it a STRING, or a number"),
        (
            "a ARRAY<ARRAY<INT>>",
            "column a is ARRAY<ARRAY<INT>>, for which Protobuf has no type: put the inner one into a",
        ),
        (
            "a STRUCT<m: MAP<DOUBLE, INT>>",
            "column a.m is MAP<DOUBLE, INT>: a map's keys are texts, integers or booleans",
        ),
        ("a MAP<STRING, ARRAY<INT>>", "for which Protobuf has no type: put the inner one into a STRUCT"),
        ("a STRUCT<`b c`: INT>", "column 'a.b c' can't be a field: a name is letters, digits and _, a letter first"),
    ],
)
def test_columns_that_protobuf_lacks_are_refused_by_name(columns: str, message: str) -> None:
    with pytest.raises(RefusedError) as caught:
        made(columns)
    assert message in str(caught.value)
