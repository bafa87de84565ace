"""A process is known by more than its id."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from airflow_provider_exactlyonce.devkit.process import ProcessIdentity
from tests.waiting import HANG_SECONDS, eventually


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_a_living_process_is_recognised_signalled_and_awaited(sleeper: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(sleeper.pid)
    assert identity is not None
    assert identity.is_alive()
    assert not identity.wait_until_gone(0.05)
    identity.send(signal.SIGTERM)
    assert identity.wait_until_gone(HANG_SECONDS)
    assert sleeper.wait() == -signal.SIGTERM
    assert not identity.is_alive()
    identity.send(signal.SIGTERM)


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another boot"}])
def test_a_process_that_merely_has_the_id_is_neither_signalled_nor_awaited(
    sleeper: subprocess.Popen[bytes], change: dict[str, object]
) -> None:
    identity = ProcessIdentity.of(sleeper.pid)
    assert identity is not None
    recycled = dataclasses.replace(identity, **change)  # type: ignore[arg-type]
    assert not recycled.is_alive()
    recycled.send(signal.SIGKILL)
    assert recycled.wait_until_gone(0)
    assert sleeper.poll() is None


def test_a_zombie_is_gone() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        eventually(lambda: ProcessIdentity.of(child) is None, "a zombie is gone", poll_seconds=0.01)
    finally:
        os.waitpid(child, 0)


def test_an_id_that_nobody_has_is_no_process() -> None:
    assert ProcessIdentity.of(2**22 + 1) is None
