"""The operator that runs a pipeline, as far as it goes without a driver."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, ObjectStoragePath, task

from airflow_provider_exactlyonce.control import supervisor
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.hooks import launch as launches
from airflow_provider_exactlyonce.operators.streaming import Commits, StreamingPipelineOperator, Watermark


@pytest.mark.parametrize("until", [Commits(3), timedelta(hours=1)], ids=["commits", "duration"])
def test_a_stream_that_has_failed_leaves_no_goal_to_a_dag_run_that_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Commits | timedelta
) -> None:
    goals: list[str | None] = []

    class Starting:
        log = None

        def __init__(self, home: Home, launch: Callable[[], Launch], *_: Any, **__: Any) -> None:
            launch()
            raise ExactlyOnceError("the driver died")

    def build(home: Home, settings: Any, *, until: str, goal: str | None) -> Launch:
        goals.append(goal)
        return Launch(command=[], printable="", environment={})

    monkeypatch.setattr(supervisor, "Supervisor", Starting)
    monkeypatch.setattr(launches, "build_launch", build)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://local")
    (tmp_path / "job.py").write_text("new")
    for day in (1, 1, 2):
        task = StreamingPipelineOperator(
            task_id="t", checkpoint=str(tmp_path / "home"), application=str(tmp_path / "job.py"), until=until
        )
        context: Any = {
            "ti": SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1),
            "dag_run": SimpleNamespace(clear_number=0, start_date=datetime(2026, 1, day, tzinfo=UTC)),
        }
        with pytest.raises(ExactlyOnceError, match="the driver died"):
            task.execute(context)
    assert goals[0] == goals[1] != goals[2]


@pytest.mark.parametrize(
    "checkpoint", [Path("/homes/shop"), ObjectStoragePath("file:///homes/shop")], ids=["path", "object"]
)
def test_a_home_that_is_no_string_is_refused_when_the_dag_is_read(checkpoint: Any) -> None:
    with pytest.raises(ValueError, match=r"t: checkpoint=\w+Path\(.* is no string: name the pipeline's home by one"):
        StreamingPipelineOperator(task_id="t", checkpoint=checkpoint, application="job.py")


@pytest.mark.parametrize(("bound", "value"), [(Commits, 3), (Watermark, "2026-11-01T00:00:00Z")])
def test_the_task_that_gives_the_bound_comes_first(bound: type[Commits | Watermark], value: object) -> None:
    with DAG("shop"):
        first = task(task_id="first")(lambda: value)()
        stream = StreamingPipelineOperator(task_id="s", application="a.py", checkpoint="/h", until=bound(first))  # type: ignore[arg-type]
    assert stream.upstream_task_ids == {"first"}


def test_a_mapped_task_takes_a_bound_of_another_task_that_the_dag_puts_before_it() -> None:
    with DAG("shop"):
        first = task(task_id="first")(lambda: 3)()
        mapped = StreamingPipelineOperator.partial(task_id="s", application="a.py", until=Commits(first))  # type: ignore[arg-type]
        stream = mapped.expand(checkpoint=["/h"])
        first >> stream
    assert stream.unmap({"checkpoint": "/h"}).upstream_task_ids == {"first"}
