"""The loop that runs queries, with a Spark of which each query's course is written down."""
# ruff: noqa: N802, N815  # Spark's names

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import BatchFailedError, ExactlyOnceError, FencedError, StopRequestedError
from airflow_provider_exactlyonce.streaming.spark import query_runner
from airflow_provider_exactlyonce.streaming.spark.query_runner import QueryCallbacks, QueryOptions, QueryRunner
from airflow_provider_exactlyonce.streaming.spark.steering import OneStartPerBatchError

Course = Callable[["Query"], bool]


@dataclass
class Query:
    """Asks its course what happens in each second: true when it has ended."""

    course: Course
    isActive: bool = True
    status: dict[str, bool] = field(default_factory=lambda: {"isTriggerActive": False})

    def awaitTermination(self, seconds: int) -> bool:
        self.isActive = not self.course(self)
        return not self.isActive

    def stop(self) -> None:
        self.isActive = False


@dataclass
class Stream:
    """A stream and its writer at once; keeps the triggers of the queries that were started."""

    courses: list[Course]
    started: list[dict[str, Any]] = field(default_factory=list)

    sparkSession = None

    @property
    def writeStream(self) -> Stream:
        return self

    def queryName(self, *_: object) -> Stream:
        return self

    outputMode = option = queryName

    def foreachBatch(self, process: Callable[[Any, int], None]) -> Stream:
        self.process = process
        return self

    def fails(self, query: Query) -> bool:
        """Fail in a batch, of which Spark passes on the text only."""
        try:
            self.process(None, 0)
        except ExactlyOnceError as error:
            text = str(error)
        raise RuntimeError(text)

    def trigger(self, **trigger: Any) -> Stream:
        self.started.append(trigger)
        return self

    def start(self) -> Query:
        return Query(self.courses.pop(0))


class Recorded:
    """So many batches, of which each start of a query runs one, or all when it can be steered."""

    def __init__(self, count: int, *, goes_live: bool) -> None:
        self.count, self.goes_live = count, goes_live
        self.steering: Any = self
        self.reasons: list[str | None] = []

    @property
    def pending(self) -> bool:
        return self.count > 0

    def prepare(self, *, one_start_per_batch: str | None) -> bool:
        self.reasons.append(one_start_per_batch)
        return self.pending

    def attach(self, query: Query) -> None:
        """Nothing is steered."""

    def check_progress(self) -> None:
        """Each start makes progress."""

    def all_run(self, query: Query) -> bool:
        self.count = 0
        return True

    def one_runs(self, query: Query) -> bool:
        self.count -= 1
        return True


@pytest.fixture(autouse=True)
def missing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Spark lacks; each query is gone as soon as it has ended."""
    parts: list[str] = []
    monkeypatch.setattr(query_runner, "missing_part", lambda spark: parts[0] if parts else None)
    monkeypatch.setattr(query_runner, "wait_until_gone", lambda spark, query: None)
    return parts


def raising(error: ExactlyOnceError) -> Callable[[Any, int], None]:
    def process(frame: Any, number: int) -> None:
        raise error

    return process


def runner(
    stream: Stream, process: Callable[[Any, int], None] = lambda frame, number: None, **callbacks: Any
) -> QueryRunner:
    options = QueryOptions(name="q", output_mode="append", checkpoint=Path("c"), trigger={"availableNow": True})
    return QueryRunner(stream, process, options, QueryCallbacks(**callbacks))  # type: ignore[arg-type]


@pytest.mark.parametrize(("goes_live", "is_left"), [(True, False), (False, True)])
def test_a_query_that_is_steered_runs_all_that_is_recorded(goes_live: bool, is_left: bool) -> None:
    recorded = Recorded(3, goes_live=goes_live)
    stream = Stream([recorded.all_run])
    assert runner(stream).run_recorded(recorded) is is_left
    assert stream.started == [{"availableNow": True}]


def test_where_spark_lacks_something_each_batch_gets_a_start_and_live_is_left_to_another_query(
    missing: list[str],
) -> None:
    missing.append("a field")
    recorded = Recorded(2, goes_live=True)
    stream = Stream([recorded.one_runs] * 2)
    assert runner(stream).run_recorded(recorded)
    assert stream.started == [{"once": True}] * 2
    assert recorded.reasons == ["a field"] * 3


def test_a_query_that_turns_out_not_to_be_steerable_is_started_once_per_batch() -> None:
    recorded, stream = Recorded(2, goes_live=True), Stream([])
    stream.courses += [stream.fails, recorded.one_runs, recorded.one_runs]
    assert runner(stream, raising(OneStartPerBatchError("another source"))).run_recorded(recorded)
    assert stream.started == [{"availableNow": True}, {"once": True}, {"once": True}]
    assert recorded.reasons == [None, "another source", "another source", "another source"]


def test_a_query_that_needs_it_is_started_again() -> None:
    recorded = Recorded(1, goes_live=False)
    stream = Stream([lambda query: False, recorded.all_run])
    assert runner(stream, needs_restart=lambda: True).run_recorded(recorded)
    assert len(stream.started) == 2


def test_a_stop_waits_for_the_end_of_the_batch() -> None:
    seconds = []

    def busy_at_first(query: Query) -> bool:
        seconds.append(1)
        query.status["isTriggerActive"] = len(seconds) < 3
        return False

    with pytest.raises(StopRequestedError, match="enough"):
        runner(Stream([busy_at_first]), stop_reason=lambda: "enough").run_live()
    assert len(seconds) == 3


def test_what_ended_the_query_is_the_error_that_its_callback_has_kept() -> None:
    stream, error = Stream([]), BatchFailedError("three times")
    stream.courses.append(stream.fails)
    with pytest.raises(BatchFailedError) as raised:
        runner(stream, raising(error)).run_live()
    assert raised.value is error


def test_what_spark_says_may_mean_something_else() -> None:
    def superseded(error: Exception) -> None:
        raise FencedError(f"superseded: {error}")

    def fails(query: Query) -> bool:
        raise RuntimeError("CONCURRENT_STREAM_LOG_UPDATE")

    with pytest.raises(FencedError, match="superseded: CONCURRENT"):
        runner(Stream([fails]), failed=superseded).run_live()


def test_a_query_in_the_middle_of_a_batch_is_stopped_and_told_so_whatever_ends_the_wait() -> None:
    stops, queries = [], []

    def watched(query: Any) -> None:
        queries.append(query)
        raise FencedError("the lease is lost")

    with pytest.raises(FencedError):
        runner(Stream([lambda query: False]), watch=watched, stopping=lambda: stops.append(1)).run_live()
    assert stops == [1]
    assert not queries[0].isActive
