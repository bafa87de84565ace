"""What ``until`` takes, in a DAG and at the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pendulum
import pytest
from airflow.sdk import BaseOperator

from airflow_provider_exactlyonce.operators.streaming import StreamingPipelineOperator
from airflow_provider_exactlyonce.policies.health_rules import HealthRules
from airflow_provider_exactlyonce.policies.termination import Bound, Commits, RunTarget, Watermark, target_of, text_of

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("until", "target"),
    [
        ("available", None),
        ("forever", None),
        (Commits(7), RunTarget(bound=Bound.COMMITS, value=7)),
        (Commits("7"), RunTarget(bound=Bound.COMMITS, value=7)),
        (" commits:7 ", RunTarget(bound=Bound.COMMITS, value=7)),
        (Watermark(NOON), RunTarget(bound=Bound.WATERMARK, value=1795262400000)),
        (Watermark("2026-11-21T12:00:00Z"), RunTarget(bound=Bound.WATERMARK, value=1795262400000)),
        (Watermark("2026-11-21 12:00:00"), RunTarget(bound=Bound.WATERMARK, value=1795262400000)),
        ("watermark:2026-11-21T13:00:00+01:00", RunTarget(bound=Bound.WATERMARK, value=1795262400000)),
        (timedelta(minutes=90), RunTarget(bound=Bound.DURATION, value=5400)),
        (timedelta(days=20, seconds=7), RunTarget(bound=Bound.DURATION, value=1728007)),
        (pendulum.duration(hours=1, seconds=0.5), RunTarget(bound=Bound.DURATION, value=3600.5)),
        ("duration:0.25", RunTarget(bound=Bound.DURATION, value=0.25)),
    ],
    ids=str,
)
def test_all_forms_come_to_one_text_that_the_driver_understands(until: object, target: RunTarget | None) -> None:
    assert target_of(text_of(until)) == target  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "until",
    [
        *("", "tomorrow", "commits", "commits:", "commits:0", "commits:-1", "commits:1.5", "commits:nan", "commits:x"),
        *("watermark:soon", "duration:0", "duration:-5", "duration:P1D", "duration:nan", "Available"),
        *(timedelta(0), Commits(0), Watermark("{{ x }}")),
    ],
    ids=str,
)
def test_what_is_none_of_them_is_refused_by_its_value(until: object) -> None:
    with pytest.raises(ValueError, match="one of available, forever, commits:N"):
        text_of(until)  # type: ignore[arg-type]


@pytest.mark.parametrize("time", ["1970-01-01T00:00:00Z", "1969-12-31T23:59:59Z"])
def test_a_watermark_that_no_commit_can_have_is_refused_by_its_reason(time: str) -> None:
    with pytest.raises(ValueError, match=r"watermark:TIME \(ISO 8601, after 1970-01-01 00:00\)"):
        text_of(Watermark(time))


def test_running_is_a_tasks_end_and_none_of_a_drivers() -> None:
    assert text_of("running") == "running"
    with pytest.raises(ValueError, match="until='running'"):
        target_of("running")


@pytest.mark.parametrize(
    ("until", "text"),
    [
        ("{{ until }}", "commits:3"),
        (Commits("{{ number }}"), "commits:3"),
        (Watermark("{{ time }}"), "watermark:2026-11-21T12:00:00+00:00"),
    ],
)
def test_it_is_templated_in_all_its_forms(until: object, text: str) -> None:
    task = StreamingPipelineOperator(task_id="t", application="a", checkpoint="/h", until=until)  # type: ignore[arg-type]
    assert isinstance(task, BaseOperator)
    task.render_template_fields({"until": "commits:3", "number": 3, "time": NOON.isoformat()})  # type: ignore[typeddict-unknown-key]
    assert text_of(task.until) == text


@pytest.mark.parametrize(
    "rules",
    [
        {"max_restarts": -1},
        {"max_restarts": 1, "restart_window": timedelta(0)},
        {"no_commit_within": timedelta(seconds=-1)},
    ],
)
def test_senseless_health_rules_are_refused(rules: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=list(rules)[-1]):
        HealthRules(**rules)  # type: ignore[arg-type]
