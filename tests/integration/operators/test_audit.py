"""The audit as a task: what it returns, and how it fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_exactlyonce.ledger.records import OtherSink
from airflow_provider_exactlyonce.operators.audit import AuditPipelineOperator
from tests.integration.ledger.crafted import CraftedPipeline, rows_of


@pytest.fixture
def crafted(
    kafka_config: Mapping[str, str], make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[CraftedPipeline]:
    connection = json.dumps({"conn_type": "kafka", "extra": dict(kafka_config)})
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", connection)
    sink = make_topic(partitions=3)
    with CraftedPipeline(kafka_config, f"p-{sink}", sink) as pipeline:
        pipeline.claim()
        for batch in range(3):
            pipeline.commit(rows_of(batch))
        yield pipeline


class Pushes(SimpleNamespace):
    def xcom_push(self, key: str, value: Any) -> None:
        self.made[key] = json.loads(json.dumps(value))


def task_instance(**changes: Any) -> Pushes:
    given = {"dag_id": "shop", "run_id": "manual__2026-01-01T00:00:00+00:00", "task_id": "audit", "map_index": -1}
    return Pushes(**{**given, **changes}, made={})


def test_a_clean_pipeline_gives_its_report(crafted: CraftedPipeline) -> None:
    task = AuditPipelineOperator(task_id="audit", pipeline=crafted.pipeline, from_commit="2", patience="10")
    report = task.execute({"ti": task_instance()})  # type: ignore[typeddict-item]
    assert json.loads(json.dumps(report)) == {**report, "found": [], "violations": {}}
    assert (report["clean"], report["first"], report["last"], report["rows"]) == (True, 2, 3, 20)


def test_the_log_says_which_sinks_were_not_looked_at(
    crafted: CraftedPipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    crafted.commit({}, others={"lake": OtherSink(rows=7, digest=1)})
    task = AuditPipelineOperator(task_id="audit", pipeline=crafted.pipeline)
    report = task.execute({"ti": task_instance()})  # type: ignore[typeddict-item]
    assert report["unjudged_sinks"] == ["lake"]
    assert (
        "rows in other sinks (lake) are not judged here: exactlyonce audit-sinks does that" in capsys.readouterr().out
    )


def test_a_violation_fails_the_task_with_the_report_and_a_link_to_it(crafted: CraftedPipeline) -> None:
    crafted.session.begin()
    crafted.append({0: [(b"k", b"in no commit")]})
    crafted.session.commit()
    ti = task_instance(map_index=3)
    task = AuditPipelineOperator(task_id="audit", pipeline=crafted.pipeline)
    with pytest.raises(AirflowFailException, match=r"violates I2 1; the earliest: I2, commit 3, .* are in no commit"):
        task.execute({"ti": ti})  # type: ignore[typeddict-item]
    report = ti.made["return_value"]
    assert (report["clean"], report["violations"], report["found"][0]["invariant"]) == (False, {"I2": 1}, "I2")
    address = ti.made["_link_AuditReportLink"]
    assert address.endswith("/dags/shop/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00/tasks/audit/mapped/3/xcom")
    [link] = task.operator_extra_links
    assert link.get_link(task, ti_key=ti) == address  # type: ignore[arg-type]


def test_a_pipeline_that_was_never_started_is_not_retried(crafted: CraftedPipeline) -> None:
    task = AuditPipelineOperator(task_id="audit", pipeline="nobody")
    with pytest.raises(AirflowFailException, match="has never been started here"):
        task.execute({"ti": task_instance()})  # type: ignore[typeddict-item]
