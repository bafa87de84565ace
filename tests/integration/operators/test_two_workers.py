"""Two workers of one Airflow, as Celery and Kubernetes have them: hosts of their own, which share the store only."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.hooks.home import home_at
from tests.integration.operators.test_bucket import checkpoint as checkpoint
from tests.integration.operators.test_bucket import server as server
from tests.integration.operators.test_bucket import store as store
from tests.integration.operators.test_streaming import calls as calls
from tests.object_stores import environment_of_commands
from tests.waiting import eventually

#: A host: a name, processes and a folder of its own. It outlives the worker in it.
HOST = (
    *("/usr/bin/unshare", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "/bin/sh", "-ec"),
    'echo "$1" > /proc/sys/kernel/hostname; /bin/mount -t tmpfs none "$2"; shift 2; "$@" || true; exec /bin/sleep 1h',
    "sh",
)
CANNOT = subprocess.run([*HOST[:7], "/bin/true"], capture_output=True, text=True, check=False).stderr

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(CANNOT), reason=f"no host of its own can be made: {CANNOT.strip()}"),
]


@contextmanager
def worker(tmp_path: Path, name: str, checkpoint: str, *plans: str) -> Iterator[subprocess.Popen[str]]:
    """Run one try of the task on a host of its own until the host ends."""
    folder = tmp_path / name
    folder.mkdir()
    environment = environment_of_commands({"XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": "."})
    command = [*HOST, name, str(folder), sys.executable, "-m", "tests.integration.operators.worker"]
    with subprocess.Popen(
        [*command, str(folder), checkpoint, *plans], env=environment, stdout=subprocess.PIPE, text=True
    ) as host:
        try:
            yield host
        finally:
            host.kill()


def line_of(host: subprocess.Popen[str], part: str) -> str:
    """Wait until the worker prints a line with a part; return the line."""
    assert host.stdout is not None
    for line in host.stdout:
        print(line, end="")  # shown if the test fails
        if part in line:
            return line
    raise AssertionError(f"the worker has ended without {part!r}")


def kill_worker(host: subprocess.Popen[str]) -> None:
    """Kill the worker's process; what else runs on its host goes on."""
    (process,) = [
        process
        for process in psutil.Process(host.pid).children(recursive=True)
        if "tests.integration.operators.worker" in process.cmdline() and process.parent().name() == "sh"
    ]
    process.kill()


def holder(checkpoint: str) -> str | None:
    lease = leases.read(home_at(checkpoint).lease)
    return None if lease is None else lease.host


def test_a_driver_that_outlives_its_worker_is_taken_over_by_the_next_try_on_another_host(
    checkpoint: str, tmp_path: Path, calls: Callable[[], list[dict[str, Any]]]
) -> None:
    go = tmp_path / "go"
    with worker(tmp_path, "worker-a", checkpoint, f"take-lease commit wait-for={go} end=finished") as first:
        eventually(lambda: holder(checkpoint) == "worker-a", "the first driver has the lease")
        kill_worker(first)
        with worker(tmp_path, "worker-b", checkpoint, "exit=1") as second:
            line_of(second, "taking over the living driver")
            go.touch()
            result = json.loads(line_of(second, '"commit"'))
    assert (result["run"], result["commit"], len(calls())) == (1, 1, 1)


def test_a_driver_that_ends_with_its_workers_host_is_followed_by_one_on_another_host(
    checkpoint: str, tmp_path: Path, calls: Callable[[], list[dict[str, Any]]]
) -> None:
    with worker(tmp_path, "worker-a", checkpoint, "take-lease commit wait-for=/never") as first:
        eventually(lambda: holder(checkpoint) == "worker-a", "the first driver has the lease")
        first.kill()
        with worker(tmp_path, "worker-b", checkpoint, "take-lease commit end=finished") as second:
            assert holder(checkpoint) == "worker-a", "the second waits until the first can't live"
            result = json.loads(line_of(second, '"commit"'))
    assert (result["rows"], len(calls())) == (100, 2)
