"""Starts a driver; its intent is on disk before its process is there."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import processes
from airflow_provider_exactlyonce.control.clusters import TOKEN_PLACEHOLDER
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.processes import ChildDriver
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError

_LOGS_KEPT: Final = 20


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to start a driver.

    :param printable: the command with its secrets masked
    :param environment: added to this process's own, without None values; secrets belong here
    """

    command: Sequence[str]
    printable: str
    environment: Mapping[str, str | None]


def start(
    home: Home,
    launch: Launch,
    intent: Intent,
    *,
    judged: str | None,
    announced: Callable[[], None] = lambda: None,
    standby: ChildDriver | None = None,
) -> ChildDriver:
    """Start a driver, or the submission of one to a cluster; it outlives this process.

    :param intent: written before the start, and with the process's id after it
    :param judged: start token of the intent that was there when no driver was found, None for none
    :param announced: called between that and the start of the process
    :param standby: the process that waits for the intent, instead of a new one
    :raises ChangedError: when another process has announced a start since then; nothing was started
    :raises OSError: when the program can't be started; leaves no intent, like an error that ``announced`` raises
    :raises OutcomeUnknownError: when the home does not answer; the driver may have been started
    """
    intent = replace(intent, starter=os.getpid(), starter_started=process_identity.process_start(os.getpid()) or 0)
    with _sure(home):
        intents.announce(home.intent, intent, judged)
    try:
        announced()
        driver = standby or start_process(home, launch, intent.token, Path(intent.log))
    except (ExactlyOnceError, OSError):
        intents.remove(home.intent, intent.token)
        raise
    if not intent.is_here:  # it is the submission's process, which ends before the driver
        return driver
    started = process_identity.process_start(driver.process.pid) or 0
    with _sure(home):
        intents.confirm(home.intent, replace(intent, pid=driver.process.pid, process_started=started))
    return driver


def start_process(home: Home, launch: Launch, token: str, log: Path) -> ChildDriver:
    """Start the process of a launch, without an intent."""
    return processes.start(
        [part.replace(TOKEN_PLACEHOLDER, token) for part in launch.command],
        token=token,
        environment=launch.environment,
        directory=home.here / "work",
        log=log,
    )


@contextmanager
def _sure(home: Home) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # another one says that the program can't be started
        raise OutcomeUnknownError(f"{home.intent} can't be written: {error}") from error


def next_log(home: Home) -> Path:
    """Return the path of the next driver's output; forgets the oldest, but not that of the newest start."""
    home.logs.mkdir(mode=0o700, parents=True, exist_ok=True)  # the process writes it itself
    store = store_of(home.logs)
    logs = sorted(fnmatch.filter(store.names(home.logs), "driver-*.log"), key=_number)
    intent = intents.read(home.intent)  # there may be many standbys after it
    for log in logs[: max(0, len(logs) - _LOGS_KEPT + 1)]:
        if intent is None or intent.log != str(home.logs / log):
            store.delete(home.logs / log)
    return home.logs / f"driver-{_number(logs[-1]) + 1 if logs else 1}.log"


def _number(log: str) -> int:
    digits = log.removeprefix("driver-").removesuffix(".log")
    return int(digits) if digits.isdecimal() else 0
