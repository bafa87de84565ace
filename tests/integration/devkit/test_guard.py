"""A supervised server ends with its owner, a detached one doesn't. The server here is ``sleep``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.devkit import guard
from airflow_provider_exactlyonce.devkit.process import ProcessIdentity
from tests.waiting import HANG_SECONDS

# Starts a guard as the broker does, from a thread that ends at once, and says which processes there are.
OWNER = textwrap.dedent(
    """
    import os, subprocess, sys, threading, time

    def start():
        reading, writing = os.pipe()
        command = [sys.executable, "-I", "-S", sys.argv[1], sys.argv[2], str(os.getpid()), str(writing), "sleep", "60"]
        process = subprocess.Popen(command, pass_fds=[writing], start_new_session=True)
        os.close(writing)
        print(process.pid, os.read(reading, 100).decode().strip(), flush=True)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    time.sleep(float(sys.argv[3]))
    os._exit(0)
    """
)

StartOwner = Callable[[str, float], tuple[subprocess.Popen[str], ProcessIdentity, ProcessIdentity | None]]


@pytest.fixture
def start_owner(tmp_path: Path) -> Iterator[StartOwner]:
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    servers: list[ProcessIdentity] = []

    def start(mode: str, life_seconds: float) -> tuple[subprocess.Popen[str], ProcessIdentity, ProcessIdentity | None]:
        owner = subprocess.Popen(
            [sys.executable, str(script), guard.__file__, mode, str(life_seconds)], stdout=subprocess.PIPE, text=True
        )
        assert owner.stdout is not None
        with owner.stdout as answers:
            guard_pid, server_pid = map(int, answers.readline().split())
        server = ProcessIdentity.of(server_pid)
        assert server is not None
        servers.append(server)
        return owner, server, ProcessIdentity.of(guard_pid)

    yield start
    for server in servers:
        server.send(signal.SIGKILL)


def test_a_supervised_server_outlives_the_thread_but_not_the_owner_that_is_killed(start_owner: StartOwner) -> None:
    owner, server, _ = start_owner(guard.SUPERVISE, 60)
    assert not server.wait_until_gone(0.3)
    owner.kill()
    owner.wait()
    assert server.wait_until_gone(HANG_SECONDS)


def test_a_supervised_server_does_not_outlive_a_guard_that_is_killed(start_owner: StartOwner) -> None:
    owner, server, supervisor = start_owner(guard.SUPERVISE, 60)
    assert supervisor is not None
    supervisor.send(signal.SIGKILL)
    assert server.wait_until_gone(HANG_SECONDS)
    owner.kill()
    owner.wait()


def test_a_detached_server_stays_when_everybody_else_has_gone(start_owner: StartOwner) -> None:
    owner, server, _ = start_owner(guard.DETACH, 0)
    assert owner.wait() == 0
    assert not server.wait_until_gone(0.3)
    assert os.getsid(server.pid) == server.pid


def test_a_guard_whose_owner_has_gone_starts_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as owner:
        owner.wait()
    marker = tmp_path / "started"
    command = [sys.executable, guard.__file__, guard.SUPERVISE, str(owner.pid), "1", "touch", str(marker)]
    assert subprocess.run(command, check=False).returncode == guard.OWNER_IS_GONE
    assert not marker.exists()
