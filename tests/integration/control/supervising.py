"""Supervisors of scripts that speak the control contract, and what tests see of both."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.supervision import Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from tests.waiting import HANG_SECONDS, eventually

SCRIPT = Path(__file__).with_name("contract_driver.py")
AT_ONCE = RestartStrategy.fixed_delay(attempts=3, delay=timedelta(0))
SECRET = "kafka-password-4711"


def notes(home: Home, event: str | None = None) -> list[dict[str, object]]:
    path = home.control / "notes.jsonl"
    all_notes = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [note for note in all_notes if event in (None, note["event"])]


def launch(home: Home, *plans: str, until: str = "available") -> Launch:
    command = [sys.executable, str(SCRIPT), "--home", str(home.path), "--until", until, *plans]
    return Launch(command=command, printable=" ".join(command), environment={"EXACTLYONCE_KAFKA": SECRET})


def supervisor(
    home: Home,
    *plans: str,
    owner: str = "shop/stream/run1/-1",
    until: str = "available",
    strategy: RestartStrategy = AT_ONCE,
    stop_timeout_seconds: float = HANG_SECONDS,
    command: Sequence[str] = (),
    on_delay: Callable[[Intent, float], None] = lambda dead, due: None,
    left: Intent | None = None,
) -> Supervisor:
    how = launch(home, *plans, until=until)
    return Supervisor(
        home,
        replace(how, command=command or how.command),
        Supervision(
            owner=owner,
            until=until,
            strategy=strategy,
            poll_seconds=0.05,
            stop_timeout_seconds=stop_timeout_seconds,
            on_delay=on_delay,
        ),
        left=left,
    )


def supervising_process(
    home: Home, plan: str, *, owner: str = "shop/stream/run1/-1", before: str = "", **how: Any
) -> subprocess.Popen[bytes]:
    """Let another process supervise.

    :param before: Python code, done first
    :param how: of the process
    """
    code = f"""
{before}
from datetime import timedelta
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.supervision import IfRunning, Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
command = {list(launch(home, plan).command)!r}
launch = Launch(command=command, printable="", environment={{}})
for _ in Supervisor(Home({str(home.path)!r}), launch, Supervision(owner={owner!r}, until="available",
                    strategy=RestartStrategy.none())).run():
    pass
"""
    return subprocess.Popen([sys.executable, "-c", code], **how)


def first_supervisor_killed(home: Home, plan: str, *, until_note: str, owner: str = "shop/stream/run1/-1") -> None:
    """Let another process supervise, and SIGKILL it once its driver has written a note."""
    process = supervising_process(home, plan, owner=owner)
    wait_for(lambda: notes(home, until_note))
    process.kill()
    process.wait()


def wait_for(condition: Callable[[], object]) -> None:
    eventually(condition, "the condition", poll_seconds=0.02)


def committed(home: Home) -> Callable[[], bool]:
    """Return the condition that a driver has committed."""

    def condition() -> bool:
        status = statuses.read(home.status)
        return status is not None and status.commit > 0

    return condition
