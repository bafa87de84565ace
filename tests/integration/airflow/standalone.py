"""All parts of Airflow as one command starts them, for tests that need its DAG processor."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import waiting
from tests.integration.airflow.conftest import Airflow
from tests.ports import free_ports


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
            airflow.command("standalone"),
            env=settings,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=heed_interrupts,
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
        for pid in airflow.processes():
            os.kill(pid, signal.SIGKILL)


def heed_interrupts() -> None:
    """Undo what a shell does to a background job's children: they would ignore SIGINT, and never end by it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def eventually(
    condition: Callable[[], object], what: str, output: Path, hang_seconds: float = waiting.HANG_SECONDS
) -> None:
    waiting.eventually(
        condition,
        lambda: f"{what}\n{output.read_text()[-6000:]}",
        poll_seconds=0.3,
        hang_seconds=hang_seconds,
    )
