"""The settings with which an upgrade starts processes, given by operators and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.control import processes
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.ledger.source_clusters import FindConnection
from airflow_provider_exactlyonce.storage.opening import location_of

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.control.launching import Launch

_CHECK_SECONDS: Final = 600.0
_SHOWN_CHARACTERS: Final = 2000


@dataclass(frozen=True, kw_only=True)
class UpgradeEnvironment:
    """How to reach the cluster, and how to start the drivers and the shadow run.

    :param config: returns client configuration in librdkafka's names
    :param launch: how spark-submit runs a file with arguments: the drivers, and the shadow run
    :param driver_arguments: further arguments of the job
    :param conf: Spark settings of the new version
    :param tell: called with messages on the progress
    :param find: returns the configuration of a connection that a source names
    """

    config: Callable[[], Mapping[str, Any]]
    launch: Callable[[str, Sequence[str]], Launch]
    driver_arguments: Sequence[str] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    tell: Callable[[str], None] = lambda _: None
    find: FindConnection | None = None


def check_version(tools: UpgradeEnvironment, application: str, pipeline: str, savepoint: Path) -> dict[str, Any]:
    """Compare a version with a savepoint, in a process of its own; returns the answer of ``exactlyonce check``.

    :param savepoint: its directory
    :raises RefusedError: when the job can't be loaded or planned
    :raises ExactlyOnceError: when the process failed, or has taken too long
    """
    # Only what changes a plan: the rest may hold passwords, and a command line is seen by all.
    sql_settings = {name: value for name, value in tools.conf.items() if name.startswith("spark.sql.")}
    conf = [part for name, value in sql_settings.items() for part in ("--conf", f"{name}={value}")]
    name_arguments = ["--if-several", pipeline]  # the name of an only one is compared
    arguments = ["check", application, "--against", location_of(savepoint), *name_arguments, "--json", *conf]
    environment = processes.environment_with(tools.launch(application, []).environment)
    try:
        completed = subprocess.run(
            [sys.executable, "-m", "airflow_provider_exactlyonce.cli.main", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CHECK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ExactlyOnceError(
            f"the check of {application} was ended after {_CHECK_SECONDS:g} s: this machine is too busy, or something "
            f"that the job does when it is imported takes so long. `exactlyonce check {application} --against "
            f"{location_of(savepoint)}` shows how far it gets"
        ) from error
    answer = _answer_in(completed.stdout)
    if completed.returncode in (0, RefusedError.exit_code) and answer is not None:
        return answer
    output = completed.stderr.strip()[-_SHOWN_CHARACTERS:]
    if completed.returncode == RefusedError.exit_code:
        # The command's last line is the error's name, its message, and the command that prints its page.
        last_line = output.splitlines()[-1] if output else f": {application} was refused"
        raise RefusedError(last_line.partition(": ")[2].rpartition(" (exactlyonce help ")[0] or last_line)
    raise ExactlyOnceError(f"the check of {application} ended with exit code {completed.returncode}: {output}")


def _answer_in(output: str) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError:
        return None
    return answer


def run_to_end(launch: Launch, log: Path, token: str) -> int:
    """Run a program to its end; returns its exit code.

    :param log: receives its output
    :param token: in its environment: remaining processes of an earlier run with the same token are killed first
    """
    processes.kill_leftovers(token)
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(log, "wb", opener=partial(os.open, mode=0o600)) as output:
        completed = subprocess.run(
            list(launch.command),
            env=processes.environment_with({**launch.environment, processes.TOKEN_VARIABLE: token}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return completed.returncode
