"""Gates and watchers while triggerers are killed: verdicts are the same, and no committed range is left out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.integration.airflow.conftest import ROOT, Airflow
from tests.integration.airflow.standalone import eventually, standalone
from tests.integration.hand_written import HandWrittenPipeline, send
from tests.integration.streaming.harness import read_committed
from tests.processes import command_line

NEW_YEAR = 1_767_225_600_000  # 2026-01-01T00:00:00Z
QUARTER = 900_000
#: So soon does Airflow miss a triggerer.
LOST = {
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "4",
}


def kill_triggerers(airflow: Airflow) -> int:
    """Kill all of them, with their children; return how many processes that were."""
    killed = 0
    for pid in airflow.processes():
        if "triggerer" in command_line(pid):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return killed


@contextmanager
def more_triggerers(airflow: Airflow, environment: dict[str, str]) -> Iterator[Callable[[], None]]:
    """Give what starts another triggerer."""
    started = []

    def start() -> None:
        with (airflow.home / "triggerer.log").open("ab") as file:
            started.append(
                subprocess.Popen(
                    airflow.command("triggerer", "--skip-serve-logs"),
                    env={**airflow.environment, **environment},
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()


class Story:
    """What Airflow's database says of the watcher."""

    def __init__(self, airflow: Airflow, asset: str) -> None:
        self.airflow, self.asset = airflow, asset

    def events(self) -> list[dict[str, Any]]:
        rows = self.airflow.query(
            "SELECT e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id WHERE a.uri = ? ORDER BY e.id",
            self.asset,
        )
        return [json.loads(extra)["payload"] for (extra,) in rows]

    def place(self) -> int | None:
        rows = self.airflow.query(
            "SELECT s.value FROM asset_state_store s JOIN asset a ON a.id = s.asset_id WHERE a.uri = ?", self.asset
        )
        return int(json.loads(rows[0][0])["commit"]) if rows else None


def commit(pipeline: HandWrittenPipeline, number: int) -> None:
    """Commit batches, each with an aborted attempt before it."""
    for _ in range(number):
        at = pipeline.place.commit + 1
        pipeline.producer.begin_transaction()
        pipeline.send(pipeline.sink, {at % 2: [(b"aborted", b"aborted")] * 2})
        pipeline.producer.abort_transaction(30)
        pipeline.commit({0: 1, at % 3: at}, read_up_to={0: at, 1: at}, watermark=NEW_YEAR + at * QUARTER)


@pytest.mark.timeout(3600)
@pytest.mark.slow
def test_gates_and_watchers_survive_killed_triggerers(
    airflow: Airflow, kafka_config: dict[str, str], make_topic: Callable[..., str], tmp_path: Path
) -> None:
    pipeline = HandWrittenPipeline(kafka_config, source=make_topic(partitions=2), sink=make_topic(partitions=3))
    send(Producer(kafka_config), pipeline.source, {0: [(b"k", b"v")] * 40, 1: [(b"k", b"v")] * 40})
    pipeline.claim()
    folder = tmp_path / "dags"
    folder.mkdir()
    example = (ROOT / "dags" / "shop_committed.py").read_text()
    (folder / "shop_committed.py").write_text(example.replace('"shop-totals"', f'"{pipeline.name}"'))
    (folder / "gates_dag.py").write_text((Path(__file__).parent / "gates_dag.py").read_text())
    environment = {
        **LOST,
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        "HOME": str(tmp_path),
        "TEST_PIPELINE": pipeline.name,
    }
    exports = tmp_path / ".exactlyonce" / "exports"
    story = Story(airflow, f"exactlyonce://kafka_default/{pipeline.name}")
    hours = Story(airflow, f"{story.asset}/hour")

    def states(dag: str) -> dict[str, str]:
        return dict(airflow.query("SELECT task_id, state FROM task_instance WHERE dag_id = ?", dag))

    with more_triggerers(airflow, environment) as start_triggerer, standalone(airflow, environment) as output:

        def wait(condition: Callable[[], object], what: str) -> None:
            eventually(condition, what, output)

        wait(lambda: story.place() is not None and hours.place() is not None, "both watchers have begun")
        assert story.place() == hours.place() == 0
        commit(pipeline, 5)
        trigger = airflow.command("dags", "trigger", "gates", "--run-id", "r", "--conf", '{"commit": 40}')
        airflow.run(trigger, environment)
        wait(lambda: list(states("gates").values()).count("deferred") >= 3, "the gates wait")
        for _ in range(2):
            commit(pipeline, 4)
            wait(lambda: len({event["key"] for event in story.events()}) == pipeline.place.commit, "events arrive")
            assert kill_triggerers(airflow) >= 1  # Airflow has events behind the watcher's place
            commit(pipeline, 3)
            start_triggerer()
            wait(lambda: (story.place() or 0) >= pipeline.place.commit, "the next triggerer goes on")
        commit(pipeline, 40 - pipeline.place.commit)
        wait(lambda: set(states("gates").values()) == {"success", "failed"}, "the gates end")
        wait(lambda: len(list(exports.glob("*.jsonl"))) == 40, "all is exported")
        reports = "SELECT count(DISTINCT partition_key) FROM dag_run WHERE dag_id = 'report_hour' AND state = 'success'"
        wait(lambda: airflow.query(reports)[0][0] == 11, "a report for each complete hour")

    assert states("gates") == {
        "deferred": "success",
        "without_worker": "success",
        "up_to_now": "success",
        "never": "failed",
    }, airflow.task_logs()
    check_gates(airflow)
    check_events(story.events(), hours.events())
    check_exports(exports, pipeline)


def check_gates(airflow: Airflow) -> None:
    sql = "SELECT task_id, value FROM xcom WHERE dag_id = 'gates' AND key = 'return_value'"
    results = {task: json.loads(value) for task, value in airflow.query(sql)}
    assert set(results) == {"deferred", "without_worker", "up_to_now"}
    assert results["deferred"]["commit"] == results["without_worker"]["commit"] == 40
    logs = "".join(log.read_text() for log in (airflow.home / "logs").rglob("*task_id=never/*.log"))
    assert "of 1000000: " in logs, "the time-out names what is missing"


def check_events(ranges: list[dict[str, Any]], hours: list[dict[str, Any]]) -> None:
    by_key: dict[str, dict[str, Any]] = {}
    for event in [*ranges, *hours]:
        assert by_key.setdefault(event["key"], event) == event, "a range that is told again is the same"
    assert {event["last"] for event in ranges} == set(range(1, 41)), "no commit is left out"
    ends = sorted({(event["first"], event["last"]) for event in hours})
    assert [first for first, _ in ends] == [1, *(last + 1 for _, last in ends[:-1])], "ranges join"
    assert len({partition for event in hours for partition in event["partitions"]}) == 11
    print(f"{len(ranges)} events for 40 ranges, {len(hours)} for {len(ends)} hours")


def check_exports(exports: Path, pipeline: HandWrittenPipeline) -> None:
    exported = [tuple(json.loads(line)) for file in exports.glob("*.jsonl") for line in file.read_text().splitlines()]
    readable = read_committed(pipeline.config, pipeline.sink)
    places = sorted((record.partition, record.offset, (record.value or b"").decode()) for record in readable)
    assert sorted(exported) == places, "each record once, and nothing of what was aborted"
