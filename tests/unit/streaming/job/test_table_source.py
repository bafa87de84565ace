"""What can be declared of a table that is read."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming import (
    DeltaSink,
    DeltaSource,
    IcebergSink,
    IcebergSource,
    KafkaSink,
    KafkaSource,
    pipeline,
)
from airflow_provider_exactlyonce.streaming.job.definition import PipelineDefinition
from airflow_provider_exactlyonce.streaming.job.source import table_begins

SCHEMA = "id BIGINT NOT NULL, text STRING"


def declared(**parts: Any) -> PipelineDefinition:
    return pipeline(**{"name": "p", "source": DeltaSource("/t", SCHEMA), "sink": KafkaSink("out"), **parts})(
        lambda frame: frame
    )


def test_a_table_is_one_topic_by_its_kind_and_place() -> None:
    delta, iceberg = DeltaSource("s3://shop/orders/", SCHEMA), IcebergSource("shop.sales.orders", SCHEMA, conn_id="c")
    assert [str(source.topics) for source in (delta, iceberg)] == [
        "delta:s3://shop/orders",
        "iceberg:shop.sales.orders",
    ]
    assert [source.connection for source in (delta, iceberg)] == ["", "c"]
    made = declared(source={"a": delta, "b": iceberg, "c": KafkaSource("in"), "d": KafkaSource("other", conn_id="k")})
    assert made.source_connections == {
        "delta:s3://shop/orders": "",
        "iceberg:shop.sales.orders": "c",
        "other": "k",
    }


def test_it_begins_where_the_checkpoint_says_or_else_where_it_declares() -> None:
    made = declared(source={"a": DeltaSource("/t", SCHEMA, starting_version=3), "b": KafkaSource("in")})
    sources = made.sources.values()
    assert table_begins(sources) == {"delta:/t": {0: 3_000_000}}
    assert table_begins(sources, {"in": {0: 5}, "delta:/t": {0: 7_000_002}}) == {"delta:/t": {0: 7_000_002}}
    whole = IcebergSource("a.b.c", SCHEMA, starting_version=3, initial_snapshot=True)
    assert table_begins([whole]) == {"iceberg:a.b.c": {0: 3_500_000}}


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (DeltaSource, {"path": "orders", "schema": SCHEMA}, r"DeltaSource\('orders'\): an absolute path, or a URL"),
        (DeltaSource, {"path": "/a,b", "schema": SCHEMA}, "a comma"),
        (
            DeltaSource,
            {"path": "s3://KEY:hush@lake/t", "schema": SCHEMA},
            r"^path of a DeltaSource has credentials in it",
        ),
        (IcebergSource, {"table": "sales.orders", "schema": SCHEMA}, "name catalog, namespace and table"),
        (DeltaSource, {"path": "/t", "schema": "id NUMBER"}, r"schema of DeltaSource\('/t'\) is not DDL"),
        (DeltaSource, {"path": "/t", "schema": None}, r"schema of DeltaSource\('/t'\) is not DDL"),
        (DeltaSource, {"path": "/t", "schema": SCHEMA, "starting_version": -1}, r"version=-1 of DeltaSource\('/t'\)"),
        (DeltaSource, {"path": "/t", "schema": SCHEMA, "initial_snapshot": 3}, "initial_snapshot=3 of .*: True or"),
        (DeltaSource, {"path": "/t", "schema": SCHEMA, "max_files_per_trigger": 0}, "max_files_per_trigger=0 of"),
        (IcebergSource, {"table": "a.b.c", "schema": SCHEMA, "on_rewrite": "x"}, r"on_rewrite='x' of .*: 'stop'"),
        (IcebergSource, {"table": "a.b.c", "schema": SCHEMA, "conn_id": ""}, "conn_id='' of"),
    ],
)
def test_what_can_t_be_is_refused_by_name(kind: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        kind(**given).topics  # noqa: B018


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"source": {"a": DeltaSource("/t", SCHEMA), "b": DeltaSource("/t/", SCHEMA)}}, "read table delta:/t"),
        ({"sink": DeltaSink(name="lake", path="/t/")}, "pipeline p would write to table /t/, and reads it"),
        ({"sink": DeltaSink(name="lake", path="file:///t")}, "pipeline p would write to table file:///t, and reads it"),
        ({"source": IcebergSource("a.b.c", SCHEMA), "sink": IcebergSink("a.b.c", name="lake")}, "write to table a.b.c"),
        ({"sink": KafkaSink("out", offsets_group="g")}, "delta:/t is a table"),
    ],
)
def test_what_a_pipeline_can_t_do_with_a_table_is_refused_by_name(parts: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        declared(**parts)


def test_a_loop_that_is_meant_and_a_table_beside_another_are_accepted() -> None:
    declared(sink=DeltaSink(name="lake", path="/t"), allow_feedback=True)
    declared(sink=DeltaSink(name="lake", path="/other"))


def test_a_pipelines_version_stays_with_another_connection() -> None:
    first, second = (declared(source=DeltaSource("/t", SCHEMA, conn_id=conn_id)) for conn_id in ("a", "b"))
    assert repr(dict(first.sources)) == repr(dict(second.sources))
