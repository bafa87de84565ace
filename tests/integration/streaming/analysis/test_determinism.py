from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.analysis import determinism
from airflow_provider_exactlyonce.streaming.analysis.logical_plans import check_sources
from airflow_provider_exactlyonce.streaming.spark.session import open_session
from tests.integration.streaming.replay.shapes import deduplicated, joined, stateless, timed, update, windowed


@pytest.fixture(scope="module")
def session(jvm: None) -> SparkSession:
    return open_session("determinism")


def events(spark: SparkSession) -> DataFrame:
    rows = spark.readStream.format("rate").load()
    return rows.selectExpr("value AS id", "string(value) AS k", "value AS t", "double(value) AS f")


def a_look_up(frame: DataFrame) -> DataFrame:
    with tempfile.TemporaryDirectory() as folder:
        frame.sparkSession.range(3).write.parquet(f"{folder}/ids")
        return frame.join(frame.sparkSession.read.parquet(f"{folder}/ids"), "id")


def a_random_function(frame: DataFrame) -> DataFrame:
    return frame.select(F.udf(lambda id: id, "bigint").asNondeterministic()("id"))


def with_first_rows(frame: DataFrame, query: str) -> DataFrame:
    """Return a query of any row of each key, which ``WITH`` names ``firsts``."""
    frame.dropDuplicates(["k"]).createOrReplaceTempView("kept")
    return frame.sparkSession.sql(f"WITH kept_ids AS (SELECT * FROM kept), firsts AS (SELECT * FROM kept_ids) {query}")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda frame: frame.select(F.rand()), "Rand is not deterministic"),
        (lambda frame: frame.select(F.expr("uuid()")), "Uuid is not deterministic"),
        (lambda frame: frame.select(F.monotonically_increasing_id()), "MonotonicallyIncreasingID"),
        (lambda frame: frame.select(F.now()), r"Now reads the machine's clock, use current_timestamp\(\): now\(\)"),
        (lambda frame: frame.selectExpr("current_time()"), "CurrentTime reads the machine's clock"),
        (lambda frame: frame.groupBy("k").agg(F.first("id")), "First depends on the order"),
        (lambda frame: frame.groupBy("k").agg(F.last("id")), "Last depends on the order"),
        (lambda frame: frame.groupBy("k").agg(F.collect_list("id")), "CollectList depends on the order"),
        (lambda frame: frame.groupBy("k").agg(F.max_by("id", "f")), "MaxBy depends on the order"),
        (lambda frame: frame.groupBy("k").agg(F.expr("min_by(id, f, 3)")), "MaxMinByK depends on the order"),
        (lambda frame: frame.groupBy("k").agg(F.expr("approx_top_k(id)")), "ApproxTopK depends on the order"),
        (lambda frame: frame.groupBy("k").agg(F.hll_sketch_agg("id")), "HllSketchAgg depends on the order"),
        (lambda frame: frame.groupBy("k").agg(F.expr("kll_sketch_agg_bigint(id)")), "KllSketchAggBigint depends"),
        (lambda frame: frame.groupBy("k").agg(F.expr("tuple_sketch_agg_double(id, f)")), "TupleSketchAggDouble"),
        (lambda frame: frame.groupBy("k").agg(F.expr("vector_sum(array(float(f)))")), "VectorSum depends on the order"),
        (lambda frame: frame.groupBy("k").agg(F.product("id")), "Product of floats depends on the order"),
        (lambda frame: frame.limit(5), "GlobalLimit keeps the rows that come first"),
        (
            lambda frame: frame.groupBy("k").count().orderBy("count").limit(5),
            "GlobalLimit keeps the rows that come first",
        ),
        (lambda frame: frame.groupBy("k").agg(F.sum("f")), "Sum of floats depends on the order"),
        (lambda frame: frame.groupBy("k").agg(F.avg(F.col("f") * 2)), "Average of floats depends on the order"),
        (lambda frame: frame.groupBy("k").agg(F.stddev("id")), "depends on the order"),
        (lambda frame: frame.dropDuplicates(["k"]), "Deduplicate keeps any row of a key.*: id, t, f"),
        (lambda frame: frame.dropDuplicates(["k"]).groupBy("k").agg(F.sum("id")), "Deduplicate.*: id"),
        (lambda frame: frame.union(frame.dropDuplicates(["k"])).select("id"), "Deduplicate.*: id"),
        (lambda frame: with_first_rows(frame, "SELECT id FROM firsts"), "Deduplicate.*: id$"),
        (lambda frame: with_first_rows(frame, "SELECT id + 1 AS n FROM firsts"), "Deduplicate.*: id$"),
        (lambda frame: with_first_rows(frame, "SELECT k, sum(t) FROM firsts GROUP BY k"), "Deduplicate.*: t$"),
        (lambda frame: with_first_rows(frame, "SELECT k FROM firsts WHERE t > 1"), "Deduplicate.*: t$"),
        (
            lambda frame: with_first_rows(frame, "SELECT k FROM firsts UNION ALL SELECT string(id) FROM firsts"),
            "Deduplicate.*: id$",
        ),
        (a_random_function, "PythonUDF is not deterministic"),
        (a_look_up, "reads outside of the stream"),
    ],
)
def test_what_may_give_other_rows_is_found_and_named(
    session: SparkSession, function: Callable[[DataFrame], DataFrame], reason: str
) -> None:
    reasons = determinism.find(function(events(session)))
    assert any(re.search(reason, text) for text in reasons), reasons


def test_a_stream_that_is_not_declared_is_refused_by_name(session: SparkSession, tmp_path: Path) -> None:
    files = session.readStream.format("text").load(str(tmp_path))
    with pytest.raises(RefusedError, match=r"source 'filesource.*' that its declaration does not name"):
        check_sources(files.select("value"))


def test_ordinary_queries_are_taken_as_deterministic(session: SparkSession) -> None:
    frame = events(session)
    results = [function(frame) for function in (stateless, windowed, update, deduplicated, timed)]
    exact = frame.groupBy("k").agg(F.sum(F.col("id").cast("decimal(12,2)")), F.avg("id"), F.max("f"), F.count("*"))
    look_up = frame.join(session.createDataFrame([(1, "a")], "id BIGINT, name STRING"), "id")
    sketches = frame.groupBy("k").agg(F.theta_sketch_agg("id"), F.approx_count_distinct("id"), F.percentile("f", 0.5))
    first = frame.join(frame.sparkSession.range(9).limit(3), "id")
    once = [
        frame.dropDuplicates(),
        frame.dropDuplicates(["k"]).select("k"),
        frame.dropDuplicates(["k", "t"]).groupBy("k").agg(F.max("t")),
        frame.select("k").union(frame.select("id", "k").dropDuplicates(["k"]).select("k")),
        with_first_rows(frame, "SELECT upper(k) AS n FROM firsts"),
    ]
    at_recorded_time = frame.selectExpr("current_timestamp()", "current_date()", "localtimestamp()", "unix_timestamp()")
    once += [frame.groupBy("k").count().where("count > 1").orderBy(F.desc("count"), "k").limit(10)]
    for result in [*results, *once, joined(frame, events(session)), exact, sketches, look_up, first, at_recorded_time]:
        assert determinism.find(result) == []
