"""The intent: which driver a supervisor is about to start, written before it is started.

A supervisor that dies between the write and the start, or between the start and the first lease, leaves the start token
behind; the next supervisor looks for a process that carries it before it starts another.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.storage.store import ChangedError


@dataclass(frozen=True, kw_only=True)
class Intent:
    """One start of a driver.

    :param token: start token of the driver
    :param owner: its owner, for example a task instance; only the same owner takes the driver's end for its own
    :param until: ``available`` or ``forever``
    :param series: start token of the first driver of this series of restarts
    :param restarts: restarts before this start, in its series
    :param log: the driver's output on its host
    :param clears: how often the owner's DAG run had been cleared
    :param host: name of the host, or of the cluster, where it is started
    :param machine: where ``pid`` and ``starter`` mean these processes, as in the lease: hosts may have equal names. The
        name of a cluster; empty in an intent of release 0.1.0
    :param written: seconds since the epoch
    :param pid: the process that was started, 0 before the start; it leads its process group
    :param process_started: its start time in clock ticks since boot, so that a recycled pid isn't taken for it
    :param starter: pid of the process that starts it
    :param starter_started: when that was started, as above
    """

    token: str
    owner: str
    until: str
    series: str
    restarts: int
    log: str
    clears: int = 0
    host: str = field(default_factory=socket.gethostname)
    written: float = field(default_factory=time.time)
    pid: int = 0
    process_started: int = 0
    starter: int = 0
    starter_started: int = 0
    machine: str = ""

    @property
    def is_here(self) -> bool:
        """Whether the driver was started where this process sees it."""
        return process_identity.is_here(self.machine, self.host)

    @property
    def is_on_cluster(self) -> bool:
        """Whether a cluster's manager runs the driver."""
        return self.machine == self.host


def write(path: Path, intent: Intent) -> None:
    """Replace the intent."""
    json_store.overwrite(path, intent)


def announce(path: Path, intent: Intent, judged: str | None) -> None:
    """Write the intent of a start, unless another start was announced since no driver was found.

    :param judged: start token of the intent that was there then, None for none
    :raises ChangedError: when another was
    """

    def decide(current: Intent | None) -> Intent:
        if current is not None and current.token not in (judged, intent.token):
            raise ChangedError(f"{current.owner} starts a driver, and has announced it in {path} meanwhile")
        return intent

    json_store.change(path, Intent, decide)


def confirm(path: Path, intent: Intent) -> None:
    """Replace the announced intent of the same start, unless another process has judged the start over meanwhile."""
    json_store.change(
        path, Intent, lambda current: intent if current is not None and current.token == intent.token else None
    )


def read(path: Path) -> Intent | None:
    """Return the intent, None when there is none."""
    return json_store.load(path, Intent)


def remove(path: Path, token: str) -> None:
    """Remove the intent of a driver that has certainly ended, unless another has replaced it."""
    json_store.remove(path, Intent, lambda intent: intent is not None and intent.token == token)
