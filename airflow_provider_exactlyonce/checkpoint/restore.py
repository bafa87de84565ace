"""Restores a pipeline from a savepoint: a fresh lineage in its home, which the next start of its driver runs.

With the savepoint at commit s and the ledger at l, the driver first runs the commits s+1 to l again without writing
(mode ``suppress``), so that its state is that of l; see :mod:`~airflow_provider_exactlyonce.streaming.replay.replay`.
Mode ``fail`` refuses unless s is l, and mode ``reemit`` goes on right after s and writes the output again. The needs of
a replay are checked here, before anything is changed.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from airflow_provider_exactlyonce.checkpoint import job as jobs
from airflow_provider_exactlyonce.checkpoint import lineages
from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.control.lease import Hold
from airflow_provider_exactlyonce.exceptions import RefusedError, required
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.ledger.commit_range import CommitSpan, RecordedCommits, check_input
from airflow_provider_exactlyonce.ledger.reader import LedgerReader, LedgerTail
from airflow_provider_exactlyonce.ledger.records import ClaimRecord
from airflow_provider_exactlyonce.ledger.source_clusters import FindConnection, SourceClusters
from airflow_provider_exactlyonce.storage.opening import is_there, place_of


class RestoreMode(StrEnum):
    """The treatment of the commits after the savepoint."""

    SUPPRESS = "suppress"  # run again without writing
    FAIL = "fail"  # there must be none
    REEMIT = "reemit"  # run again, and written again


@dataclass(frozen=True, kw_only=True)
class RestoreRequest:
    """The savepoint or commit to restore, and the mode.

    :param savepoint: its id; None for the newest, or the newest at or before ``commit``
    :param commit: a commit; not together with ``savepoint``
    :param to: make the lineage in this directory, which must not exist, and leave the home as it is
    :param accept_nondeterminism: replayed batches may give other rows than were committed
    :param version: the job's version that runs next: commits of others are replayed, but their rows are not compared;
        None when that isn't known
    :raises RefusedError: when there is no such mode
    """

    savepoint: str | None = None
    commit: int | None = None
    mode: RestoreMode = RestoreMode.SUPPRESS
    to: Path | None = None
    accept_nondeterminism: bool = False
    version: str | None = None

    def __post_init__(self) -> None:
        if self.mode not in list(RestoreMode):
            raise RefusedError(f"mode {self.mode!r} of a restore: {', '.join(RestoreMode)} are known")
        object.__setattr__(self, "mode", RestoreMode(self.mode))  # its name will do


@dataclass(frozen=True, kw_only=True)
class Restored:
    """The result of a restore.

    :param directory: of the lineage
    :param span: the commits that the next start replays without writing, None for none
    """

    savepoint: Savepoint
    lineage: Lineage
    directory: Path
    span: CommitSpan | None


def restore(
    home: Home,
    pipeline: str,
    config: Mapping[str, Any],
    request: RestoreRequest,
    find: FindConnection | None = None,
) -> Restored:
    """Make the lineage; the pipeline's next start runs it. May be repeated after it was killed.

    :param config: client configuration in librdkafka's names
    :param find: gives the configuration of a connection that a source names
    :raises RefusedError: when the savepoint does not fit the ledger, or the replay would lack something
    :raises AlreadyRunningError: when a driver lives
    """
    if request.to is not None and is_there(request.to) and not lineages.is_unfinished(request.to):
        raise RefusedError(f"--to {request.to} exists already; name a directory that doesn't")
    held = leases.holding_stopped(home.lease, pipeline, "restore")
    with held as hold, LedgerReader(config, pipeline) as reader:
        savepoint, tail, claim, span = _examine(home, reader, config, request, find)
        lineage = _lineage(savepoint, tail, claim, request)
        directory = _make(home, hold, savepoint, lineage, request.to)
        return Restored(savepoint=savepoint, lineage=lineage, directory=directory, span=span)


def check_restore(
    home: Home,
    pipeline: str,
    config: Mapping[str, Any],
    request: RestoreRequest,
    find: FindConnection | None = None,
) -> None:
    """Check that a pipeline could be restored now; it may run meanwhile.

    :param config: client configuration in librdkafka's names
    :param find: gives the configuration of a connection that a source names
    :raises RefusedError: as :func:`restore` does
    """
    with LedgerReader(config, pipeline) as reader:
        _examine(home, reader, config, request, find)


def _examine(
    home: Home, reader: LedgerReader, config: Mapping[str, Any], request: RestoreRequest, find: FindConnection | None
) -> tuple[Savepoint, LedgerTail, ClaimRecord, CommitSpan | None]:
    """Return the savepoint, the ledger's end with its newest claim, and the commits to replay."""
    if home.pipeline() != reader.pipeline:
        raise RefusedError(f"{home} is the home of {home.pipeline() or 'no pipeline'}, not of {reader.pipeline}")
    tail = reader.tail()
    if tail is None or tail.claim is None:
        raise RefusedError(f"pipeline {reader.pipeline} has no ledger on this cluster: nothing was ever committed")
    savepoint = _chosen(Savepoints(home.savepoints), request)
    clusters = SourceClusters.claimed(config, tail.claim, find)
    span = _check(savepoint, reader, tail, clusters, request.mode)
    if span is not None and not request.accept_nondeterminism:
        jobs.check_deterministic(home, span, following=request.version)
    return savepoint, tail, tail.claim, span


