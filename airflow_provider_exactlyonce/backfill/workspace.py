"""Where backfills live: each request has a home of its own below the pipeline's, and they take turns.

::

    <home>/backfills/identity.json    what all of them are to their common ledger
    <home>/backfills/ledger.json      that ledger, as the last of them has left it
    <home>/backfills/turn.lock        held by the driver whose turn it is, for as long as its process lives
    <home>/backfills/<request>/       a home; besides what each home has:
        request.json                  what is asked for
        resolved.json                 what that means, fixed when it was begun
        result.json                   what it gave
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.backfill.request import BackfillRequest
from airflow_provider_exactlyonce.backfill.resolve import Resolved
from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.lease import Sure
from airflow_provider_exactlyonce.control.moving import SCHEMA
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.records import backfill_pipeline
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import HeldError

log = logging.getLogger("exactlyonce")

_POLL_SECONDS: Final = 0.2
_REMIND_SECONDS: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class SavedRequest:
    """The request that a home belongs to.

    :param pipeline: the pipeline whose source is run again
    :param home: the pipeline's own home
    """

    pipeline: str
    home: str
    request: BackfillRequest


@dataclass(frozen=True, kw_only=True)
class StartedBackfill:
    """A request as it was resolved when it was begun.

    :param version: of the job that runs it
    :param name: of the backfill: the same range, run by the same version to the same output, has the same
    """

    version: str
    name: str
    resolved: Resolved


@dataclass(frozen=True, kw_only=True)
class LedgerSeen:
    """The ledger of backfills, as the last of them has left it.

    :param commit: its newest commit
    """

    cluster_id: str
    topic_id: str
    commit: int


def make(home: Home, pipeline: str, request: BackfillRequest) -> Home:
    """Make a request's home, or find it; returns it.

    :param home: the pipeline's own
    :raises RefusedError: when that is another pipeline's
    """
    if home.pipeline() not in (None, pipeline):
        raise RefusedError(f"{home} is the home of pipeline {home.pipeline()}, not of {pipeline}")
    directory = home.backfills
    with contextlib.suppress(FileExistsError):
        json_store.write(directory / "identity.json", {"schema": SCHEMA, "id": str(uuid.uuid4())}, exclusive=True)
    identity = json_store.read(directory / "identity.json")
    if identity is None:
        raise RefusedError(f"{directory}/identity.json is torn; put it back from a copy of the home")
    request_home = Home(f"{home.location}/backfills/{request.name}", directory / request.name)
    body = {"schema": SCHEMA, "id": identity["id"], "pipeline": backfill_pipeline(pipeline)}
    saved_request = {"pipeline": pipeline, "home": str(home), "request": request.to_json()}
    json_store.write(request_home.path / "request.json", saved_request)
    with contextlib.suppress(FileExistsError):
        json_store.write(request_home.path / "home.json", body, exclusive=True)
    return request_home


def adopt(home: Home, identity: str) -> None:
    """Give the request's home, and those beside it, the identity that the ledger knows: the directory was lost.

    :param home: the request's
    """
    body = {"schema": SCHEMA, "id": identity}
    json_store.write(home.path.parent / "identity.json", body)
    json_store.write(home.path / "home.json", {**body, "pipeline": home.pipeline()})


def check_ledger(home: Home, tail: LedgerTail | None) -> None:
    """Check that the ledger of backfills still has all records of the pipeline's backfills.

    :param home: the request's
    :param tail: the ledger's end, None when there is none
    :raises RefusedError: when it was deleted, recreated or set back
    """
    ledger = known_ledger(home)
    if ledger is None:
        return
    was = (ledger.cluster_id, ledger.topic_id)
    if tail is not None and (tail.cluster_id, tail.topic_id) == was and tail.place.commit >= ledger.commit:
        return
    now = f"topic {tail.topic_id} of cluster {tail.cluster_id} with {tail.place.commit}" if tail else "gone"
    raise RefusedError(
        f"the ledger of backfills was topic {was[1]} of cluster {was[0]} with {ledger.commit} records, and is {now}: "
        "what was written would be written again. Check bootstrap.servers; if it was deleted on purpose, delete "
        f"{home.path.parent} as well"
    )


def known_ledger(home: Home) -> LedgerSeen | None:
    """Return the ledger of backfills as the last backfill saw it, None before the first.

    :param home: a request's
    """
    return json_store.load(home.path.parent / "ledger.json", LedgerSeen)


def note_ledger(home: Home, tail: LedgerTail) -> None:
    """Remember the ledger of backfills as it is.

    :param home: the request's
    """
    seen = LedgerSeen(cluster_id=tail.cluster_id, topic_id=tail.topic_id, commit=tail.place.commit)
    json_store.write(home.path.parent / "ledger.json", {"schema": SCHEMA, **asdict(seen)})


def asked_of(home: Home) -> SavedRequest:
    """Return the request that a home belongs to.

    :raises RefusedError: when it is no such home
    """
    body = json_store.read(home.path / "request.json")
    if body is None:
        raise RefusedError(f"{home} is no home of a backfill; exactlyonce backfill and the operator make one")
    request = BackfillRequest.from_json(body["request"])
    body |= {"home": str(owner_of(home)), "request": request}
    return codec.load(SavedRequest, body, f"{home}/request.json")


def owner_of(home: Home) -> Home:
    """Return the home of the request's pipeline; it may have been moved since."""
    return Home(home.path.parent.parent)


