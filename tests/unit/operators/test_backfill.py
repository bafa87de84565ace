"""A backfill as a task: its range, the home of its request, and what becomes of its result."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_exactlyonce.backfill import workspace
from airflow_provider_exactlyonce.backfill.request import BackfillState, Output
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import AuditFailedError, DriverFailedError, RefusedError
from airflow_provider_exactlyonce.operators.backfill import BackfillPipelineOperator

TEN = datetime(2026, 1, 1, 10, tzinfo=UTC)
RESULT = {"pipeline": "p", "clean": True, "found": [], "compared": 2, "rows": 3}


class TaskInstance(SimpleNamespace):
    def xcom_push(self, key: str, value: Any) -> None:
        self.made[key] = json.loads(json.dumps(value))


def context(start: datetime | None = TEN, end: datetime | None = TEN + timedelta(hours=1)) -> Any:
    ti = TaskInstance(dag_id="d", run_id="r", task_id="again", map_index=-1, made={})
    return {"ti": ti, "data_interval_start": start, "data_interval_end": end}


def operator(home: Path, **given: Any) -> BackfillPipelineOperator:
    return BackfillPipelineOperator(**{"task_id": "again", "pipeline": "p", "checkpoint": str(home), **given})


def test_without_a_range_it_is_the_data_interval(tmp_path: Path) -> None:
    made = operator(tmp_path, state="empty", output_to="topic=t").home(context())
    asked = workspace.asked_of(made)
    milliseconds = int(TEN.timestamp() * 1000)
    assert asked.request.time == (milliseconds, milliseconds + 3_600_000)
    assert (asked.request.state, asked.request.kind, asked.request.topic) == (BackfillState.EMPTY, Output.TOPIC, "t")
    assert (asked.pipeline, asked.home) == ("p", str(tmp_path))
    assert made.path.parent == tmp_path / "backfills"
    assert operator(tmp_path, state="empty", output_to="topic=t").home(context()).path == made.path


def test_an_interval_without_length_is_refused_with_the_reason(tmp_path: Path) -> None:
    said = r"a cron expression as schedule gives one moment. Use schedule=CronDataInt"
    with pytest.raises(RefusedError, match=said):
        operator(tmp_path).home(context(end=TEN))
    with pytest.raises(ValueError, match=said):
        operator(tmp_path, start="2026-01-01 10:00:00+00:00", end="2026-01-01 10:00:00+00:00")
    task = operator(tmp_path, start="{{ data_interval_start }}", end="{{ data_interval_end }}")
    task.start = task.end = "2026-01-01 10:00:00+00:00"  # what they render to
    with pytest.raises(RefusedError, match=said):
        task.home(context())


def test_a_run_without_an_interval_needs_a_range(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="this run has no data interval: give commits"):
        operator(tmp_path).home(context(start=None, end=None))
    assert workspace.asked_of(operator(tmp_path, commits="3..4").home(context(None, None))).request.commits == (3, 4)


@pytest.mark.parametrize("given", [{"commits": "{{ commits }}"}, {"start": "{{ start }}", "end": "{{ end }}"}])
def test_a_range_that_renders_to_nothing_is_not_the_data_interval(tmp_path: Path, given: dict[str, str]) -> None:
    task = operator(tmp_path, output_to="reemit", **given)
    for name in given:
        setattr(task, name, None)  # what a native template renders to
    with pytest.raises(RefusedError, match=f"^{', '.join(given)} rendered to None: let it render to the range"):
        task.home(context())
    assert not (tmp_path / "backfills").exists()


def test_the_home_alone_names_the_pipeline_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    Home(tmp_path).create("shop")
    made = BackfillPipelineOperator(task_id="again", checkpoint=str(tmp_path), commits="1..2").home(context())
    assert workspace.asked_of(made).pipeline == "shop"
    with pytest.raises(RefusedError, match="is the home of pipeline shop, not of p"):
        operator(tmp_path, commits="1..2").home(context())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pipeline": None, "checkpoint": None}, "give pipeline or checkpoint"),
        ({"on_worker_shutdown": "stop_with_savepoint"}, "a backfill takes no savepoints"),
    ],
)
def test_what_can_not_be_is_refused_when_the_dag_is_read(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        operator(tmp_path, **given)


def test_the_driver_is_told_that_it_runs_a_backfill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))
    job = tmp_path / "job.py"
    job.write_text("")
    task = operator(tmp_path / "home", commits="1..2", application=str(job), jars="a.jar", application_args=["--x"])
    home = task.home(context())
    command = list(task.launch(home, "available", None).command)
    assert command[command.index(str(job)) :][:3] == [str(job), "--home", str(home.path)]
    assert command[-2:] == ["--backfill", "--x"]
    with pytest.raises(RefusedError, match="it ends with its range"):
        task.launch(home, "forever", None)


def test_a_try_takes_over_the_driver_of_an_earlier_one_with_the_same_job_wherever_its_file_is(tmp_path: Path) -> None:
    def owner(application: str | None) -> str:
        return operator(tmp_path, commits="1..2", application=application).owner_of_driver(context())

    for host, text in (("a", "old"), ("b", "old"), ("c", "new")):
        (tmp_path / host).mkdir()
        (tmp_path / host / "job.py").write_text(text)
    first, elsewhere, changed = (owner(str(tmp_path / host / "job.py")) for host in "abc")
    assert first == elsewhere != changed
    assert owner(None) == owner("") == "d/again/r/-1", "whichever version runs"
    with pytest.raises(RefusedError, match="is not there"):
        owner("gone.py")


def test_the_result_is_what_the_driver_has_left(tmp_path: Path) -> None:
    task = operator(tmp_path, commits="1..2")
    home = task.home(context())
    with pytest.raises(DriverFailedError, match="ended without a result"):
        task.outcome(context(), home, {"restarts": 1})
    workspace.write_result(home, RESULT)
    assert task.outcome(context(), home, {"restarts": 1}) == {**RESULT, "restarts": 1}


def test_differences_fail_the_task_and_are_its_xcom(tmp_path: Path) -> None:
    task, given = operator(tmp_path, commits="1..2"), context()
    home = task.home(given)
    violations = [{"invariant": "I7", "commit": 2, "message": "5 rows were delivered"}]
    workspace.write_result(home, {**RESULT, "clean": False, "found": violations})
    with pytest.raises(
        AuditFailedError, match=r"1 of 2 commits of p give other rows .*: commit 2: 5 rows were delivered"
    ):
        task.outcome(given, home, {"restarts": 0})
    assert given["ti"].made["return_value"]["found"] == violations
    assert given["ti"].made["_link_AuditReportLink"].endswith("/dags/d/runs/r/tasks/again/xcom")
