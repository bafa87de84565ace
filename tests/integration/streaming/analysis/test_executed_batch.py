"""What is read of Spark's executed plans before a commit: it is what Spark itself reports after the batch, or more."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.state import KeyedProcessFunction
from airflow_provider_exactlyonce.streaming.analysis.executed_batch import BatchCounts, ExecutedBatch
from airflow_provider_exactlyonce.streaming.keyed.keyed_stream import key_by

pytestmark = pytest.mark.timeout(240)

#: Minutes of the rows' times, by batch; from batch 2 on what is before 00:28 is late.
BATCHES = ([1, 2, 30], [31], [1, 1, 1, 1, 1, 1, 2, 2, 2, 27, 32], [3, 3, 59])
LATE = [0, 0, 10, 2, 0]
MINUTE = 60_000


def passing() -> Any:
    """Return a function that gives out what it sees; a class of a test's module can't be found by Spark's workers."""

    class Passes(KeyedProcessFunction[Any, Any]):
        output = "k STRING, ts TIMESTAMP"
        event_time = "ts"

        def process_element(self, value: Any, context: Any) -> Iterator[Any]:
            yield (value.k, value.ts)

    return Passes()


class Looks:
    """Runs each batch, several times if asked, and keeps what was counted and what Spark reports."""

    def __init__(self, spark: SparkSession, folder: Path, attempts: int = 1) -> None:
        self.spark = spark
        self.folder = folder
        self.attempts = attempts
        self.collects = True
        self.counts: list[BatchCounts] = []
        self.rows: list[list[Any]] = []

    def rows_of(self, name: str) -> DataFrame:
        """Return a stream with a file a batch."""
        folder = self.folder / name
        folder.mkdir()
        for number, minutes in enumerate(BATCHES):
            file = folder / f"{number}.json"
            file.write_text(
                "".join(
                    json.dumps({"k": "ab"[place % 2], "n": place, "ts": f"2024-01-01T00:{minute:02d}:00Z"}) + "\n"
                    for place, minute in enumerate(minutes)
                )
            )
            os.utime(file, (1_700_000_000 + number,) * 2)
        schema = "k STRING, n INT, ts TIMESTAMP"
        files = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder))
        return files.withWatermark("ts", "2 minutes")

    def run(self, frame: DataFrame, mode: str = "append") -> list[dict[str, int]]:
        """Run a query to its end; returns what Spark reports of each batch."""
        checkpoint = self.folder / "checkpoint"

        def process(batch: DataFrame, number: int) -> None:
            query = json.loads((checkpoint / "metadata").read_text())["id"]
            for _ in range(self.attempts):
                executed = ExecutedBatch(self.spark, query)
                batch.collect()
                counts = executed.counts()
            self.counts.append(counts)
            if self.collects:
                self.rows.append([row for late in counts.late for row in executed.late_rows(late).collect()])

        writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))
        query = writer.foreachBatch(process).trigger(availableNow=True).start()
        query.awaitTermination()
        return [
            {
                operator["operatorName"]: operator["numRowsDroppedByWatermark"]
                for operator in json.loads(progress.json)["stateOperators"]
            }
            for progress in query.recentProgress
        ]

    @property
    def late(self) -> list[int]:
        return [counts.late_rows for counts in self.counts]


@pytest.fixture
def looks(spark: Any, tmp_path: Path) -> Looks:
    return Looks(spark, tmp_path)


def test_an_aggregations_late_rows_are_rows_and_not_the_groups_that_spark_counts(looks: Looks) -> None:
    stream = looks.rows_of("a").groupBy(F.window("ts", "1 minute"), "k").count()
    reported = looks.run(stream, "update")
    assert looks.late == LATE
    assert [of["stateStoreSave"] for of in reported] == [0, 0, 5, 2, 0]
    (late,) = looks.counts[2].late
    assert (late.operator, late.name) == (0, "stateStoreSave")
    assert late.watermark == 1_704_067_200_000 + 28 * MINUTE
    assert sorted(row["window"]["start"].minute for row in looks.rows[2]) == [1] * 6 + [2] * 3 + [27]


def test_a_query_without_a_watermark_has_no_late_rows_and_an_unknown_query_is_refused(looks: Looks) -> None:
    looks.run(looks.rows_of("a").withMetadata("ts", {}).groupBy("k").count(), "update")
    assert set(looks.late) == {0}
    with pytest.raises(ExactlyOnceError, match="no query 00000000"):
        ExecutedBatch(looks.spark, "00000000-0000-0000-0000-000000000000")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operator", "made"),
    [
        ("dedupe", lambda rows: rows.dropDuplicates(["n", "ts"])),
        ("dedupeWithinWatermark", lambda rows: rows.dropDuplicatesWithinWatermark(["n"])),
        ("transformWithStateInPySparkExec", lambda rows: key_by(rows, "k").process(passing())),
        ("sessionWindowStateStoreSaveExec", lambda rows: rows.groupBy(F.session_window("ts", "1 second"), "n").count()),
    ],
)
def test_an_operators_late_rows_are_what_spark_reports(
    looks: Looks, operator: str, made: Callable[[DataFrame], DataFrame]
) -> None:
    reported = looks.run(made(looks.rows_of("a")))
    assert looks.late == [of[operator] for of in reported] == LATE
    assert [late.name for counts in looks.counts for late in counts.late] == [operator] * 2
    assert len(looks.rows[2]) == LATE[2]


@pytest.mark.slow
def test_a_joins_late_rows_are_those_of_both_sides(looks: Looks) -> None:
    left, right = looks.rows_of("a").alias("l"), looks.rows_of("b").alias("r")
    stream = left.join(right, F.expr("l.n = r.n AND l.ts = r.ts")).selectExpr("l.k AS k")
    looks.collects = False
    reported = looks.run(stream)
    assert looks.late == [of["symmetricHashJoin"] for of in reported] == [2 * rows for rows in LATE]


@pytest.mark.slow
def test_each_operator_of_several_has_its_own_count_and_none_of_them_runs_again(looks: Looks) -> None:
    stream = looks.rows_of("a").dropDuplicates(["n", "ts"]).groupBy(F.window("ts", "1 minute")).count()
    looks.run(stream)
    assert looks.late == LATE
    assert {(late.operator, late.name) for counts in looks.counts for late in counts.late} == {(1, "dedupe")}


@pytest.mark.slow
def test_only_the_last_attempt_of_a_batch_counts(spark: Any, tmp_path: Path) -> None:
    looks = Looks(spark, tmp_path, attempts=3)
    reported = looks.run(looks.rows_of("a").groupBy(F.window("ts", "1 minute"), "k").count(), "update")
    assert looks.late == LATE
    assert [of["stateStoreSave"] for of in reported] == [0, 0, 15, 6, 0], "Spark's own adds the attempts up"


@pytest.mark.slow
def test_a_row_in_windows_that_overlap_counts_for_each_that_is_over(looks: Looks) -> None:
    looks.run(looks.rows_of("a").groupBy(F.window("ts", "2 minutes", "1 minute")).count(), "update")
    assert looks.late[2] == 2 * LATE[2] - 1, "the row of 00:27 is in time for one of its windows, that to 00:29"
