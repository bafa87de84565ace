"""The lease: which process runs a pipeline, and whether it is alive.

The lease does not protect the data (Kafka's fencing does); it keeps two drivers from fencing each other by mistake, and
lets a supervisor that comes back find the driver that it left. It protects the home: a process that changes the lineage
in use holds the lease, and changes it in :meth:`Hold.sure`. The lease is changed only if it is as it was judged, so
that of two processes that take it one succeeds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final, TypeAlias

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import ChangedError, HeldError

HEARTBEAT_SECONDS: Final = 2.0
STALE_SECONDS: Final = 10.0
_OBSERVE_SECONDS: Final = 0.2

#: See :meth:`Hold.sure`.
Sure: TypeAlias = Callable[[], contextlib.AbstractContextManager[None]]

_log = logging.getLogger(__name__)


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


class Liveness(Enum):
    """The observed state of the lease's holder; commands print the values."""

    NONE = "none"  # there is no lease
    ALIVE = "alive"
    DEAD = "gone"  # the process has certainly ended
    STALE = "silent"  # no heartbeat for STALE_SECONDS; stopped, cut off, or on another host


def acquire(path: Path, pipeline: str, token: str, *, run: int = 0) -> Lease:
    """Write the lease of this process, with its run once that is claimed, and return it; its former holder loses it."""
    mine = _lease_of_this_process(pipeline, token, run=run)
    with _frozen_holds_it():
        json_store.overwrite(path, mine)
    return mine


def take_over(path: Path, pipeline: str, token: str, judged: Lease | None) -> Lease:
    """Take the lease that was found free, unless another process has done so since.

    :param judged: the lease that was found, None for none
    :raises AlreadyRunningError: when another process was faster
    """
    mine = _lease_of_this_process(pipeline, token)

    def decide(held: Lease | None) -> Lease:
        if held is not None and held.token != token and not is_left(held, judged):
            raise AlreadyRunningError(f"pid {held.pid} on {held.host} has taken pipeline {pipeline} meanwhile")
        return mine

    with _frozen_holds_it():
        json_store.change(path, Lease, decide)
    return mine


def is_left(held: Lease, judged: Lease | None) -> bool:
    """Whether the holder is gone, or the lease is still as it was found left: ``judged``."""
    if is_dead(held):
        return True
    return judged is not None and (held.token, held.heartbeat) == (judged.token, judged.heartbeat)


def _lease_of_this_process(pipeline: str, token: str, *, run: int = 0) -> Lease:
    return Lease(
        pipeline=pipeline,
        token=token,
        host=socket.gethostname(),
        machine=process_identity.this_machine(),
        pid=os.getpid(),
        process_started=process_identity.process_start(os.getpid()) or 0,
        heartbeat=time.time(),
        run=run,
    )


def renew(path: Path, lease: Lease, *, again: Callable[[], bool] = lambda: True) -> Lease | None:
    """Renew the lease; returns None, and writes nothing, when another driver has taken it.

    A lease of a lower run is taken back: it is of a superseded driver that was frozen while it renewed.

    :param again: asked where there is no lease, whether to take it again: another process may have had and released it
    """

    def decide(held: Lease | None) -> Lease | None:
        if held is None and not again():
            return None
        if held is not None and held.token != lease.token and not 0 < held.run < lease.run:
            return None
        return replace(lease, heartbeat=time.time())

    with _frozen_holds_it():
        try:
            return json_store.change(path, Lease, decide, durable=False)
        except RefusedError:  # a driver of a newer release has taken it
            return None


def release(path: Path, lease: Lease) -> None:
    """Remove the lease if it is still ours."""
    with _frozen_holds_it(), contextlib.suppress(RefusedError):  # a newer release's is not ours
        json_store.remove(path, Lease, lambda held: held is not None and held.token == lease.token)


def let_go(path: Path, lease: Lease) -> None:
    """Do :func:`release` at an end that has its own outcome; a lease that can't be removed falls silent by itself."""
    try:
        release(path, lease)
    except (OSError, ExactlyOnceError) as error:
        _log.warning("the lease of pipeline %s was not released: %s", lease.pipeline, error)


