"""The DAG with a real scheduler, triggerer, DAG processor, API server and executor; and nothing of them is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import IsolationLevel

from tests import waiting
from tests.integration.airflow.conftest import Airflow, names_of
from tests.integration.streaming.harness import World, check_counts, end_offsets

DAG_ID, RUN_ID = "gate_beside_stream", "by-hand"


def free_ports(number: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def standalone(airflow: Airflow, environment: dict[str, str]) -> Iterator[Path]:
    """Run all of Airflow's parts; gives the file of their output once tasks can be run."""
    port, log_port, trigger_log_port = free_ports(3)
    address = f"http://127.0.0.1:{port}"
    settings = {
        **airflow.environment,
        **environment,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": address,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(log_port),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_log_port),
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "30",  # a busy machine starts five programs at once
    }
    output = airflow.home / "standalone.log"
    with output.open("wb") as file:
        process = subprocess.Popen(
            airflow.command("standalone"), env=settings, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        eventually(lambda: answers(port), "the API server answers", output)
        yield output
    finally:
        process.send_signal(signal.SIGINT)  # it ends its parts in order
        try:
            process.wait(waiting.HANG_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with contextlib.suppress(ProcessLookupError):  # its parts' parts hide their environment behind a title
            os.killpg(process.pid, signal.SIGKILL)
        for pid in processes_of(airflow.home):
            os.kill(pid, signal.SIGKILL)


def processes_of(home: Path) -> list[int]:
    """Return the processes of an Airflow home, whatever sessions they have made for themselves."""
    wanted, found = f"AIRFLOW_HOME={home}".encode(), []
    for directory in Path("/proc").iterdir():
        try:
            if directory.name.isdigit() and wanted in (directory / "environ").read_bytes().split(b"\0"):
                found.append(int(directory.name))
        except OSError:
            continue
    return found


def eventually(
    condition: Callable[[], object], what: str, output: Path, hang_seconds: float = waiting.HANG_SECONDS
) -> None:
    waiting.eventually(
        condition,
        lambda: f"{what}\n{output.read_text()[-6000:]}",
        poll_seconds=0.3,
        hang_seconds=hang_seconds,
    )


def test_a_deferred_gate_opens_when_the_stream_beside_it_has_committed_everything(
    airflow: Airflow, world: World, tmp_path: Path
) -> None:
    world.send(1000)
    ends = end_offsets(world.config, world.source, IsolationLevel.READ_COMMITTED)
    result = tmp_path / "result.json"
    names = names_of(world, result, TEST_OFFSETS=json.dumps({world.source: ends}))
    with standalone(airflow, names) as output:
        known = "SELECT 1 FROM serialized_dag WHERE dag_id = ?"
        eventually(lambda: airflow.query(known, DAG_ID), "the DAG is known", output)
        airflow.run(airflow.command("dags", "trigger", DAG_ID, "--run-id", RUN_ID), names)

        def state() -> str:
            return str(airflow.query("SELECT state FROM dag_run WHERE dag_id = ? AND run_id = ?", DAG_ID, RUN_ID)[0][0])

        eventually(lambda: state() in ("success", "failed"), "the run ends", output)
        assert state() == "success", airflow.task_logs()

    check_counts(world)
    commits, _ = world.ledger()
    found = json.loads(result.read_text())
    assert found == {
        "rows": sum(commit.rows for commit in commits),
        "gate": {"pipeline": world.pipeline, "commit": 3, "idle": False, "late_rows": 0},
        "stream": None,
    }
    waits = [log.read_text() for log in (airflow.home / "logs").rglob("*.trigger.*.log")]
    assert any(f"waiting: {world.pipeline}: " in text for text in waits), "it was the triggerer that waited"
    assert processes_of(airflow.home) == []
