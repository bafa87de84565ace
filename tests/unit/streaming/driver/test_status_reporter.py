"""What a driver tells of its lag and of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.status import TableStatus
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.streaming.driver.status_reporter import DriverReport


def test_a_lag_that_nobody_can_measure_any_more_is_unknown_and_no_progress(tmp_path: Path) -> None:
    report = DriverReport(Home(tmp_path), "t", "p")

    def told(offsets: Mapping[TopicPartition, int] | None) -> tuple[int | None, float]:
        report.available(offsets)
        return report.status.lag, report.status.progressed

    assert told({}) == told({("in", 0): 30}) == (None, 0), "the last commit is not known yet"
    report.read({})
    assert told({("in", 0): 30}) == (None, 0), "nothing is committed yet"
    report.read({"in": {0: (0, 30)}})
    lag, progressed = told({("in", 0): 30})
    assert (lag, progressed > 0) == (0, True)
    assert told(None) == (None, progressed), "a source's cluster is away"
    assert told({("in", 0): 42}) == (12, progressed)


def test_a_pattern_that_matches_no_topic_yet_leaves_nothing_to_commit(tmp_path: Path) -> None:
    report = DriverReport(Home(tmp_path), "t", "p")
    report.read({})
    report.available(None)
    assert (report.status.lag, report.status.progressed) == (None, 0), "nobody knows"
    report.available({})
    lag, progressed = report.status.lag, report.status.progressed
    assert (lag, progressed > 0) == (0, True)
    report.available({("in.a", 0): 30})
    assert (report.status.lag, report.status.progressed) == (None, progressed), "it is to be committed"


def test_tables_are_told_as_the_sinks_have_left_them_whatever_is_told(tmp_path: Path) -> None:
    report = DriverReport(Home(tmp_path), "t", "p")
    for commit in (6, 7):
        tables = {"table": TableStatus(commit=commit, version=str(commit), storage="delta")}
        report.tables = tables.copy
        report.tell(progressed=1.0)  # of a replay, which may write what a sink lacks
        assert report.status.tables == tables
