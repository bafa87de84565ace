"""The lease: which process runs a pipeline, and whether it is alive.

The lease does not protect the data (Kafka's fencing does); it keeps two drivers from fencing each other by mistake, and
lets a supervisor that comes back find the driver that it left.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.control import documents
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError

HEARTBEAT_SECONDS: Final = 2.0
STALE_SECONDS: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class Lease:
    """One driver's hold on a pipeline.

    :param token: start token, unique per driver start; given by the supervisor that launched it
    :param machine: host, boot and pid namespace: where ``pid`` means this process
    :param run: the run that the driver claimed, 0 before its claim
    :param process_started: the process's start time in clock ticks since boot, so that a recycled pid isn't taken for
    it
    :param heartbeat: seconds since the epoch at the last sign of life
    """

    pipeline: str
    token: str
    host: str
    machine: str
    pid: int
    process_started: int
    heartbeat: float
    run: int = 0


class Life(Enum):
    """What is known of the lease's holder."""

    NONE = "none"  # there is no lease
    ALIVE = "alive"
    GONE = "gone"  # the process has certainly ended
    SILENT = "silent"  # no heartbeat for STALE_SECONDS; stopped, cut off, or on another host


def take(path: Path, pipeline: str, token: str, *, run: int = 0) -> Lease:
    """Write the lease of this process, with its run once that is claimed, and return it."""
    lease = Lease(
        pipeline=pipeline,
        token=token,
        host=socket.gethostname(),
        machine=this_machine(),
        pid=os.getpid(),
        process_started=process_start(os.getpid()) or 0,
        heartbeat=time.time(),
        run=run,
    )
    documents.write(path, asdict(lease))
    return lease


def beat(path: Path, lease: Lease) -> Lease | None:
    """Renew the lease; returns None, and writes nothing, when another driver has taken it.

    A lease of a lower run is taken back: it is of a superseded driver that was frozen while it renewed.
    """
    try:
        held = read(path)
    except RefusedError:  # a driver of a newer release has taken it
        return None
    if held is not None and held.token != lease.token and not 0 < held.run < lease.run:
        return None
    renewed = replace(lease, heartbeat=time.time())
    documents.write(path, asdict(renewed), durable=False)
    return renewed


def release(path: Path, lease: Lease) -> None:
    """Remove the lease if it is still ours."""
    with contextlib.suppress(RefusedError):  # a newer release's is not ours
        held = read(path)
        if held is not None and held.token == lease.token:
            path.unlink(missing_ok=True)


@contextmanager
def holding(path: Path, pipeline: str, token: str) -> Iterator[None]:
    """Hold the lease of a pipeline that is stopped, so that no driver starts meanwhile.

    :raises AlreadyRunningError: at the end, when a driver has started all the same
    """
    mine = take(path, pipeline, token)
    done = threading.Event()

    def renew() -> None:
        while not done.wait(HEARTBEAT_SECONDS) and beat(path, mine) is not None:
            pass

    renewing = threading.Thread(target=renew, name="heartbeat", daemon=True)
    renewing.start()
    try:
        yield
        if beat(path, mine) is None:
            raise AlreadyRunningError(f"a driver of {pipeline} started meanwhile; try again")
    finally:
        done.set()
        renewing.join()
        release(path, mine)


def read(path: Path) -> Lease | None:
    """Return the lease, None when there is none."""
    return documents.load(path, Lease)


def life(lease: Lease | None, *, now: float | None = None) -> Life:
    """Judge whether the holder lives, from its process where it is on this host and from its heartbeat."""
    if lease is None:
        return Life.NONE
    if lease.machine == this_machine() and process_start(lease.pid) != lease.process_started:
        return Life.GONE
    silence = (time.time() if now is None else now) - lease.heartbeat
    return Life.SILENT if silence > STALE_SECONDS else Life.ALIVE


class Pulse:
    """Whether the holder of a lease beats, by our clock: its host may have another.

    :param token: its start token
    """

    def __init__(self, token: str) -> None:
        self._token: Final = token
        self._heartbeat = 0.0
        self._heard = time.monotonic()

    def life(self, lease: Lease | None) -> Life:
        """Return what the lease, just read, says of the holder; without a lease of its own it is none."""
        if lease is None or lease.token != self._token:
            self._heard = time.monotonic()
            return Life.NONE
        if life(lease, now=lease.heartbeat) is Life.GONE:
            return Life.GONE
        if lease.heartbeat != self._heartbeat:
            self._heartbeat, self._heard = lease.heartbeat, time.monotonic()
        return Life.SILENT if time.monotonic() - self._heard > STALE_SECONDS else Life.ALIVE


def settle(path: Path, *, poll_seconds: float = 0.2) -> tuple[Lease | None, Life]:
    """Watch the lease until its holder's life is certain: it beats, has ended, or stays silent.

    Clocks of other hosts don't matter: what counts is that the heartbeat changes. Takes less than
    :data:`HEARTBEAT_SECONDS` for a healthy holder, :data:`STALE_SECONDS` for a silent one.
    """
    first = read(path)
    deadline = time.monotonic() + STALE_SECONDS
    while True:
        lease = read(path)
        if lease is None:
            return None, Life.NONE
        if life(lease, now=lease.heartbeat) is Life.GONE:
            return lease, Life.GONE
        if first is None or (lease.token, lease.heartbeat) != (first.token, first.heartbeat):
            return lease, Life.ALIVE
        if time.monotonic() >= deadline:
            return lease, Life.SILENT
        time.sleep(poll_seconds)


@functools.cache
def this_machine() -> str:
    """Return what tells this host, since it booted, and this pid namespace from all others."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"


def process_start(pid: int) -> int | None:
    """Return when a process of this host started, in clock ticks since boot; None when it has ended or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])
