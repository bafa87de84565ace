"""Brings a home whose checkpoint is damaged to something that a driver can start from; nobody is fenced by it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_exactlyonce.checkpoint import job as jobs
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint, parse_offsets
from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
from airflow_provider_exactlyonce.checkpoint.request import record_of
from airflow_provider_exactlyonce.checkpoint.restart import (
    RestartDecision,
    RestartSource,
    decide,
    removals_for,
    repair_query_id,
)
from airflow_provider_exactlyonce.checkpoint.restore import RestoreRequest, restore
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home, Lineage, is_deleted
from airflow_provider_exactlyonce.control.lease import Hold
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError
from airflow_provider_exactlyonce.ledger.reader import LedgerReader, LedgerTail
from airflow_provider_exactlyonce.storage.opening import store_of

log = logging.getLogger("exactlyonce")


def recover(
    home: Home,
    pipeline: str,
    config: Mapping[str, Any],
    tail: LedgerTail | None,
    *,
    allow_empty_state: bool = False,
    accept_nondeterminism: bool = False,
) -> RestartSource:
    """Make the current lineage one that can be started; returns what it goes on from.

    :param config: client configuration in librdkafka's names
    :param tail: the ledger's end, None when there is no ledger yet
    :param allow_empty_state: go on with empty state when it is lost
    :param accept_nondeterminism: replayed commits may give other rows than were committed
    :raises RefusedError: when state was there and is lost
    """
    lineage = home.current()
    if lineage is None or tail is None or tail.claim is None:
        return RestartSource.CHECKPOINT
    checkpoint, savepoints = Checkpoint(home.checkpoint(lineage.id)), Savepoints(home.savepoints)
    deleted = is_deleted(home, lineage.id)
    if not deleted and repair_query_id(checkpoint, lineage.id):
        log.warning("metadata of %s was missing or torn, and is written again", checkpoint.path)
    decision = decide(checkpoint, savepoints, lineage, tail.place.commit, deleted=deleted)
    if decision.source is RestartSource.CHECKPOINT:
        return decision.source
    log.warning("%s can't be gone on from: %s", checkpoint.path, decision.damage)
    had_no_commit = deleted and tail.place.commit == 0
    if decision.source is RestartSource.NOTHING and not (allow_empty_state or had_no_commit):
        raise RefusedError(
            f"the state of pipeline {pipeline} is lost: {decision.damage}. Its ledger is at commit "
            f"{tail.place.commit}, and there is no whole savepoint in {home.savepoints}. Put lineage {lineage.id} back "
            "from a copy of the home; or start once with --allow-empty-state, which goes on after that commit's source "
            "offsets as if nothing had been seen before"
        )
    if decision.source is RestartSource.NEWEST_AGAIN:
        with leases.holding_stopped(home.lease, pipeline, "recovery") as hold:
            removals = removals_for(checkpoint, decision)
            _check_still(decision, home, lineage, tail)  # after the look at the files
            with hold.sure():
                for remove in removals:
                    remove()
        log.warning("batch %s of %s is run again", f"{(decision.batch or 0) + 1:,}", checkpoint.path)
    elif decision.source is RestartSource.NOTHING:
        with leases.holding_stopped(home.lease, pipeline, "recovery") as hold:
            _check_still(decision, home, lineage, tail)
            with hold.sure():
                empty = begin_empty(home, lineage, tail, hold)
        log.warning("lineage %s begins with empty state after commit %d", empty.id, tail.place.commit)
    else:
        savepoint = decision.savepoint if decision.source is RestartSource.SAVEPOINT else None
        chosen = savepoint or _save(home, pipeline, config, lineage, checkpoint, decision)
        request = RestoreRequest(savepoint=chosen.id, accept_nondeterminism=accept_nondeterminism)
        restored = restore(home, pipeline, config, request)
        log.warning("restored savepoint %s of commit %d: lineage %s", chosen.id, chosen.commit, restored.lineage.id)
    return decision.source


def _check_still(decision: RestartDecision, home: Home, lineage: Lineage, tail: LedgerTail) -> None:
    """Check a decision again, once nobody else can change what it was made of: another driver may have been here.

    :raises AlreadyRunningError: when one was
    """
    checkpoint, deleted = Checkpoint(home.checkpoint(lineage.id)), is_deleted(home, lineage.id)
    new_decision = decide(checkpoint, Savepoints(home.savepoints), lineage, tail.place.commit, deleted=deleted)
    if new_decision != decision:
        raise AlreadyRunningError(f"another process has changed {checkpoint.path} meanwhile. Start again")


def _save(
    home: Home,
    pipeline: str,
    config: Mapping[str, Any],
    lineage: Lineage,
    checkpoint: Checkpoint,
    decision: RestartDecision,
) -> Savepoint:
    """Save the newest batch that is whole, so that it can be restored."""
    batch = decision.batch if decision.batch is not None else -1
    commit = lineage.commit_of(batch)
    if lineage.state_of(batch) != commit:
        raise RefusedError(
            f"{checkpoint.path} is whole up to batch {batch} only ({decision.damage}), which a restore in mode reemit "
            f"has begun with, so that no savepoint can be taken of it: exactlyonce doctor {pipeline} --fix"
        )
    with LedgerReader(config, pipeline) as reader:
        record = record_of(reader, commit)
    if record is None:
        raise RefusedError(
            f"{checkpoint.path} is whole up to batch {batch} only ({decision.damage}), and the ledger of {pipeline} "
            f"has forgotten its commit {commit}: put the newer files back from a copy of the home"
        )
    job = jobs.read(home, lineage.id, record.version)
    return Savepoints(home.savepoints).take(checkpoint, batch, record, job, label="before damaged files")


def begin_empty(home: Home, lost: Lineage, tail: LedgerTail, hold: Hold) -> Lineage:
    """Make a lineage that begins where the ledger's newest commit ended in the source, without any state.

    :raises ChangedError: when somebody has taken the pipeline over since the hold began
    """
    lineage = Lineage(
        id=str(uuid.uuid4()),
        cluster_id=tail.cluster_id,
        ledger_topic_id=tail.topic_id,
        last_commit=tail.place.commit,
        base_commit=tail.place.commit,
        parent=lost.id,
        parent_run=tail.claim.run if tail.claim else 0,
        parent_commit=tail.place.commit,
    )
    home.begin_checkpoint(lineage)
    sources = parse_offsets(tail.commit.offsets).sources if tail.commit else ()
    for number, position in enumerate(sources):
        if position is not None:
            write_start(home.checkpoint(lineage.id) / "sources" / str(number), position)
    home.remember(lineage)
    home.switch(lineage.id, hold.pointer)
    home.remember(replace(lost, abandoned_for=lineage.id))
    return lineage


def write_start(directory: Path, position: str) -> None:
    """Write where a Kafka source begins, as Spark does: a zero byte for the sake of Spark 2.1, version, offsets.

    :param directory: the source's, below ``sources/``
    :param position: a source's line of an offset log entry
    """
    store_of(directory).create(directory / "0", b"\x00v1\n" + position.encode())
