"""The contract of the plan's description, and of asking Spark for the state of a plan: real Spark, no data."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.checkpoint.compatibility import compare
from airflow_provider_exactlyonce.checkpoint.plan import QueryPlan, WatermarkPlan
from airflow_provider_exactlyonce.checkpoint.versions import Verdict, Version
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, TopicPattern, pipeline
from airflow_provider_exactlyonce.streaming.analysis.plan_description import describe
from airflow_provider_exactlyonce.streaming.analysis.planned_state import PlanRefusedError, stateful_operators
from airflow_provider_exactlyonce.streaming.job import compatibility_check, loader
from airflow_provider_exactlyonce.streaming.job.compatibility_check import check_compatibility
from tests.integration.compatibility.harness import Bench
from tests.integration.compatibility.versions import JOINED, SUM, BrokenCounter, processor, session, timed, window
from tests.integration.compatibility.versions import Counter as CountingProcessor
from tests.integration.streaming.replay.shapes import SHAPES, declare

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}
SOURCE = KafkaSource("in", schema="id BIGINT, k STRING, j STRING, t BIGINT, u BIGINT, a BIGINT, b BIGINT")
TIME = "timestamp_seconds(in.t)"


def with_sql(events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    return events.sparkSession.sql(
        "WITH priced AS (SELECT k, a * 2 AS doubled FROM events WHERE a > 3), again AS (SELECT * FROM priced) "
        "SELECT k, avg(doubled) AS m, count(*) AS unused FROM again GROUP BY k"
    ).select("k", "m")


def with_unused_columns(events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    return events.sparkSession.sql(
        "WITH priced AS (SELECT k, j, a * 2 AS doubled, b FROM events), grouped AS "
        "(SELECT j, max(doubled) AS m, count(*) AS unused FROM priced GROUP BY j) SELECT j, m FROM grouped"
    )


def through_python(events: DataFrame) -> DataFrame:
    def doubled(frames: Any) -> Any:
        yield from frames

    return events.mapInPandas(doubled, "q STRING, w BIGINT").groupBy("q").agg(F.sum("w"))


def facts(plan: QueryPlan, number: int = 0) -> Mapping[str, tuple[str, ...]]:
    return plan.operators[number].facts


@pytest.mark.parametrize(
    ("function", "keys", "functions"),
    [
        (lambda e: e.groupBy("k").agg(F.mean("a"), F.count("*")), ["in.k"], ["avg(in.a)", "count(1)"]),
        (lambda e: e.groupBy("k").agg((F.sum("a") + F.sum("b")).alias("x")), ["in.k"], ["sum(in.a)", "sum(in.b)"]),
        (lambda e: e.groupBy("k").agg(F.sum("a"), F.max("b")).select("k"), ["in.k"], []),
        (lambda e: e.withColumn("x", F.col("a") + 1).groupBy("x").agg(F.min("x")), ["(1 + in.a)"], ["min((1 + in.a))"]),
        (lambda e: e.groupBy(F.expr("a = b")).count(), ["(in.a = in.b)"], ["count(1)"]),
        (lambda e: e.groupBy(F.expr("b = a")).count(), ["(in.a = in.b)"], ["count(1)"]),
        (lambda e: e.groupBy().agg(F.expr("sum(a) FILTER (WHERE b > 2)")), [], ["sum(in.a) where (in.b > 2)"]),
        (lambda e: e.groupBy("k").agg(F.first("a", ignorenulls=True)), ["in.k"], ["first(in.a, true)"]),
        (
            lambda e: e.groupBy(F.transform(F.array("a"), lambda x: x + 1)).count(),
            ["arraytransform(array(in.a), lambdafunction((1 + v0), v0))"],
            ["count(1)"],
        ),
        (lambda e: e.groupBy(F.current_date()).count(), ["currentdate()"], ["count(1)"]),
        (lambda e: e.groupBy((F.rand() * 3).cast("int")).count(), ["cast((3 * rand()) as int)"], ["count(1)"]),
        (lambda e: e.union(e).groupBy("k").count(), ["in.k"], ["count(1)"]),
        (lambda e: e.select("k").union(e.select("j")).groupBy("k").count(), ["union(in.k, in.j)"], ["count(1)"]),
        (with_sql, ["in.k"], ["avg((2 * in.a))"]),
        (with_unused_columns, ["in.j"], ["max((2 * in.a))"]),
        (
            lambda e: e.select(F.expr("array(struct(a AS price))").alias("items")).groupBy("items.price").count(),
            ["array(struct(price: in.a)).price"],
            ["count(1)"],
        ),
        (
            through_python,
            ["`doubled`(in.id, in.k, in.j, in.t, in.u, in.a, in.b).q"],
            ["sum(`doubled`(in.id, in.k, in.j, in.t, in.u, in.a, in.b).w)"],
        ),
        (window("10 minutes"), [f"window({TIME}, 10 minutes)", "in.k"], ["sum(in.a)"]),
        (window("1 hour", "30 seconds"), [f"window({TIME}, 1 hour, every 30 seconds)", "in.k"], ["sum(in.a)"]),
        (
            lambda e: e.select(F.explode(F.split("k", " ")).alias("word")).groupBy("word").count(),
            ["explode(stringsplit(in.k, ' ', -1)).word"],
            ["count(1)"],
        ),
        (
            lambda e: e.join(e.sparkSession.range(9).toDF("rank"), F.expr("a = rank")).groupBy("rank").count(),
            ["range.id"],
            ["count(1)"],
        ),
        (
            lambda e: e.groupBy(
                F.from_json("k", "x DATE", {"mode": "FAILFAST", "dateFormat": "d(M)"}).alias("v")
            ).count(),
            ["jsontostructs(in.k, struct<x:date>, options(dateformat=d%28M%29, mode=FAILFAST))"],
            ["count(1)"],
        ),
        (
            lambda e: e.groupBy(F.from_csv("k", "x INT", {letter: letter for letter in "edcba"}).alias("v")).count(),
            ["csvtostructs(in.k, struct<x:int>, options(a=a, b=b, c=c, d=d, e=e))"],
            ["count(1)"],
        ),
        (lambda e: e.groupBy(F.to_json(F.struct("k"))).count(), ["structstojson(struct(k: in.k))"], ["count(1)"]),
        (session, [f"session_window({TIME}, 10 seconds)", "in.k"], ["sum(in.a)"]),
    ],
)
def test_an_aggregation_is_described_by_what_its_keys_and_functions_are_made_of(
    spark: Any, function: Callable[[DataFrame], DataFrame], keys: list[str], functions: list[str]
) -> None:
    plan, again = (describe(function(SOURCE.stand_in(spark)), {}) for _ in range(2))
    assert list(facts(plan)["group by"]) == keys
    assert list(facts(plan)["functions"]) == functions
    assert plan == again, "another analysis gives the same description"


def test_operators_are_in_the_order_that_spark_gives_them_and_a_join_tells_what_it_keeps(spark: Any) -> None:
    ours, theirs = SOURCE.stand_in(spark), KafkaSource("other", schema=SOURCE.schema).stand_in(spark)
    joined = JOINED.function(ours.dropDuplicates(["id"]), theirs)
    plan = describe(joined, {})
    assert [operator.kind for operator in plan.operators] == ["stream-stream join", "dropDuplicates"]
    planned = stateful_operators(joined, "append", {})
    assert [operator.name for operator in planned] == ["symmetricHashJoin", "dedupe"]
    other = "timestamp_seconds(other.t)"
    assert facts(plan) == {
        "type": ("INNER",),
        "on": ("(in.k = other.k)",),
        "where": (
            f"{other} between cast(({TIME} - 5 seconds) as timestamp) and cast(({TIME} + 5 seconds) as timestamp)",
        ),
        "left columns": ("in.k", "in.j", "in.a", TIME),
        "right columns": ("other.k", "other.j", "other.b", other),
    }
    assert facts(plan, 1) == {"columns": ("in.id",)}
    assert [source.topic for source in plan.sources] == ["in", "other"]
    assert plan.watermarks == (
        WatermarkPlan(column=TIME, delay_milliseconds=10_000),
        WatermarkPlan(column=other, delay_milliseconds=10_000),
    )
    stored = planned[0].schemas["left-keyWithIndexToValue"][1]
    assert [name for name in ('"k"', '"j"', '"a"', '"lat"') if name in stored] == ['"k"', '"j"', '"a"', '"lat"']


def counted(key: Any, frames: Any, state: Any) -> Any:
    yield from frames


def test_a_function_with_state_is_described_by_its_keys_and_its_name(spark: Any) -> None:
    grouped = timed(SOURCE.stand_in(spark)).groupBy("k")
    result = grouped.applyInPandasWithState(counted, "k STRING, n BIGINT", "n BIGINT", "append", "NoTimeout")
    plan = describe(result, {})
    assert [operator.kind for operator in plan.operators] == ["applyInPandasWithState"]
    assert facts(plan) == {
        "group by": ("in.k",),
        "function": ("counted",),
        "output mode": ("append",),
        "timeout": ("NoTimeout",),
    }
    assert plan.user_functions == ("counted",)
    assert [operator.stores for operator in stateful_operators(result, "append", {})] == [("default",)]


def test_user_functions_that_state_depends_on_are_named_and_others_are_not(spark: Any) -> None:
    def shout(text):  # type: ignore[no-untyped-def]  # type hints would be taken for pandas'
        return text.upper()

    shouted = F.udf(shout, "string")
    keyed = SOURCE.stand_in(spark).withColumn("x", shouted("k")).groupBy("x").count()
    assert describe(keyed, {}).user_functions == ("shout",)
    filtered = SOURCE.stand_in(spark).where(shouted("k") == "X").groupBy("k").count()
    assert describe(filtered, {}).user_functions == ("shout",)
    after = SOURCE.stand_in(spark).groupBy("k").count().select(shouted("k"))
    assert describe(after, {}).user_functions == ()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_plan_for_planning_only_is_described_as_the_one_that_runs(spark: Any, shape: str) -> None:
    topics = {source: f"topic-{source or 'in'}" for source in SHAPES[shape].sources}
    job = declare(SHAPES[shape], "p", topics, "out")
    live, planned = (job.describe(spark, frame) for frame in (job.result(spark, NOBODY), job.planned(spark)))
    assert live == planned
    assert live.plan is not None


def test_the_columns_of_a_source_without_a_schema_are_those_of_spark(spark: Any) -> None:
    source = KafkaSource("in", options={"includeHeaders": "true"})
    assert source.stand_in(spark).schema == source.read(spark, NOBODY).schema


def test_state_is_planned_without_running_and_settings_are_put_back(spark: Any) -> None:
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    operators = stateful_operators(processor(CountingProcessor)(SOURCE.stand_in(spark)), "update", {name: "7"})
    assert [(operator.name, operator.partitions) for operator in operators] == [("transformWithStateInPySparkExec", 7)]
    assert [variable["stateName"] for variable in operators[0].properties["stateVariables"]] == ["count"]
    assert spark.conf.get(name) == before


def test_a_plan_that_spark_does_not_run_is_refused_in_sparks_words(spark: Any) -> None:
    with pytest.raises(PlanRefusedError, match="without watermark"):
        stateful_operators(SUM.function(SOURCE.stand_in(spark)), "append", {})
    with pytest.raises(PlanRefusedError, match="TransformWithStateInPySpark driver worker exited"):
        stateful_operators(processor(BrokenCounter)(SOURCE.stand_in(spark)), "update", {})


@pytest.mark.slow
def test_a_worker_that_does_not_start_in_time_is_asked_again_and_is_no_refusal(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent, program = tmp_path / "absent", tmp_path / "python"
    program.write_text(
        f'#!/bin/sh\nif rm {absent}-once || [ -e {absent} ]; then exit 1; fi\nexec {sys.executable} "$@"\n'
    )
    program.chmod(0o700)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(program))
    frame = processor(CountingProcessor)(SOURCE.stand_in(spark))
    tmp_path.joinpath("absent-once").touch()
    [operator] = stateful_operators(frame, "update", {})
    assert operator.name == "transformWithStateInPySparkExec"
    absent.touch()
    with pytest.raises(ExactlyOnceError, match="whether Spark runs this job is not known") as raised:
        stateful_operators(frame, "update", {})
    assert not isinstance(raised.value, PlanRefusedError)


def test_a_job_whose_function_fails_is_refused_with_its_line(spark: Any, tmp_path: Path) -> None:
    bench = Bench(spark, tmp_path / "bench")
    saved = bench.save(SUM)
    file = tmp_path / "job.py"
    text = inspect.cleandoc(
        """
        from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline

        @pipeline(name="p", source=KafkaSource("events", schema="k STRING"), sink=KafkaSink("out"))
        def job(events):
            named = events.select("k")
            return named.select("nothing")
        """
    )
    file.write_text(text)
    checkpoint = bench.savepoints.checkpoint(saved.savepoint.id).path
    with pytest.raises(
        RefusedError, match=rf"{file}:6: the function of pipeline p fails: AnalysisException: .*nothing"
    ):
        check_compatibility(loader.load(str(file)), saved.savepoint, checkpoint, spark)


def test_a_job_that_can_not_be_described_is_refused_as_not_known(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(spark, tmp_path / "bench")
    saved = bench.save(SUM)

    def unable(*_: object) -> None:
        raise ValueError("no text\nfrom Java")

    monkeypatch.setattr(compatibility_check, "describe", unable)
    said = r"versions.py:\d+\) can't be described, so it is not known .*: ValueError: no text\. Write"
    with pytest.raises(RefusedError, match=said):
        bench.check(saved, SUM)


def test_what_readers_of_the_sink_can_tell_is_described(spark: Any) -> None:
    sink = KafkaSink("out", key="k", topic_column="where", bad_records="topic")
    job = pipeline(name="p", source=SOURCE, sink=sink)(lambda events: events)
    plan = job.describe(spark, job.planned(spark)).plan
    assert plan is not None
    assert plan.sink == {"kind": ("kafka",), "topics": ("out", "out.bad"), "key": ("k",), "topic_column": ("where",)}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("in.put", ["in.put", "more"]),
        ("in.put", TopicPattern(r"in\..*")),
        (TopicPattern(r"in\..*"), TopicPattern("in.*")),
    ],
)
def test_state_means_the_same_when_a_source_reads_more_topics(
    spark: Any, old: str | TopicPattern, new: list[str] | TopicPattern
) -> None:
    def version(topics: str | list[str] | TopicPattern) -> Version:
        source = KafkaSource(topics, schema="k STRING NOT NULL, n BIGINT, at TIMESTAMP")

        @pipeline(name="p", source=source, sink=KafkaSink("out"), output_mode="update")
        def job(rows: DataFrame) -> DataFrame:
            late = rows.withWatermark("at", "1 minute").where("n > 0")
            return late.groupBy("k", F.window("at", "1 hour")).agg(F.sum("n").alias("n"))

        plan = job.describe(spark, job.planned(spark)).plan
        assert plan is not None
        return Version(
            pipeline="p",
            spark_version=spark.version,
            job_hash="h",
            output_mode="update",
            topics=tuple(source.topic for source in plan.sources),
            plan=plan,
            operators=None,
            read=("in.put",),
        )

    report = compare(version(old), version(new))
    assert [(finding.aspect, finding.verdict) for finding in report.findings] == [("sources", Verdict.NOTE)]
