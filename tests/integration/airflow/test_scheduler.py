"""Streams with a real scheduler, executor, triggerer and API server, and what happens when these are lost.

But for the gate's, drivers are real processes that speak the control contract; only Spark is left out of them.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import IsolationLevel

from airflow_provider_exactlyonce.backfill import workspace
from airflow_provider_exactlyonce.control import restarts, status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.status import DriverState
from tests.integration.airflow.conftest import Airflow, result_of
from tests.integration.airflow.parts import Parts, Stream
from tests.integration.control.contract_driver import let_go
from tests.integration.streaming.harness import World, check_counts, end_offsets
from tests.waiting import eventually

FOREVER = "take-lease commit until-stop"
GATED = "gate_beside_stream"


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory, new_airflow: Callable[[], Airflow]) -> Iterator[Parts]:
    """Give an Airflow of its own: what other tests have left in the session's one would be run here."""
    made = Parts(new_airflow(), tmp_path_factory.mktemp("parts"))
    try:
        made.start_all()
        yield made
    finally:
        made.close()


def task_process(stream: Stream) -> psutil.Process:
    """Return the process that runs the task; its parent is the worker."""
    return psutil.Process(stream.task()["pid"])


def ends_well(stream: Stream, token: str, *, tries: int = 1) -> None:
    """Stop the pipeline; it must still be the first driver, and its result must be there."""
    stream.stop()
    task = stream.wait_for("success", "failed")
    assert task["state"] == "success", stream.log()
    assert task["try_number"] == tries
    assert stream.result()["commit"] == 1
    assert stream.result()["restarts"] == 0
    assert [note["token"] for note in stream.notes("started")] == [token], "one driver, from the beginning to the end"
    assert stream.is_gone(token)


def test_a_deferred_gate_opens_when_the_stream_beside_it_has_committed_everything_over_a_kill(
    parts: Parts, world: World
) -> None:
    world.send(1000)
    ends = end_offsets(world.config, world.source, IsolationLevel.READ_COMMITTED)
    names = {"pipeline": world.pipeline, "source": world.source, "sink": world.sink, "home": str(world.home)}
    given = {"offsets": json.dumps({world.source: ends}), "failpoints": "after-commit:run=1:batch=1"}
    parts.trigger(GATED, world.pipeline, {**names, **given})

    def states() -> dict[str, str | None]:
        rows = parts.airflow.query("SELECT task_id, state FROM task_instance WHERE run_id = ?", world.pipeline)
        return dict(rows)

    eventually(lambda: set(states().values()) <= {"success", "failed", "upstream_failed"}, parts.output)
    assert set(states().values()) == {"success"}, parts.airflow.task_logs()
    check_counts(world)
    commits, _ = world.ledger()
    query = "SELECT task_id, value FROM xcom WHERE run_id = ? AND key = 'return_value'"
    returned = {task: json.loads(value) for task, value in parts.airflow.query(query, world.pipeline)}
    assert returned["count"] == {
        "rows": sum(commit.rows for commit in commits),
        "gate": {"pipeline": world.pipeline, "commit": 3, "idle": False, "late_rows": 0},
    }
    assert returned["stream"] == result_of(world)
    check_lineage(parts, world, sum(commit.rows for commit in commits))
    query = "SELECT key FROM xcom WHERE run_id = ? AND task_id = 'stream'"
    pushed = {key for (key,) in parts.airflow.query(query, world.pipeline)}
    assert pushed >= {"_link_PipelineStatusLink", "_link_SparkApplicationLink"}
    [restart] = restarts.read(world.home / "control" / "restarts.json")
    assert (restart.run, restart.exit_code) == (1, -signal.SIGKILL)
    waits = [log.read_text() for log in (parts.airflow.home / "logs").rglob("*.trigger.*.log")]
    assert any(f"waiting: {world.pipeline}: " in text for text in waits), "it was the triggerer that waited"