def begun(home: Home) -> StartedBackfill | None:
    """Return a request as it was resolved when it was begun, None when it was not begun."""
    body = json_store.read(home.path / "resolved.json")
    if body is None:
        return None
    resolved = Resolved.from_json(body["resolved"])
    return codec.load(StartedBackfill, {**body, "resolved": resolved}, f"{home}/resolved.json")


def begin(home: Home, what: StartedBackfill, sure: Sure) -> None:
    """Fix what a request means; forgets what an earlier version has left.

    :param sure: of the turn, see :func:`turn`
    :raises AlreadyRunningError: when the turn is another process's by now
    """
    forget(home, sure)
    json_store.write(home.path / "resolved.json", {**asdict(what), "resolved": what.resolved.to_json()})


def forget(home: Home, sure: Sure) -> None:
    """Remove checkpoints that are not needed any more.

    :param sure: of the turn, see :func:`turn`
    :raises AlreadyRunningError: when the turn is another process's by now
    """
    store, current = store_of(home.path), home.path / "current"
    pointer, lineage_names = store.read(current), store.names(home.lineages)
    with sure():  # after the look: nothing that who has the next turn makes is among them
        if pointer is not None:
            store.delete_if(current, pointer.version)
    for name in lineage_names:
        store.remove(home.lineages / name)
        store.delete(home.lineages / name)  # of what was not finished there is a mark, too


def write_result(home: Home, result: Mapping[str, Any]) -> None:
    """Store a backfill's result."""
    json_store.write(home.path / "result.json", result)


def result_of(home: Home) -> dict[str, Any] | None:
    """Return a backfill's result, None when it has not ended."""
    return json_store.read(home.path / "result.json")


def oldest_needed(home: Home) -> int | None:
    """Return the oldest commit that an unfinished backfill of a pipeline reads, None when there is none.

    :param home: the pipeline's own
    """
    directory, store = home.backfills, store_of(home.path)
    needed = [
        unfinished.resolved.base_commit + 1
        for name in store.names(directory)
        if store.facts(directory / name / "current") is not None
        and (unfinished := begun(Home(directory / name))) is not None
    ]
    return min(needed, default=None)


@contextlib.contextmanager
def turn(home: Home, give_up: Callable[[], None]) -> Iterator[Sure]:
    """Wait until no other backfill of the pipeline runs, and keep others waiting. Ends with the process at the latest.

    Gives what :func:`leases.alone` does.

    :param home: the request's
    :param give_up: asked from time to time; raises to end the wait
    """
    turn_path, began = home.path.parent / "turn", time.monotonic()
    reminded = began
    with contextlib.ExitStack() as held:
        while True:
            try:
                sure = held.enter_context(leases.alone(turn_path, home.path.name, note=f"pid {os.getpid()}, {home}"))
                break
            except HeldError as error:
                give_up()
                if time.monotonic() - reminded >= _REMIND_SECONDS or reminded == began:
                    reminded = time.monotonic()
                    log.info("another backfill of this pipeline runs, waiting for its end: %s", error.note or "unknown")
            time.sleep(_POLL_SECONDS)
        yield sure


def driver_arguments(*, accept_nondeterminism: bool = False) -> list[str]:
    """Return a driver's arguments besides its home, so that it runs the backfill."""
    return ["--backfill", *(["--accept-nondeterminism"] if accept_nondeterminism else [])]
