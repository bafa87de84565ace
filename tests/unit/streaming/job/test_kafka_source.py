"""The options that Spark's source gets, and what the page about the Kafka source says of it."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields
from datetime import datetime
from pathlib import Path
from typing import Any

import pendulum
import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, TopicPattern, pipeline

PAGE = (Path(__file__).parents[4] / "docs/kafka-source.md").read_text()
REFUSED = re.findall(r"^\| `((?:KafkaSource|pipeline)\(.*\))` \| `(.*)` \|$", PAGE, re.MULTILINE)
CLUSTER = {"bootstrap.servers": "a:1"}


def test_a_sources_consumer_is_set_for_small_records_and_small_batches_as_the_docs_say() -> None:
    spark_options = KafkaSource("in").spark_options(CLUSTER)
    documented = dict(re.findall(r"^\| `(kafka\.[a-z.]+)` \| `(\d+)` \| your value is used \|$", PAGE, re.MULTILINE))
    assert documented.keys() == {
        "kafka.max.poll.records",
        "kafka.max.partition.fetch.bytes",
        "kafka.fetch.max.wait.ms",
    }
    assert documented.items() <= spark_options.items()


def test_the_users_value_of_a_default_wins_however_it_is_spelled() -> None:
    options = {"Kafka.max.poll.records": "7", "kafka.fetch.min.bytes": "5"}
    spark_options = {
        name.lower(): value for name, value in KafkaSource("in", options=options).spark_options(CLUSTER).items()
    }
    assert (spark_options["kafka.max.poll.records"], spark_options["kafka.fetch.min.bytes"]) == ("7", "5")
    assert spark_options["kafka.max.partition.fetch.bytes"] == "8388608"


def test_a_source_with_a_connection_is_read_from_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXACTLYONCE_SOURCES", json.dumps({"orders": {"bootstrap.servers": "orders:9092"}}))
    source = KafkaSource("in", conn_id="orders")
    assert source.spark_options(CLUSTER)["kafka.bootstrap.servers"] == "orders:9092"
    assert repr(source) == repr(KafkaSource("in"))
    with pytest.raises(RefusedError, match="conn_id=''"):
        KafkaSource("in", conn_id="")


def test_a_topic_of_another_cluster_is_no_loop_and_a_sink_may_have_its_name() -> None:
    declare = pipeline(name="p", source=KafkaSource("in", conn_id="orders"), sink=KafkaSink("in"))
    assert declare(lambda frame: frame).source_connections == {"in": "orders"}


@pytest.mark.parametrize(
    ("option", "value", "parameter"),
    [
        ("Subscribe", "other", "topic"),
        ("startingoffsets", "latest", "starting_offsets"),
        ("startingOffsets", "latest", "starting_offsets"),
        ("maxoffsetspertrigger", "5", "max_offsets_per_trigger"),
    ],
)
def test_an_option_that_says_other_than_a_parameter_is_refused_by_name(option: str, value: str, parameter: str) -> None:
    source = KafkaSource("in", max_offsets_per_trigger=7, options={option: value})
    with pytest.raises(SettingRefusedError) as caught:
        source.spark_options(CLUSTER)
    assert str(caught.value).startswith(f"option {option} of KafkaSource is '{value}'; it must be ")
    assert str(caught.value).endswith(f": use the parameter {parameter}")


def test_an_option_that_says_the_same_is_given_once() -> None:
    options = {"SUBSCRIBE": "in", "startingoffsets": "earliest", "failondataloss": "TRUE"}
    spark_options = KafkaSource("in", options=options).spark_options(CLUSTER)
    assert spark_options == KafkaSource("in").spark_options(CLUSTER)


def test_a_limit_may_be_an_option_while_no_parameter_says_one() -> None:
    spark_options = KafkaSource("in", options={"maxoffsetspertrigger": "5"}).spark_options(CLUSTER)
    assert {name.lower(): value for name, value in spark_options.items()}["maxoffsetspertrigger"] == "5"


def test_what_every_source_sets_is_no_part_of_a_pipelines_version() -> None:
    assert repr(KafkaSource("in")) == (
        "KafkaSource(topic='in', schema=None, starting_offsets='earliest', max_offsets_per_trigger=None, options={})"
    )


def test_every_option_is_on_the_page_with_its_default() -> None:
    defaults = {
        field.name: "required"
        if field.default is MISSING and field.default_factory is MISSING
        else f"`{field.default_factory() if field.default_factory is not MISSING else field.default!r}`"
        for field in fields(KafkaSource)
    }
    table = PAGE.split("## Options")[1].split("\n\n")[1]
    assert dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", table, re.MULTILINE)) == defaults


@pytest.mark.parametrize(("declaration", "message"), REFUSED)
def test_what_the_page_says_is_refused_is(declaration: str, message: str) -> None:
    names = {"KafkaSource": KafkaSource, "KafkaSink": KafkaSink, "pipeline": pipeline}
    with pytest.raises(RefusedError, match=re.escape(message)):
        eval(declaration, names)


def test_the_page_lists_refusals() -> None:
    assert len(REFUSED) == 13


@pytest.mark.parametrize(
    "moment",
    ["2026-11-21T12:00", "2026-11-21 13:00+01:00", datetime(2026, 11, 21, 12), pendulum.datetime(2026, 11, 21, 12)],
)
def test_a_time_to_begin_at_is_one_text_in_the_version_and_one_option(moment: datetime | str) -> None:
    source = KafkaSource("in", starting_offsets=moment)
    assert source == KafkaSource("in", starting_offsets="2026-11-21T12:00:00+00:00")
    assert "starting_offsets='2026-11-21T12:00:00+00:00'" in repr(source)
    spark_options = source.spark_options(CLUSTER)
    assert spark_options["startingTimestamp"] == "1795262400000"
    assert spark_options["startingOffsetsByTimestampStrategy"] == "latest"
    assert "startingOffsets" not in spark_options


@pytest.mark.parametrize("option", ["startingTimestamp", "startingOffsetsByTimestamp", "startingoffsets"])
def test_sparks_own_ways_to_begin_are_refused_beside_the_parameter(option: str) -> None:
    for start in ("earliest", "2026-11-21"):
        with pytest.raises(SettingRefusedError, match="use the parameter starting_offsets"):
            KafkaSource("in", starting_offsets=start, options={option: "5"}).spark_options(CLUSTER)


def test_offsets_to_begin_at_are_one_in_the_version_and_one_option() -> None:
    source = KafkaSource("in", starting_offsets={"in": {"10": 7, "2": 0}})
    assert source == KafkaSource("in", starting_offsets={"in": {2: 0, 10: 7}})
    assert "starting_offsets={'in': {2: 0, 10: 7}}" in repr(source)
    spark_options = source.spark_options(CLUSTER)
    assert json.loads(spark_options["startingOffsets"]) == {"in": {"2": 0, "10": 7}}
    assert "startingTimestamp" not in spark_options
    pattern = TopicPattern("in.*")
    assert KafkaSource(pattern, starting_offsets={"in1": {0: 5}}).first_offsets == {"in1": {0: 5}}


@pytest.mark.parametrize(
    ("start", "accepted"),
    [
        *((start, "earliest, latest, a time in ISO 8601, or {") for start in ("noon", "", 5, None, {"in": 5})),
        *(({"in": {0: offset}}, "earliest, latest, a time") for offset in (0.5, True, None, "x")),
        ({"in": {0: -1}}, "partitions and offsets from 0"),
        ({"in": {-1: 0}}, "partitions and offsets from 0"),
        ({}, "the offsets of in, and of no other topic"),
        ({"in": {0: 0}, "of": {0: 0}}, "the offsets of in, and of no other topic"),
    ],
)
def test_what_is_no_place_to_begin_is_refused(start: Any, accepted: str) -> None:
    with pytest.raises(RefusedError, match=f"starting_offsets=.*: {accepted}"):
        KafkaSource("in", starting_offsets=start)
