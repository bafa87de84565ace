"""The whole way: a deferred task, a sensor, a real driver on Spark, and a home on an HDFS that is away for a while."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator
from airflow_provider_exactlyonce.triggers.pipeline_state import PipelineStateTrigger
from tests.hadoop_cluster import HadoopCluster
from tests.integration.operators.test_streaming_deferred import first_event, trigger_of
from tests.integration.streaming.harness import CONF, JOBS, World, check_counts
from tests.task_state import TaskInstance
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow, pytest.mark.cluster]

#: Longer than a driver may be silent.
AWAY_SECONDS: Final = 75


@pytest.fixture
def world(
    tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name, described in {
        "SPARK_DEFAULT": {"conn_type": "spark", "host": "local[2]"},
        "KAFKA_DEFAULT": {"conn_type": "kafka", "extra": dict(kafka_config)},
    }.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(described))
    source, sink = make_topic(partitions=3), make_topic(partitions=4)
    world = World(kafka_config, f"p-{source}", source, sink, tmp_path / "home")
    yield world
    world.end()


def hangs(cluster: HadoopCluster) -> None:
    """Let the name node say nothing for a while."""
    cluster.files.send(signal.SIGSTOP)
    time.sleep(AWAY_SECONDS)
    cluster.files.send(signal.SIGCONT)


def is_restarted(cluster: HadoopCluster) -> None:
    """Kill name node and data node, and start them a while later."""
    cluster.files.kill()
    time.sleep(AWAY_SECONDS)
    cluster.files.start()


def run(world: World, home: str) -> dict[str, Any]:
    """Run the task, to the triggerer and back, until all that was sent is committed."""
    task = StreamingPipelineOperator(
        task_id="stream",
        application=str(JOBS / world.job),
        checkpoint=home,
        conf=CONF,
        env_vars={"TEST_PIPELINE": world.pipeline, "TEST_SOURCE": world.source, "TEST_SINK": world.sink},
        restart_strategy=RestartStrategy.fixed_delay(attempts=30, delay=timedelta(0)),
        deferrable=True,
    )
    context: Any = {"ti": TaskInstance(), "dag_run": SimpleNamespace(clear_number=0)}
    step: Callable[[], dict[str, Any]] = lambda: task.execute(context)  # noqa: E731
    while True:
        try:
            return step()
        except TaskDeferred as deferral:
            event = asyncio.run(first_event(trigger_of(deferral)))

            def step(event: dict[str, Any] = event) -> dict[str, Any]:
                return task.resume_from_trigger(context, event)


@pytest.mark.parametrize(
    ("break_it", "why"), [(hangs, "has not answered for 20 s"), (is_restarted, "Connection refused")]
)
def test_a_name_node_that_is_away_for_a_while_costs_no_record_and_starts_no_second_driver(
    world: World,
    hadoop: HadoopCluster,
    capsys: pytest.CaptureFixture[str],
    break_it: Callable[[HadoopCluster], None],
    why: str,
) -> None:
    home = f"{hadoop.hdfs}/{uuid.uuid4()}"
    waiting = PipelineStateTrigger(
        kafka_conn_id="kafka_default",
        poll_interval=1,
        deadline=time.time() + 1200,
        pipeline=None,
        checkpoint=home,
        states=["finished"],
    )
    world.send(6000)

    def break_in_the_middle() -> None:
        eventually(lambda: world.commits() >= 2, "the pipeline has begun")
        break_it(hadoop)

    with ThreadPoolExecutor(2) as pool:
        broken = pool.submit(break_in_the_middle)
        sensing = pool.submit(lambda: asyncio.run(first_event(waiting)))
        result = run(world, home)
        broken.result()
        found = sensing.result()["found"]
    _, claims = world.ledger()
    assert len(claims) == result["restarts"] + 1, "a driver ends before the next one is started"
    assert result["commit"] == found["commit"] == world.commits()
    check_counts(world)
    said = capsys.readouterr().out
    assert any(f"home {home}: " in line and why in line for line in said.splitlines()), said