class Hold:
    """The hold of a stopped pipeline, by a process that works on its home.

    :ivar pointer: ``current`` of the home, as it was when the hold began
    """

    def __init__(self, path: Path, lease: Lease) -> None:
        self._path: Final = path
        self._lease: Final = lease
        self.pointer: Final = store_of(path).read(path.parents[1] / "current")

    @contextmanager
    def sure(self) -> Iterator[None]:
        """Run the block only while the pipeline is ours; no other process can take the pipeline over before its end.

        A process may have been frozen for longer than its lease lives, without noticing. So keep the block short. Where
        the file system has no locks, another process can, and then :meth:`Home.switch` fails: so call that first.

        :raises AlreadyRunningError: when another process has taken it over
        """
        with contextlib.ExitStack() as stack:
            if store_of(self._path).has_locks:
                with _frozen_holds_it():
                    stack.enter_context(store_of(self._path).holding(self._path))
                check_held(self._path, self._lease)
                json_store.write(self._path, asdict(replace(self._lease, heartbeat=time.time())), durable=False)
            elif renew(self._path, self._lease) is None:
                check_held(self._path, self._lease)
            try:
                yield
            except ChangedError as error:
                raise AlreadyRunningError(
                    f"another process has taken pipeline {self._lease.pipeline} over meanwhile: {error}. Try again"
                ) from error


def check_held(path: Path, lease: Lease) -> None:
    """Check that a lease is still held.

    :raises AlreadyRunningError: when another process has taken it, or has taken and released it
    """
    held = read(path)
    if held is None or held.token != lease.token:
        holder = "another process" if held is None else f"pid {held.pid} on {held.host}"
        raise AlreadyRunningError(f"{holder} has taken pipeline {lease.pipeline} over meanwhile; look, and try again")


@contextmanager
def holding(path: Path, pipeline: str, token: str, judged: Lease | None = None) -> Iterator[Hold]:
    """Hold the lease of a pipeline that is stopped, so that no driver starts meanwhile.

    :param judged: the lease that :func:`check_stopped` has found, None for none
    :raises AlreadyRunningError: when another process has taken it since; or at the end, when one took it all the same
    """
    mine = take_over(path, pipeline, token, judged)
    done = threading.Event()

    def keep_renewing() -> None:
        while not done.wait(heartbeat_seconds(path)):
            try:
                if renew(path, mine) is None:
                    return
            except Exception as error:  # a sign of life must not end with one failure
                _log.warning("the lease of pipeline %s was not renewed: %s", pipeline, error)

    heartbeat_thread = threading.Thread(target=keep_renewing, name="heartbeat", daemon=True)
    heartbeat_thread.start()
    try:
        yield Hold(path, mine)
        if renew(path, mine) is None:
            raise AlreadyRunningError(f"a driver of {pipeline} started meanwhile; try again")
    finally:
        done.set()
        heartbeat_thread.join()
        let_go(path, mine)


def holding_stopped(path: Path, pipeline: str, who: str) -> contextlib.AbstractContextManager[Hold]:
    """Hold a pipeline as :func:`holding` does, after :func:`check_stopped` has found that no driver lives.

    :param who: the work on the home
    :raises AlreadyRunningError: when a driver lives, and as :func:`holding`
    """
    return holding(path, pipeline, f"{who}-{uuid.uuid4()}", check_stopped(path, pipeline))


@contextmanager
def alone(place: Path, pipeline: str, *, note: str = "") -> Iterator[Sure]:
    """Keep everybody else out who works alone on a place: by a lock, or by a lease where the file system has none.

    A lock lasts as long as its process, a lease does not. So it gives what :meth:`Hold.sure` does, for either.

    :param note: describes the holder in others' messages
    :raises HeldError: when another process does
    :raises AlreadyRunningError: at the end, when one did meanwhile: we were silent for too long
    """
    with contextlib.ExitStack() as stack:
        if store_of(place).has_locks:
            stack.enter_context(store_of(place).holding(place, seconds=0, note=note))
            sure: Sure = contextlib.nullcontext
        else:
            lock = place.with_name(f"{place.name}.lease.json")
            try:
                sure = stack.enter_context(holding_stopped(lock, pipeline, "alone")).sure
            except AlreadyRunningError as error:
                raise HeldError(str(error), "") from error
        yield sure


@contextmanager
def _frozen_holds_it() -> Iterator[None]:
    """Name the frozen process that keeps the lease from being changed.

    :raises AlreadyRunningError: when another process was frozen while it did
    """
    try:
        yield
    except HeldError as error:
        raise AlreadyRunningError(f"{error}: it is frozen; end it") from error


