"""Mistakes in operators' arguments are shown when the DAG is parsed, unless they may turn out to be none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, task

from airflow_provider_exactlyonce.operators.audit import AuditPipelineOperator
from airflow_provider_exactlyonce.operators.backfill import BackfillPipelineOperator
from airflow_provider_exactlyonce.operators.savepoint import CleanUpSavepointsOperator, StopPipelineOperator
from airflow_provider_exactlyonce.operators.streaming import Commits, StreamingPipelineOperator, Watermark
from airflow_provider_exactlyonce.operators.upgrade import UpgradePipelineOperator
from airflow_provider_exactlyonce.policies.health_rules import HealthRules
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from airflow_provider_exactlyonce.sensors.commit_gate import CommitGateSensor
from airflow_provider_exactlyonce.sensors.kafka_transactions import KafkaTransactionsSensor
from airflow_provider_exactlyonce.sensors.pipeline_state import PipelineStateSensor


def stream(**options: Any) -> BaseOperator:
    return StreamingPipelineOperator(**{"task_id": "t", "application": "job.py", "checkpoint": "/h", **options})


def backfill(**options: Any) -> BaseOperator:
    return BackfillPipelineOperator(**{"task_id": "t", "pipeline": "shop", **options})


def upgrade(**options: Any) -> BaseOperator:
    return UpgradePipelineOperator(task_id="t", application="job.py", pipeline="shop", **options)


def gate(**options: Any) -> BaseOperator:
    return CommitGateSensor(**{"task_id": "t", "pipeline": "shop", **options})


@pytest.mark.parametrize(
    ("make", "name", "value", "said"),
    [
        (stream, "until", "availabel", "until='availabel': one of available, forever"),
        (stream, "until", "commits:0", "until='commits:0'"),
        (stream, "until", Commits(0), "until='commits:0'"),
        (stream, "until", Watermark("yesterday"), "until='watermark:yesterday'"),
        (stream, "until", 5, "until='5'"),
        (stream, "restart_strategy", "fixed_delay", "restart_strategy='fixed_delay': a RestartStrategy"),
        (stream, "health", {"max_restarts": 3}, "a HealthRules"),
        (stream, "if_running", "adpot", "adopt, fail, replace"),
        (stream, "stop_timeout", "60", "stop_timeout='60': a timedelta"),
        (stream, "poll_interval", -1, "poll_interval=-1"),
        (stream, "checkpoint", "webhdfs://host/home", "webhdfs: is not read"),
        (backfill, "commits", "17-25", "commits='17-25' is not FIRST..LAST"),
        (backfill, "watermark", "2026-01-01", "is not FROM..TO"),
        (backfill, "start", "noon", "a start and an end"),
        (backfill, "until", "forever", "it ends with its range"),
        (upgrade, "on_unstable", "rolback", "rollback, fail"),
        (upgrade, "shadow_commits", "many", "shadow_commits='many': a whole number"),
        (upgrade, "stable_timeout", timedelta(seconds=-1), "stable_timeout"),
        (gate, "commit", "seven", "commit='seven'"),
        (gate, "watermark", "2026-13-01", "watermark='2026-13-01'"),
        (gate, "offsets", "{", "offsets="),
    ],
)
def test_a_literal_mistake_is_shown_when_the_dag_is_parsed(
    make: Callable[..., BaseOperator], name: str, value: object, said: str
) -> None:
    with pytest.raises(ValueError, match=r"^t: ") as raised:
        make(**{name: value})
    assert said in str(raised.value)


def test_so_are_those_of_the_other_operators() -> None:
    with pytest.raises(ValueError, match="states='runing'"):
        PipelineStateSensor(task_id="t", pipeline="shop", states="runing")
    with pytest.raises(ValueError, match="give at least one"):
        KafkaTransactionsSensor(task_id="t", topics=[])
    with pytest.raises(ValueError, match="neither count nor days"):
        CleanUpSavepointsOperator(task_id="t", pipeline="shop", count=-1)
    with pytest.raises(ValueError, match=r"t: .*to_commit='last'"):
        AuditPipelineOperator(task_id="t", pipeline="shop", to_commit="last")
    with pytest.raises(ValueError, match="timeout='5m'"):
        StopPipelineOperator(task_id="t", pipeline="shop", timeout="5m")
    with pytest.raises(ValueError, match="delay=10: a timedelta"):
        RestartStrategy.fixed_delay(3, 10)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="restart_window=10: a timedelta"):
        HealthRules(max_restarts=1, restart_window=10)  # type: ignore[arg-type]


def test_what_a_template_or_another_task_gives_is_not_judged_before_it_is_known() -> None:
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):

        @task
        def ranges() -> str:
            return "1..2"

        stream(until="{{ params.until }}", checkpoint="{% if 1 %}s3://{% endif %}/x")
        stream(task_id="a", until=Watermark("{{ data_interval_end }}"))
        backfill(task_id="b", commits=ranges())
        backfill(task_id="c", offsets={"t": {"0": ["{{ params.first }}", 3]}})
        backfill(task_id="e")  # the run's data interval
        gate(task_id="f", commit="{{ ti.xcom_pull('stream')['commit'] }}")
    with DAG("other", schedule=None, jinja_environment_kwargs={"variable_start_string": "[["}):
        stream(until="[[ params.until }}")