def check_lineage(parts: Parts, world: World, rows: int) -> None:
    """Check what OpenLineage was told of the stream: what it has read, and how much it has written.

    Airflow tells it after the task's state has changed, and after the links were pushed.
    """

    def completed() -> list[dict[str, Any]]:
        whole, _, _ = parts.openlineage.read_text().rpartition("\n")
        events = map(json.loads, whole.splitlines())
        return [e for e in events if (e["job"]["name"], e["eventType"]) == (f"{GATED}.stream", "COMPLETE")]

    [event] = eventually(completed, parts.output)
    [read], [written] = event["inputs"], event["outputs"]
    assert (read["name"], written["name"]) == (world.source, world.sink)
    taken = read["inputFacets"]["exactlyonce_offsets"]["partitions"]
    ends = end_offsets(world.config, world.source, IsolationLevel.READ_COMMITTED)
    assert {span["partition"]: (span["start"], span["end"]) for span in taken} == {
        partition: (0, end) for partition, end in ends.items()
    }
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == rows


def test_a_deferred_backfill_gives_what_its_driver_has_left(parts: Parts, tmp_path: Path) -> None:
    stream = Stream(parts, "backfill", tmp_path / "shop", first="take-lease commit go end=finished")
    stream.wait_for("deferred")
    [path] = (path for path in (tmp_path / "shop" / "backfills").iterdir() if path.is_dir())
    home = Home(path)
    result = {"pipeline": "shop", "clean": True, "found": [], "rows": 3}
    workspace.write_result(home, result)
    let_go(home)
    assert stream.wait_for("success", "failed")["state"] == "success", stream.log()
    assert stream.result() == {**result, "restarts": 0}


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_lost_worker_leaves_the_driver_to_the_next_try(parts: Parts, tmp_path: Path, number: signal.Signals) -> None:
    stream = Stream(parts, "worker", tmp_path / f"worker-{number}", first=FOREVER, until="forever")
    token = stream.committed()
    task = task_process(stream)
    worker = task.parent()
    assert worker is not None
    worker.send_signal(number)
    if number is signal.SIGKILL:
        task.send_signal(number)
        stream.wait_for_next_try()
    eventually(lambda: stream.task()["try_number"] == 2 and stream.task()["state"] == "running", "the next try")
    ends_well(stream, token, tries=2)


@pytest.mark.slow
def test_what_a_driver_did_while_no_worker_watched_is_the_next_tries_result(parts: Parts, tmp_path: Path) -> None:
    stream = Stream(parts, "worker", tmp_path / "unseen", first="take-lease commit sleep=6 end=finished")
    token = stream.committed()
    task = task_process(stream)
    worker = task.parent()
    assert worker is not None
    for process in (worker, task):
        process.kill()
    stream.wait_for_next_try()
    done = stream.wait_for("success", "failed")
    assert (done["state"], done["try_number"]) == ("success", 2), stream.log()
    assert stream.result()["commit"] == 1
    assert [note["token"] for note in stream.notes("started")] == [token]


def test_a_deferred_stream_survives_its_triggerer_and_its_driver_is_restarted(parts: Parts, tmp_path: Path) -> None:
    stream = Stream(parts, "deferred", tmp_path / "triggerer", first=FOREVER, then=FOREVER, until="forever")
    token = stream.committed()
    stream.wait_for("deferred")
    parts.kill("triggerer")
    assert not stream.is_gone(token)
    parts.start("triggerer")
    os.kill(int(stream.notes("started")[0]["pid"]), signal.SIGKILL)
    eventually(lambda: len(stream.notes("started")) == 2, "the restart")
    stream.wait_for("deferred")
    second = stream.committed()
    stream.stop()
    assert stream.wait_for("success", "failed")["state"] == "success", stream.log()
    assert (stream.result()["restarts"], stream.result()["commit"]) == (1, 2)
    assert [note["token"] for note in stream.notes("started")] == [token, second]
    [restart] = restarts.read(stream.home.restarts)
    assert restart.token == token


@pytest.mark.slow
def test_a_lost_triggerer_costs_a_healthy_driver_nothing(parts: Parts, tmp_path: Path) -> None:
    stream = Stream(parts, "deferred", tmp_path / "triggerer-alone", first=FOREVER, until="forever")
    token = stream.committed()
    stream.wait_for("deferred")
    parts.kill("triggerer")
    parts.start("triggerer")
    ends_well(stream, token)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_triggerer_and_a_scheduler_that_are_restarted_cost_a_deferred_driver_nothing(
    parts: Parts, tmp_path: Path, number: signal.Signals
) -> None:
    stream = Stream(parts, "deferred", tmp_path / f"both-{number}", first=FOREVER, until="forever")
    token = stream.committed()
    stream.wait_for("deferred")
    for name in ("triggerer", "scheduler"):
        parts.kill(name, number)
    assert not stream.is_gone(token)
    parts.start("triggerer", "scheduler")
    ends_well(stream, token)


