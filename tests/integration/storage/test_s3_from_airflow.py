"""The whole way: an operator, a connection, a real driver on Spark, and a home in a bucket that fails now and then."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_exactlyonce.hooks.home import home_at
from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator
from tests import object_stores
from tests.integration.operators.test_streaming import TaskInstance
from tests.integration.streaming.harness import CONF, JOBS, World, check_counts

# The clients of object stores have deprecations of their own.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.filterwarnings("default"), pytest.mark.slow]


@pytest.fixture
def world(
    tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str], spark_classes: None
) -> Iterator[World]:
    source, sink = make_topic(partitions=3), make_topic(partitions=4)
    world = World(kafka_config, f"p-{source}", source, sink, tmp_path / "home")
    yield world
    world.end()


def connect(monkeypatch: pytest.MonkeyPatch, world: World, address: str) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    connections: dict[str, dict[str, Any]] = {
        "LAKE": {
            "conn_type": "aws",
            "login": object_stores.KEY,
            "password": object_stores.SECRET,
            "extra": {"endpoint_url": address, "region_name": "us-east-1"},
        },
        "SPARK_DEFAULT": {"conn_type": "spark", "host": "local[2]"},
        "KAFKA_DEFAULT": {"conn_type": "kafka", "extra": dict(world.config)},
    }
    for name, connection in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))


def test_a_task_runs_its_pipeline_in_a_bucket_over_a_kill_and_lost_answers(
    world: World, moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    checkpoint = f"s3://lake@bucket/{uuid.uuid4()}"
    topics = {"TEST_PIPELINE": world.pipeline, "TEST_SOURCE": world.source, "TEST_SINK": world.sink}
    with object_stores.proxy(moto) as faults:
        connect(monkeypatch, world, faults.address)
        faults.plan("GET", *["", "", "", "", "503", "", "", "", "", "drop"] * 3)
        task = StreamingPipelineOperator(
            task_id="stream",
            application=str(JOBS / "counts.py"),
            checkpoint=checkpoint,
            conf=CONF,
            env_vars={**topics, "EXACTLYONCE_FAILPOINTS": "after-end-transaction:run=1:batch=1"},
            restart_strategy=RestartStrategy.fixed_delay(attempts=3, delay=timedelta(0)),
        )
        world.send(1500)
        context: Any = {"ti": TaskInstance(), "dag_run": SimpleNamespace(clear_number=0)}
        result = task.execute(context)
    assert result["restarts"] >= 1
    assert result["commit"] == world.commits()
    check_counts(world)
    logs = [log.read_bytes() for log in home_at(checkpoint).logs.iterdir()]
    assert not any(object_stores.SECRET.encode() in log for log in logs)