def read(path: Path) -> Lease | None:
    """Return the lease, None when there is none."""
    return json_store.load(path, Lease)


def is_dead(lease: Lease) -> bool:
    """Whether the holder has certainly ended: its process was on this host."""
    is_here = lease.machine == process_identity.this_machine()
    return is_here and process_identity.process_start(lease.pid) != lease.process_started


def look(path: Path) -> tuple[Lease | None, Liveness]:
    """Read the lease and judge at once whether its holder lives, by the wall clocks of both hosts."""
    lease = read(path)
    if lease is None:
        return None, Liveness.NONE
    if is_dead(lease):
        return lease, Liveness.DEAD
    return lease, Liveness.STALE if time.time() - lease.heartbeat > stale_seconds(path) else Liveness.ALIVE


def heartbeat_seconds(path: Path) -> float:
    """Return how often a driver gives a sign of life: it writes lease and status each time."""
    return max(HEARTBEAT_SECONDS, 2 * store_of(path).seconds_per_read)


def stale_seconds(path: Path) -> float:
    """Return after how long without a heartbeat the holder of a lease counts as silent."""
    return max(STALE_SECONDS, store_of(path).silence_seconds)


class HeartbeatMonitor:
    """Whether the holder of a lease beats, by our clock: its host may have another.

    A file system that answers late holds up the heartbeat, too. So the time of a read is not counted as silence.
    """

    def __init__(self, token: str, path: Path) -> None:
        self._token: Final = token
        self._path: Final = path
        self._heartbeat = 0.0
        self._heard_at = time.monotonic()

    def look(self) -> Liveness:
        """Read the lease and return the holder's state; ``NONE`` when the lease is another holder's, or missing.

        :raises OSError: when the file system does not answer; that time does not count as the holder's silence
        """
        asked_at = time.monotonic()
        try:
            lease = read(self._path)
        except OSError:
            self._heard_at = time.monotonic()
            raise
        self.not_counting(time.monotonic() - asked_at)
        if lease is None or lease.token != self._token:
            self._heard_at = time.monotonic()
            return Liveness.NONE
        if is_dead(lease):
            return Liveness.DEAD
        if lease.heartbeat != self._heartbeat:
            self._heartbeat, self._heard_at = lease.heartbeat, time.monotonic()
        return Liveness.STALE if time.monotonic() - self._heard_at > stale_seconds(self._path) else Liveness.ALIVE

    def not_counting(self, seconds: float) -> None:
        """Leave out of the silence for how long we were held up, and the holder perhaps, too."""
        self._heard_at += seconds


def observe(path: Path, *, while_silent: Callable[[], None] = lambda: None) -> tuple[Lease | None, Liveness]:
    """Watch the lease until its holder's life is certain: it beats, has ended, or stays silent.

    Clocks of other hosts don't matter: what counts is that the heartbeat changes. Takes less than
    :func:`heartbeat_seconds` for a healthy holder, :func:`stale_seconds` for a silent one, and the time of the reads.

    :param while_silent: called as often as a heartbeat was due that did not come; raises when there can be none
    """
    first, pause = read(path), max(_OBSERVE_SECONDS, store_of(path).seconds_per_read / 5)
    heard_at, due = time.monotonic(), heartbeat_seconds(path)
    while True:
        asked_at = time.monotonic()
        if asked_at - heard_at >= min(due, stale_seconds(path)):
            while_silent()
            due += heartbeat_seconds(path)
        lease = read(path)
        heard_at += time.monotonic() - asked_at  # as in HeartbeatMonitor
        if lease is None:
            return None, Liveness.NONE
        if is_dead(lease):
            return lease, Liveness.DEAD
        if first is None or (lease.token, lease.heartbeat) != (first.token, first.heartbeat):
            return lease, Liveness.ALIVE
        if time.monotonic() - heard_at >= stale_seconds(path):
            return lease, Liveness.STALE
        time.sleep(pause)


def check_stopped(path: Path, pipeline: str) -> Lease | None:
    """Return the lease that a process has left which is gone or silent, None when there is none.

    :raises AlreadyRunningError: when its holder lives
    """
    held, life = observe(path)
    if held is not None and life is Liveness.ALIVE:
        raise AlreadyRunningError(f"pipeline {pipeline} runs: pid {held.pid} on {held.host}. Stop it first")
    return held
