"""What the planner says of sources, engine and sinks: the plans are Spark's own, nothing runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming import CheckpointConfig, CheckpointingMode, KafkaSink, KafkaSource, pipeline
from airflow_provider_exactlyonce.streaming.analysis import determinism
from airflow_provider_exactlyonce.streaming.job import guarantees
from airflow_provider_exactlyonce.streaming.job.guarantees import DeliveryGuarantee
from airflow_provider_exactlyonce.streaming.sinks import spi
from airflow_provider_exactlyonce.streaming.sinks.spi import Sink
from airflow_provider_exactlyonce.streaming.sinks.upsert.sink import UpsertSink
from tests import commands

EVENTS = KafkaSource("in", schema="id BIGINT NOT NULL, v DOUBLE")


@dataclass(frozen=True, kw_only=True)
class SomeSink(Sink):
    writes: str

    @property
    def guarantee(self) -> str:
        return self.writes

    @property
    def facts(self) -> dict[str, tuple[str, ...]]:
        return {}

    def check_columns(self, columns: Any) -> None:
        raise NotImplementedError

    def open(self, context: Any) -> Any:
        raise NotImplementedError


def plan(spark: Any, function: Callable[..., Any] = lambda events: events, **declared: Any) -> DeliveryGuarantee:
    job = pipeline(**{"name": "p", "source": EVENTS, "sink": KafkaSink("out"), **declared})(function)
    result = job.planned(spark)
    return guarantees.examine(job, result, determinism.find(result), {})


def with_socket(spark: Any) -> Callable[..., Any]:
    lines = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", 9).load()
    return lambda: lines


def test_kafka_to_kafka_is_exactly_once(spark: Any) -> None:
    planned = plan(spark)
    assert (planned.gives, planned.is_weaker) == ("exactly_once", False)
    assert [(link.link, link.name, link.gives) for link in planned.links] == [
        ("source", "kafka in", "exactly_once"),
        ("engine", "Spark micro-batches", "exactly_once"),
        ("sink", "kafka out", "exactly_once"),
    ]
    planned.check()


#: What the sink makes of a source that can't be read again, and of one that can. A write-ahead log that can't ask
#: repeats what it has, whatever its source does.
TABLE = {
    spi.NEITHER: ("at_most_once", "at_least_once"),
    spi.IDEMPOTENT: ("at_most_once", "exactly_once"),
    spi.IDEMPOTENT_UNFENCED: ("at_most_once", "at_least_once"),
    spi.WRITE_AHEAD_LOG: ("none", "at_least_once"),
    spi.WRITE_AHEAD_LOG_ASKED: ("at_most_once", "exactly_once"),
    spi.TWO_PHASE_COMMIT: ("at_most_once", "exactly_once"),
}


@pytest.mark.parametrize("writes", TABLE)
def test_each_pair_of_source_and_sink_gives_what_the_table_says(spark: Any, writes: str) -> None:
    sink = SomeSink(name="s", writes=writes)
    gone = plan(spark, with_socket(spark), source={}, sink=sink, allow_weaker=True)
    again = plan(spark, sink=sink)
    assert (gone.gives, again.gives) == TABLE[writes]
    assert "what a crash interrupts can't be read again" in gone.reason
    assert ("sink s" in gone.reason) == (gone.gives == "none")
    gone.check()  # weaker is allowed
    if again.is_weaker:
        with pytest.raises(RefusedError, match="sink s") as refused:
            again.check()
        assert writes in str(refused.value) and "kafka in" in str(refused.value), "the refusal shows the table"


def test_an_upsert_is_exactly_once_only_if_its_writers_are_fenced_by_the_commits_number(spark: Any) -> None:
    upsert = UpsertSink(name="totals", url="sqlite://", table="totals", key="id")
    without, fenced = plan(spark, sink=upsert), plan(spark, sink=replace(upsert, commit_column="commit"))
    assert (without.gives, fenced.gives) == ("at_least_once", "exactly_once")
    fenced.check()
    with pytest.raises(RefusedError, match=r"sink totals: a task of an older attempt .* name a commit_column"):
        without.check()
    plan(spark, sink=upsert, guarantee="at_least_once").check()


def test_a_source_that_is_lost_beside_a_sink_that_doubles_leaves_no_guarantee(spark: Any) -> None:
    lines = with_socket(spark)()
    both = plan(
        spark,
        lambda events: events.selectExpr("CAST(id AS STRING) AS value").union(lines),
        sink=SomeSink(name="s", writes=spi.NEITHER),
    )
    assert both.gives == "none"
    with pytest.raises(RefusedError, match="source socket: what a crash"):
        both.check()


def test_where_nothing_is_read_again_a_batch_that_would_be_doubled_is_attempted_once(spark: Any) -> None:
    attempts = {
        writes: [
            plan(spark, with_socket(spark), source={}, sink=SomeSink(name="s", writes=writes), allow_weaker=True),
            plan(spark, sink=SomeSink(name="s", writes=writes)),
        ]
        for writes in TABLE
    }
    assert {writes: [guarantee.attempts(3) for guarantee in plans] for writes, plans in attempts.items()} == {
        writes: [1 if writes in (spi.NEITHER, spi.IDEMPOTENT_UNFENCED) else 3, 3] for writes in TABLE
    }
    mine = plan(spark, with_socket(spark), source={}, guarantee="at_least_once", allow_weaker=True)
    assert (mine.gives, mine.attempts(3)) == ("at_most_once", 1), "so is Spark's own Kafka sink"


def test_what_only_sparks_checkpoint_can_read_again_is_at_least_once(spark: Any) -> None:
    rate = spark.readStream.format("rate").load()
    planned = plan(spark, lambda: rate, source={}, allow_weaker=True)
    assert (planned.gives, planned.is_weaker) == ("at_least_once", True)


def test_a_source_that_skips_what_is_gone_may_lose(spark: Any) -> None:
    source = KafkaSource("in", options={"failOnDataLoss": "False"})
    planned = plan(spark, source=source)
    assert (planned.gives, planned.is_weaker) == ("at_most_once", True)
    assert source.spark_options({"bootstrap.servers": "a:1"})["failOnDataLoss"] == "false"


@pytest.mark.parametrize("setting", ["asyncProgressTrackingEnabled", "continuous", "spark.sql.streaming.realTime"])
def test_an_engine_without_batches_is_not_exactly_once(spark: Any, setting: str) -> None:
    planned = plan(spark, source=KafkaSource("in", options={setting: "true"}))
    assert (planned.gives, planned.is_weaker) == ("at_least_once", True)
    assert f"{setting}=true" in planned.reason


def test_rows_by_chance_differ_between_several_sinks_and_double_keys(spark: Any) -> None:
    by_chance = lambda events: events.selectExpr("uuid() AS id", "v")  # noqa: E731
    both = [SomeSink(name="s", writes=spi.TWO_PHASE_COMMIT), KafkaSink("out")]
    assert plan(spark, by_chance).gives == "exactly_once", "one sink takes a batch's rows or does not"
    assert plan(spark, by_chance, sink=both).gives == "at_least_once"
    assert plan(spark, by_chance, sink=SomeSink(name="s", writes=spi.IDEMPOTENT)).gives == "at_least_once"
    assert plan(spark, sink=both).gives == "exactly_once"


def test_what_may_give_other_rows_is_told_with_its_column_even_where_nothing_is_weaker(spark: Any) -> None:
    planned = plan(spark, lambda events: events.selectExpr("uuid() AS id", "v").where("v > rand()"))
    assert planned.gives == "exactly_once"
    warning = planned.warning or ""
    assert "and the pipeline stops then" in warning
    assert "Uuid is not deterministic: uuid(" in warning
    assert ", in column id" in warning
    assert ", in a condition of Filter" in warning
    assert warning in planned.text.replace("\n", " ") and len(planned.document["nondeterministic"]) == 2
    assert plan(spark).warning is None


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_a_pipeline_that_declares_less_has_it(spark: Any, guarantee: str) -> None:
    planned = plan(spark, guarantee=guarantee)
    assert (planned.gives, planned.is_weaker) == (guarantee, False)
    assert plan(spark, checkpoint=CheckpointConfig(mode=CheckpointingMode(guarantee))).declared == guarantee


def test_at_most_once_can_not_be_had_of_a_sink_that_doubles(spark: Any) -> None:
    planned = plan(spark, sink=SomeSink(name="s", writes=spi.NEITHER), guarantee="at_most_once")
    assert (planned.gives, planned.is_weaker) == ("at_least_once", True)


def test_what_is_declared_twice_must_agree() -> None:
    with pytest.raises(RefusedError, match="guarantee='sometimes': one of exactly_once"):
        pipeline(name="p", source=EVENTS, sink=KafkaSink("out"), guarantee="sometimes")
    config = CheckpointConfig(mode=CheckpointingMode.AT_MOST_ONCE)
    with pytest.raises(RefusedError, match="contradict each other"):
        pipeline(name="p", source=EVENTS, sink=KafkaSink("out"), guarantee="exactly_once", checkpoint=config)


@pytest.mark.parametrize("returned", [lambda spark: None, lambda spark: "x", lambda spark: spark.range(5)])
def test_a_function_that_returns_no_stream_is_refused(spark: Any, returned: Callable[[Any], Any]) -> None:
    with pytest.raises(
        RefusedError, match=r"the function of pipeline p returned (None|'x'|a DataFrame that is no stream);"
    ):
        plan(spark, lambda events: returned(spark))


JOB = """
from pyspark.sql import SparkSession
from airflow_provider_exactlyonce.streaming import KafkaSink, pipeline

@pipeline(name="numbers", source={}, sink=KafkaSink("out"), allow_weaker=True)
def numbers():
    return SparkSession.active().readStream.format("rate").load().selectExpr("value AS n", "rand() AS chance")
"""


@pytest.mark.usefixtures("spark")
def test_the_command_explains_a_job(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB)
    body = commands.run("explain", str(job), "--json").body
    assert (body["declared"], body["gives"], body["weaker"]) == ("exactly_once", "at_least_once", True)
    assert [link["name"] for link in body["links"]] == ["rate", "Spark micro-batches", "kafka out"]
    [chance] = body["nondeterministic"]
    assert re.fullmatch(r"Rand is not deterministic: rand\(.*\), in column chance", chance)
