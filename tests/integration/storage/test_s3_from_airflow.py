"""The whole way: an operator, a connection, a real driver on Spark, and a home in a bucket that fails now and then."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseOperator

from airflow_provider_exactlyonce.hooks.home import home_at
from airflow_provider_exactlyonce.operators.backfill import BackfillPipelineOperator
from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator
from airflow_provider_exactlyonce.operators.upgrade import RollbackPipelineOperator, UpgradePipelineOperator
from tests import azurite, object_stores
from tests.integration.streaming.conftest import world
from tests.integration.streaming.harness import CONF, JOBS, World, check_counts
from tests.task_state import TaskInstance
from tests.waiting import eventually

__all__ = ["world"]  # a fixture

# The clients of object stores have deprecations of their own.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.filterwarnings("default"), pytest.mark.slow]


def connect(
    monkeypatch: pytest.MonkeyPatch,
    world: World,
    address: str,
    connection: Callable[[str], dict[str, Any]] = object_stores.connection,
) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "STORAGE_"))]:
        monkeypatch.delenv(name)
    connections: dict[str, dict[str, Any]] = {
        "LAKE": connection(address),
        "SPARK_DEFAULT": {"conn_type": "spark", "host": "local[2]"},
        "KAFKA_DEFAULT": {"conn_type": "kafka", "extra": dict(world.config)},
    }
    for name, described in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(described))


def stream(world: World, checkpoint: str, *, attempts: int, failpoints: str = "") -> dict[str, Any]:
    """Run a task until all that was sent is committed, over that many failures of its driver at most."""
    task = StreamingPipelineOperator(
        task_id="stream",
        application=str(JOBS / world.job),
        checkpoint=checkpoint,
        conf=CONF,
        env_vars={**world.names, "EXACTLYONCE_FAILPOINTS": failpoints},
        restart_strategy=RestartStrategy.fixed_delay(attempts=attempts, delay=timedelta(0)),
    )
    context: Any = {"ti": TaskInstance(), "dag_run": SimpleNamespace(clear_number=0)}
    return task.execute(context)


@pytest.mark.parametrize(
    ("server", "scheme", "connection"),
    [
        ("moto", "s3", object_stores.connection),
        ("gcs", "gs", object_stores.gcs_connection),
        ("azure", "abfss", azurite.connection),
    ],
)
def test_a_task_runs_its_pipeline_in_a_bucket_over_a_kill_and_lost_answers(
    world: World,
    server: str,
    scheme: str,
    connection: Callable[[str], dict[str, Any]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    checkpoint = f"{scheme}://lake@bucket/{uuid.uuid4()}"
    with object_stores.proxy(request.getfixturevalue(server)) as faults:
        connect(monkeypatch, world, faults.address, connection)
        faults.plan("GET", *["", "", "", "", "503", "", "", "", "", "drop"] * 3)
        world.send(1500)
        result = stream(world, checkpoint, attempts=3, failpoints="after-end-transaction:run=1:batch=1")
    assert result["restarts"] >= 1
    assert result["commit"] == world.commits()
    check_counts(world)
    logs = [log.read_bytes() for log in home_at(checkpoint).logs.iterdir()]
    assert not any(secret.encode() in log for log in logs for secret in (object_stores.SECRET, azurite.KEY))


@pytest.fixture
def between(world: World, moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object_stores.Faults]:
    """Give a way to the store that fails as it is told to."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with object_stores.proxy(moto) as faults:
        connect(monkeypatch, world, faults.address)
        yield faults


def test_a_store_that_is_slow_throttles_and_loses_writes_costs_no_record(
    world: World, between: object_stores.Faults
) -> None:
    between.seconds = 0.3
    between.plan("PUT", *["", "", "", "503", "", "", "drop", "", "", "", "lose", "", ""] * 8)
    world.send(3000)
    result = stream(world, f"s3://lake@bucket/{uuid.uuid4()}", attempts=30)
    assert {"PUT 503", "PUT drop", "PUT lose"} <= set(between.seen)
    # One that a failed write has ended before its claim has none.
    assert len(world.ledger()[1]) <= result["restarts"] + 1, "a driver ends before the next one is started"
    assert result["commit"] == world.commits()
    check_counts(world)


def test_five_minutes_without_the_store_cost_no_record_and_start_no_second_driver(
    world: World, between: object_stores.Faults, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = f"s3://lake@bucket/{uuid.uuid4()}"

    def take_it_away() -> None:
        eventually(lambda: world.commits() >= 2, "the pipeline has begun")
        between.is_down = True
        time.sleep(300)
        between.is_down = False

    world.send(6000)
    with ThreadPoolExecutor(1) as pool:
        broken = pool.submit(take_it_away)
        result = stream(world, checkpoint, attempts=30)
        broken.result()
    assert result["restarts"] >= 1, "Spark can't write its checkpoint"
    assert len(world.ledger()[1]) == result["restarts"] + 1, "a driver ends before the next one is started"
    assert f"{checkpoint} does not answer" in caplog.text, "the task says why it waits"
    assert result["commit"] == world.commits()
    check_counts(world)


def test_the_operators_upgrade_a_pipeline_in_a_bucket_take_it_back_and_repeat_commits(
    world: World, moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, world, moto)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text((JOBS / world.job).read_text())
    second.write_text(f"{first.read_text()}# another version\n")
    driver: dict[str, Any] = {
        "checkpoint": f"s3://lake@bucket/{uuid.uuid4()}",
        "conf": CONF,
        "env_vars": world.names,
    }

    def execute(operator: BaseOperator) -> dict[str, Any]:
        ti = TaskInstance()
        ti.task_id = operator.task_id
        context: Any = {"ti": ti, "dag_run": SimpleNamespace(clear_number=0)}
        return operator.execute(context)  # type: ignore[no-any-return]

    def run() -> None:
        execute(StreamingPipelineOperator(task_id="stream", application=str(first), **driver))

    world.send(1500)
    run()
    upgrade = UpgradePipelineOperator(
        task_id="upgrade", application=str(second), shadow_commits=2, stable_after=0, **driver
    )
    assert execute(upgrade)["outcome"] == "done"
    world.send(900)
    run()  # of the version in use, whatever the task's own file is
    assert execute(RollbackPipelineOperator(task_id="back", **driver))["outcome"] == "rolled-back"
    world.send(300)
    run()
    assert execute(BackfillPipelineOperator(task_id="again", commits="2..3", **driver))["clean"]
    check_counts(world)
    _, claims = world.ledger()
    assert len({claim.version for claim in claims}) == 2