@pytest.mark.slow
def test_a_lost_scheduler_with_its_workers_costs_the_driver_nothing(parts: Parts, tmp_path: Path) -> None:
    stream = Stream(parts, "worker", tmp_path / "scheduler", first=FOREVER, until="forever")
    token = stream.committed()
    before = stream.task()
    parts.kill("scheduler")
    parts.start("scheduler")
    eventually(
        lambda: stream.task()["state"] == "running" and stream.task()["start_date"] != before["start_date"],
        "the task runs again",
    )
    stream.stop()
    assert stream.wait_for("success", "failed")["state"] == "success", stream.log()
    assert stream.result()["commit"] == 1
    assert [note["token"] for note in stream.notes("started")] == [token]


@pytest.mark.slow
@pytest.mark.parametrize("dag", ["worker", "deferred"])
def test_a_task_that_a_user_clears_stops_its_driver_and_starts_the_next(parts: Parts, tmp_path: Path, dag: str) -> None:
    stream = Stream(parts, dag, tmp_path / f"clear-{dag}", first=FOREVER, then="take-lease commit end=finished")
    token = stream.committed()
    stream.wait_for_watch()
    stream.clear()
    eventually(lambda: len(stream.notes("started")) == 2, "the next driver")
    assert stream.wait_for("success", "failed")["state"] == "success", stream.log()
    assert stream.is_gone(token)
    assert (stream.result()["commit"], stream.result()["restarts"]) == (2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["failed", "success"])
@pytest.mark.parametrize("dag", ["worker", "deferred"])
def test_a_task_that_a_user_marks_stops_its_driver(parts: Parts, tmp_path: Path, dag: str, state: str) -> None:
    stream = Stream(parts, dag, tmp_path / f"mark-{dag}-{state}", first=FOREVER, until="forever")
    token = stream.committed()
    stream.wait_for_watch()
    stream.mark(state)
    eventually(lambda: stream.is_gone(token), "the driver is stopped")
    last = status.read(stream.home.status)
    assert last is not None
    assert last.state is DriverState.STOPPED, "at a batch boundary"
    assert stream.task()["state"] == state
    assert len(stream.notes("started")) == 1


@pytest.mark.slow
def test_a_stream_that_was_done_and_is_cleared_runs_again(parts: Parts, tmp_path: Path) -> None:
    plan = "take-lease commit sleep=1 end=finished"
    stream = Stream(parts, "deferred", tmp_path / "again", first=plan, then=plan)
    assert stream.wait_for("success", "failed")["state"] == "success", stream.log()
    stream.wait_until_over()
    stream.clear()
    eventually(lambda: len(stream.notes("started")) == 2, "the next driver")
    assert stream.wait_for("success", "failed")["state"] == "success", stream.log()
    assert stream.result()["commit"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("dag", ["worker", "deferred"])
def test_what_a_retry_can_not_change_is_not_retried(parts: Parts, tmp_path: Path, dag: str) -> None:
    plan = "take-lease commit sleep=1 fail=FencedError:exit:66:run_9_took_over"
    stream = Stream(parts, dag, tmp_path / f"fenced-{dag}", first=plan)
    done = stream.wait_for("success", "failed")
    assert (done["state"], done["try_number"]) == ("failed", 1), stream.log()
    assert "FencedError: run 9 took over" in stream.log()
    assert len(stream.notes("started")) == 1


@pytest.mark.slow
def test_a_continuous_dag_runs_its_stream_again_when_it_has_ended_one_driver_at_a_time(parts: Parts) -> None:
    def states() -> list[str | None]:
        """Return the tasks' states; a DAG run of a paused DAG stays as it is, whatever its task does."""
        return [s for (s,) in parts.airflow.query("SELECT state FROM task_instance WHERE dag_id = 'continuous'")]

    parts.call("PATCH", "/api/v2/dags/continuous", {"is_paused": False})
    eventually(lambda: states().count("success") >= 3, "three rounds")
    parts.call("PATCH", "/api/v2/dags/continuous", {"is_paused": True})
    eventually(lambda: set(states()) <= {"success", None}, "the last round")
    last = status.read(Home(parts.folder / "continuous").status)
    assert last is not None
    assert (last.state, last.commit) == (DriverState.FINISHED, states().count("success")), (
        "each went on where the last one was"
    )
