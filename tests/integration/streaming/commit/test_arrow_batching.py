"""How many rows Spark hands to a Python worker at a time: counted, once a query has shown how large they are."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_exactlyonce.streaming.analysis import logical_plans
from airflow_provider_exactlyonce.streaming.commit.arrow_batching import (
    ARROW_ROWS,
    UNLIMITED_BYTES,
    BatchSizer,
    BatchStats,
)
from airflow_provider_exactlyonce.streaming.settings import ARROW_BYTES, DEFAULTS

BY_BYTES = (DEFAULTS[ARROW_BYTES], "10000")


def limits(session: Any) -> tuple[str, str]:
    return session.conf.get(ARROW_BYTES), session.conf.get(ARROW_ROWS)


def after(session: Any, arrow_rows: BatchSizer, *tasks: BatchStats) -> tuple[str, str]:
    """Let a job with these tasks go by; return the limits of the next one."""
    arrow_rows.apply(session)
    arrow_rows.observe(tasks)
    arrow_rows.apply(session)
    return limits(session)


@pytest.fixture
def session(spark: Any) -> Any:
    return spark.newSession()


@pytest.fixture
def arrow_rows(session: Any) -> BatchSizer:
    made = BatchSizer()
    made.plan(session, runs_python=False)
    return made


@pytest.mark.parametrize(
    ("row_bytes", "rows"), [(20, "10000"), (132, "8192"), (1_024, "2048"), (10_000, "128"), (3_000_000, "1")]
)
def test_rows_are_counted_so_that_an_arrow_batch_has_one_or_two_megabytes(
    session: Any, arrow_rows: BatchSizer, row_bytes: int, rows: str
) -> None:
    count = 200_000_000 // row_bytes
    tasks = [BatchStats(count, count * row_bytes, 4_000_000)] * 3
    assert after(session, arrow_rows, *tasks) == (UNLIMITED_BYTES, rows)


def test_a_job_of_few_bytes_changes_nothing(session: Any, arrow_rows: BatchSizer) -> None:
    assert after(session, arrow_rows, BatchStats(10, 1_000, 1_000), BatchStats()) == BY_BYTES
    assert after(session, arrow_rows) == BY_BYTES


def test_after_a_failed_job_or_an_arrow_batch_far_too_large_bytes_are_limited_for_good(spark: Any) -> None:
    usual = BatchStats(100_000, 10_000_000, 2_000_000)
    for failed in (True, False):
        session, arrow_rows = spark.newSession(), BatchSizer()
        arrow_rows.plan(session, runs_python=False)
        assert after(session, arrow_rows, usual)[0] == UNLIMITED_BYTES
        if failed:
            arrow_rows.reset()
        else:
            arrow_rows.observe([usual, BatchStats(8_192, 100_000_000, 65 << 20)])
        assert after(session, arrow_rows, usual) == BY_BYTES


def test_a_limit_that_the_user_has_set_stays(session: Any) -> None:
    session.conf.set(ARROW_BYTES, "16m")
    arrow_rows = BatchSizer()
    arrow_rows.plan(session, runs_python=False)
    assert after(session, arrow_rows, BatchStats(100_000, 10_000_000, 2_000_000)) == ("16m", "10000")


def test_a_query_with_python_functions_keeps_the_limit_in_bytes(session: Any) -> None:
    arrow_rows = BatchSizer()
    arrow_rows.plan(session, runs_python=True)
    assert after(session, arrow_rows, BatchStats(100_000, 10_000_000, 2_000_000)) == BY_BYTES


def test_python_functions_are_seen_wherever_they_are_in_a_query(session: Any) -> None:
    from pandas import Series
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import pandas_udf

    numbers = session.range(3)
    plain = numbers.groupBy((F.col("id") % 2).alias("key")).count().where("count > 0")
    assert not logical_plans.runs_python(plain)
    double = F.udf(lambda number: 2 * number, "long")
    same = pandas_udf(lambda number: number, "long")  # type: ignore[call-overload]

    def average(numbers: Any) -> Any:
        return numbers.mean()

    average.__annotations__ = {"numbers": Series, "return": float}  # what makes it an aggregation
    mean = pandas_udf(average, "double")  # type: ignore[call-overload]

    class Twice:
        def eval(self, number: int) -> Any:
            yield from ((number,), (number,))

    twice: Any = F.udtf(Twice, returnType="number long")

    def passing(batches: Any) -> Any:
        yield from batches

    def group(frame: Any) -> Any:
        return frame

    for frame in (
        numbers.where(double("id") > 1).groupBy().count(),
        numbers.select(F.abs(same("id") + 1).alias("id")).where("id > 0"),
        numbers.mapInArrow(passing, "id long").select("id"),
        numbers.mapInPandas(passing, "id long"),
        numbers.groupBy("id").applyInPandas(group, "id long"),
        plain.join(numbers.mapInArrow(passing, "id long"), F.col("key") == F.col("id")),
        numbers.select(F.transform(F.array(double("id")), lambda number: number + 1)),
        numbers.groupBy().agg(mean("id")),
        numbers.crossJoin(twice(F.lit(1))),
    ):
        assert logical_plans.runs_python(frame), frame._jdf.queryExecution().toString()
