"""Takes a savepoint of a pipeline from outside: its driver is asked, or, when none runs, it is taken here."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_exactlyonce.checkpoint import job as jobs
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoint, Savepoints
from airflow_provider_exactlyonce.checkpoint.whole import newest_whole
from airflow_provider_exactlyonce.control import commands
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.commands import SavepointRequest
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.lease import Lease, Life
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord

_POLL_SECONDS: Final = 0.2


def take(
    home: Home,
    pipeline: str,
    config: Mapping[str, Any],
    *,
    label: str | None = None,
    stop: bool = False,
    request: str | None = None,
    timeout_seconds: float = 300.0,
) -> Savepoint:
    """Take a savepoint of a pipeline, whether its driver runs or not.

    :param config: client configuration in librdkafka's names, for the ledger of a pipeline that is stopped
    :param stop: the driver begins no further batch, takes it, and ends
    :param request: hexadecimal digits; asked again with the same, the savepoint is taken once
    :param timeout_seconds: how long the driver may take; with ``stop`` it ends its batch first
    :raises RefusedError: when there is nothing to save
    :raises ExactlyOnceError: when the driver does not answer in time, or could not take it
    """
    request = request or uuid.uuid4().hex[:8]
    deadline = time.monotonic() + timeout_seconds
    try:
        while True:
            taken = _taken(home, request)
            if taken is not None:
                return taken
            held, life = leases.settle(home.lease)
            if held is None or life is not Life.ALIVE:
                if held is not None and life is Life.SILENT:
                    raise AlreadyRunningError(
                        f"the driver of {pipeline}, pid {held.pid} on {held.host}, gives no sign of life and holds the "
                        "pipeline; end it, then ask again"
                    )
                return _taken(home, request) or _take_here(home, pipeline, config, label=label, request=request)
            asked = SavepointRequest(request=request, token=held.token, label=label, stop=stop)
            taken = _ask(home, asked, held, deadline)
            if taken is not None:
                return taken
    finally:
        commands.forget_savepoint(home, request)


def _taken(home: Home, request: str) -> Savepoint | None:
    return next((one for one in Savepoints(home.savepoints).list() if one.id.endswith(f"-{request}")), None)


def _ask(home: Home, asked: SavepointRequest, driver: Lease, deadline: float) -> Savepoint | None:
    """Ask a driver and wait for its answer; None when the driver has ended without one."""
    commands.request_savepoint(home, asked)
    while True:
        answer = commands.savepoint_answer(home, asked.request)
        if answer is not None and answer.savepoint is not None:
            _wait_for_end(home, driver, deadline) if asked.stop else None
            return Savepoints(home.savepoints).get(answer.savepoint)
        if answer is not None:
            raise ExactlyOnceError(f"the driver (pid {driver.pid} on {driver.host}) took no savepoint: {answer.error}")
        if not _holds(home, driver):
            return None
        if time.monotonic() > deadline:
            raise ExactlyOnceError(
                f"the driver (pid {driver.pid} on {driver.host}) has not answered in time; its batch may be long, or "
                "it has not committed any yet. Ask again with a longer --timeout"
            )
        time.sleep(_POLL_SECONDS)


def _wait_for_end(home: Home, driver: Lease, deadline: float) -> None:
    while _holds(home, driver) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _holds(home: Home, driver: Lease) -> bool:
    held = leases.read(home.lease)
    return held is not None and held.token == driver.token and leases.life(held) is not Life.GONE


def _take_here(home: Home, pipeline: str, config: Mapping[str, Any], *, label: str | None, request: str) -> Savepoint:
    lineage = home.current()
    if lineage is None or home.pipeline() != pipeline:
        raise RefusedError(f"{home.path} is no home of pipeline {pipeline}: there is nothing to save")
    with leases.holding(home.lease, pipeline, f"savepoint-{request}"):
        checkpoint = Checkpoint(home.checkpoint(lineage.id))
        batch, defects = newest_whole(checkpoint)
        if batch is None:
            told = f": {'; '.join(map(str, defects[:3]))}" if defects else ""
            raise RefusedError(f"{checkpoint.path} has no whole batch, so there is nothing to save{told}")
        with LedgerReader(config, pipeline) as reader:
            record = record_of(reader, lineage.commit_of(batch))
        if record is None:
            raise RefusedError(
                f"the ledger of {pipeline} has no commit of batch {batch} of lineage {lineage.id}: start the pipeline, "
                "and take a savepoint after its first commit"
            )
        job = jobs.read(home, lineage.id, record.version)
        return Savepoints(home.savepoints).take(checkpoint, batch, record, job, label=label, request=request)


def record_of(reader: LedgerReader, commit: int) -> CommitRecord | None:
    """Look for a commit from the ledger's end on; it is the last one or the one before, unless files were lost."""
    tail = reader.tail()
    record = tail.commit if tail else None
    while record is not None and record.commit > commit:
        record = _at(reader, record.before.commit_offset)
    return record if record is not None and record.commit == commit else None


def _at(reader: LedgerReader, offset: int) -> CommitRecord | None:
    if offset < 0:
        return None
    found, record = next(reader.records(offset), (-1, None))
    return record if found == offset and isinstance(record, CommitRecord) else None