def _chosen(savepoints: Savepoints, request: RestoreRequest) -> Savepoint:
    if request.savepoint is not None and request.commit is not None:
        raise RefusedError("give --savepoint or --commit, not both")
    if request.savepoint is not None:
        return savepoints.get(request.savepoint)
    known = savepoints.list()
    fitting = [savepoint for savepoint in known if request.commit is None or savepoint.commit <= request.commit]
    if not fitting:
        existing = ", ".join(f"{savepoint.id} (commit {savepoint.commit})" for savepoint in known) or "none"
        condition = "" if request.commit is None else f" at or before commit {request.commit}"
        raise RefusedError(f"there is no savepoint{condition} in {savepoints.directory}; there are: {existing}")
    chosen = fitting[-1]
    if request.mode is RestoreMode.REEMIT and request.commit not in (None, chosen.commit):
        raise RefusedError(
            f"mode reemit begins right after a savepoint, and there is none at commit {request.commit}; the one before "
            f"it is {chosen.id} at commit {chosen.commit}"
        )
    return chosen


def _check(
    savepoint: Savepoint, reader: LedgerReader, tail: LedgerTail, clusters: SourceClusters, mode: RestoreMode
) -> CommitSpan | None:
    """Check the savepoint against the ledger; returns the commits to replay, None for none."""
    newest = tail.place.commit
    if savepoint.pipeline != reader.pipeline:
        raise RefusedError(f"savepoint {savepoint.id} is of pipeline {savepoint.pipeline}, not of {reader.pipeline}")
    if savepoint.commit > newest:
        raise RefusedError(
            f"savepoint {savepoint.id} is at commit {savepoint.commit}, and the ledger of {reader.pipeline} ends at "
            f"commit {newest}: this is another cluster, or the ledger was lost. What was committed can't be told"
        )
    if savepoint.commit == newest:
        _check_positions(savepoint, required(tail.commit, "the ledger has a commit").ends)
        return None
    if mode is RestoreMode.FAIL:
        raise RefusedError(
            f"savepoint {savepoint.id} is at commit {savepoint.commit}, and {newest - savepoint.commit} commits "
            f"followed, up to {newest}; mode fail refuses that. Mode suppress replays them without writing"
        )
    span = RecordedCommits(reader, savepoint.commit + 1, newest).check()
    _check_positions(savepoint, span.positions)
    check_input(clusters, span)
    return None if mode is RestoreMode.REEMIT else span


def _check_positions(savepoint: Savepoint, positions: Mapping[TopicPartition, int]) -> None:
    """Check that the ledger goes on where the savepoint ends."""
    for (topic, partition), offset in positions.items():
        saved = savepoint.source.get(topic, {}).get(partition, offset)
        if saved != offset:
            raise RefusedError(
                f"savepoint {savepoint.id} ends at offset {saved} of {topic}-{partition}, and its ledger goes on "
                f"at {offset}: they are not of one pipeline"
            )


def _lineage(savepoint: Savepoint, tail: LedgerTail, claim: ClaimRecord, request: RestoreRequest) -> Lineage:
    is_reemitted = request.mode is RestoreMode.REEMIT and savepoint.commit < tail.place.commit
    return Lineage(
        id=str(uuid.uuid4()),
        cluster_id=tail.cluster_id,
        ledger_topic_id=tail.topic_id,
        last_commit=tail.place.commit,
        base_batch=savepoint.batch,
        base_commit=tail.place.commit if is_reemitted else savepoint.commit,
        savepoint=savepoint.id,
        parent=claim.lineage,
        parent_run=claim.run,
        parent_commit=tail.place.commit,
        reemits=savepoint.commit if is_reemitted else None,
        accept_nondeterminism=request.accept_nondeterminism,
    )


def _make(home: Home, hold: Hold, savepoint: Savepoint, lineage: Lineage, to: Path | None) -> Path:
    savepoints = Savepoints(home.savepoints)
    defects = savepoints.verify(savepoint.id)
    if defects:
        raise RefusedError(
            f"savepoint {savepoint.id} is damaged: {'; '.join(map(str, defects[:3]))}. Restore another one"
        )
    directory = home.lineages / lineage.id if to is None else place_of(to)
    if to is None:
        lineages.remove_unfinished(home.lineages, hold)
    lineages.make(directory, savepoints.checkpoint(savepoint.id).path, savepoint.files, lineage)
    if to is None:
        jobs.copy(home, savepoint.lineage, lineage.id)  # for savepoints of the new lineage, until a job runs in it
        if savepoint.job is not None and jobs.read(home, lineage.id, savepoint.version) is None:
            jobs.write(home, lineage.id, savepoint.job)
        lineages.switch(home, lineage, hold)
    return directory
