"""Gives the state of a pipeline another number of partitions: a fresh lineage in its home, which the next start runs.

Spark repartitions a copy of the newest batch, by a batch of its own that no sink sees and no commit stands for. The new
state is compared with the old one, row by row; only then does the copy become the current lineage. The original is
only read.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.checkpoint import integrity, lineages
from airflow_provider_exactlyonce.checkpoint import job as jobs
from airflow_provider_exactlyonce.checkpoint.home_match import check_start
from airflow_provider_exactlyonce.checkpoint.layout import BatchOffsets, Checkpoint
from airflow_provider_exactlyonce.checkpoint.manifest import backend_of
from airflow_provider_exactlyonce.checkpoint.restart import RestartSource, decide
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.checkpoint.state import SHUFFLE_PARTITIONS, StateDirectory, StatefulOperator
from airflow_provider_exactlyonce.checkpoint.state_reader import local_session
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.control.lease import Liveness
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, ExactlyOnceError, RefusedError, required
from airflow_provider_exactlyonce.ledger.commit_range import CommitSpan, RecordedCommits, check_input
from airflow_provider_exactlyonce.ledger.reader import LedgerReader, LedgerTail
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.streaming.spark.repartition import Repartition, Sums

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class Rescaled:
    """The result of a rescale.

    :param before: the state partitions that there were
    :param lineage: None when there were as many before
    :param commit: the commit of its state
    :param state: [{operator, name, store, rows}]
    :param span: the commits that the next start replays without writing, None for none
    """

    before: int
    partitions: int
    lineage: Lineage | None = None
    directory: Path | None = None
    commit: int = 0
    state: Sequence[Mapping[str, Any]] = ()
    span: CommitSpan | None = None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _RescaleSource:
    """The state to rescale: of the newest batch of a checkpoint.

    :param batch: the newest batch that Spark has committed
    :param commit: the batch's commit
    """

    lineage: Lineage
    checkpoint: Checkpoint
    batch: int
    commit: int
    tail: LedgerTail
    offsets: BatchOffsets
    operators: Sequence[StatefulOperator]
    partitions: int
    span: CommitSpan | None = None
    began: float = field(default_factory=time.monotonic)


def rescale(
    home: Home,
    pipeline: str,
    config: Mapping[str, Any],
    partitions: int,
    *,
    spark: SparkSession | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Rescaled:
    """Make the lineage, and make it current; may be repeated after it was killed.

    :param config: client configuration in librdkafka's names
    :param partitions: how many state partitions there shall be
    :param spark: the session to use, None to make one here that ends with the call
    :param tell: called with messages on the progress
    :raises RefusedError: when this state can't have them; nothing is changed
    :raises AlreadyRunningError: when a driver lives
    """
    if partitions < 1:
        raise RefusedError(f"{partitions} state partitions: at least 1")
    if home.pipeline() != pipeline:
        raise RefusedError(f"{home} is the home of {home.pipeline() or 'no pipeline'}, not of {pipeline}")
    held, life = leases.observe(home.lease)
    if held is not None and life in (Liveness.ALIVE, Liveness.STALE):
        silent = ", but gives no sign of life" if life is Liveness.STALE else ""
        raise AlreadyRunningError(
            f"pipeline {pipeline} runs: pid {held.pid} on {held.host}{silent}. Stop it first, for example with "
            f"exactlyonce savepoint {pipeline} --stop"
        )
    token = f"rescale-{uuid.uuid4()}"
    with leases.holding(home.lease, pipeline, token, held) as hold, LedgerReader(config, pipeline) as reader:
        source = _rescale_source(home, pipeline, config, reader)
        if source.partitions == partitions:
            return Rescaled(before=partitions, partitions=partitions)
        _check_kind(source, pipeline)
        lineages.remove_unfinished(home.lineages, hold)
        with contextlib.nullcontext(spark) if spark else local_session("exactlyonce rescale", home.path) as session:
            try:
                return _rescaled(home, hold, source, reader, session, partitions, tell)
            finally:
                with contextlib.suppress(AlreadyRunningError):  # the process that has taken over removes them
                    lineages.remove_unfinished(home.lineages, hold)


def _rescale_source(home: Home, pipeline: str, config: Mapping[str, Any], reader: LedgerReader) -> _RescaleSource:
    """Find the state to rescale, and check everything that the next start will need of it."""
    tail, lineage = reader.tail(), home.current()
    if tail is None or tail.claim is None or lineage is None:
        raise RefusedError(
            f"pipeline {pipeline} has never been started on this cluster: start it with --conf {SHUFFLE_PARTITIONS}=N"
        )
    check_start(home, pipeline, tail)
    checkpoint = Checkpoint(home.checkpoint(lineage.id))
    restart = decide(checkpoint, Savepoints(home.savepoints), lineage, tail.place.commit)
    if restart.source is not RestartSource.CHECKPOINT:
        raise RefusedError(
            f"{checkpoint.path} is damaged: {restart.damage}. Start the pipeline, which brings it in order, stop it, "
            "and rescale it then"
        )
    offsets = None if restart.batch is None else checkpoint.offsets(restart.batch)
    if offsets is None or restart.batch is None:
        raise RefusedError(
            f"pipeline {pipeline} has no batch in lineage {lineage.id} yet: start it with --conf {SHUFFLE_PARTITIONS}=N"
        )
    operators = StateDirectory(checkpoint.path).operators(restart.batch)
    if not operators:
        raise RefusedError(
            f"pipeline {pipeline} keeps no state: its tasks follow the partitions of its source topics, which every "
            "start looks up"
        )
    commit, span = lineage.commit_of(restart.batch), None
    if commit > tail.place.commit:
        raise RefusedError(
            f"{checkpoint.path} is at commit {commit}, and the ledger ends at commit {tail.place.commit}: the ledger "
            "was set back, or the checkpoint is of another pipeline"
        )
    if commit < tail.place.commit:
        span = RecordedCommits(reader, commit + 1, tail.place.commit).check()
        check_input(SourceClusters.claimed(config, tail.claim), span)
        if not lineage.accept_nondeterminism:
            jobs.check_deterministic(home, span)
    return _RescaleSource(
        lineage=lineage,
        checkpoint=checkpoint,
        batch=restart.batch,
        commit=commit,
        tail=tail,
        offsets=offsets,
        operators=operators,
        partitions=int(offsets.conf[SHUFFLE_PARTITIONS]),
        span=span,
    )


def _check_kind(source: _RescaleSource, pipeline: str) -> None:
    backend = backend_of(source.offsets.conf, ())
    if backend != "rocksdb":
        raise RefusedError(
            f"pipeline {pipeline} keeps its state in {backend}, which Spark can't repartition; it can in rocksdb. "
            "State can't be carried from one backend to another: give the pipeline a new name and a new home, "
            f"state_backend=StateBackend.rocksdb(), and --conf {SHUFFLE_PARTITIONS}=N; it builds its state from its "
            "sources again"
        )
    for operator in source.operators:
        if not operator.keyed:
            raise RefusedError(
                f"operator {operator.id} ({operator.name}) of pipeline {pipeline} has state without keys, all in one "
                "partition: it can't be redistributed, and Spark would put it where the query does not read it. Give "
                "the operators with keys a pipeline of their own"
            )


def _rescaled(
    home: Home,
    hold: leases.Hold,
    source: _RescaleSource,
    reader: LedgerReader,
    spark: SparkSession,
    partitions: int,
    tell: Callable[[str], None],
) -> Rescaled:
    lineage, batch = _lineage(source), source.batch + 1
    files = integrity.files_of(source.checkpoint, source.batch).files
    tell(f"copying batch {source.batch} (commit {source.commit}): {len(files)} files")
    work = Checkpoint(lineages.work_copy(home.lineages, source.checkpoint.path, files, lineage.id))
    failpoints.reach("rescale-copied")
    commit = work.commit(source.batch)
    state_format = 1 if commit is None or commit.state_ids is None else 2
    state = Repartition(spark, work.path, source.offsets.conf, state_format=state_format, tell=tell)
    source_sums = state.sums(work.path, source.batch, source.operators)
    state.run(partitions)
    failpoints.reach("rescale-repartitioned")
    new_files = integrity.files_of(work, batch)
    _check_whole(new_files.defects)
    # Spark leaves that to the operating system.
    store_of(work.path).flush([work.path / path for path in new_files.files])
    lineages.make(home.lineages / lineage.id, work.path, new_files.files, lineage)
    try:
        final = Checkpoint(home.checkpoint(lineage.id))
        _check_whole(integrity.defects_of(final, batch))
        _check_same(source, final, batch, partitions)
        _check_sums(source_sums, state.sums(final.path, batch, source.operators))
        jobs.copy(home, source.lineage.id, lineage.id)
        failpoints.reach("rescale-verified")
        tail = reader.tail()
        if tail is None or (tail.place, tail.claim) != (source.tail.place, source.tail.claim):
            raise AlreadyRunningError(f"a driver of {reader.pipeline} has started meanwhile; stop it and try again")
    except BaseException:
        lineages.remove(home.lineages / lineage.id)
        raise
    lineages.switch(home, lineage, hold)
    return Rescaled(
        before=source.partitions,
        partitions=partitions,
        lineage=lineage,
        directory=home.lineages / lineage.id,
        commit=source.commit,
        state=_counts(source.operators, source_sums),
        span=source.span,
        seconds=time.monotonic() - source.began,
    )


def _lineage(source: _RescaleSource) -> Lineage:
    """Return the lineage to make: its first batch is Spark's own, which leaves the state of the same commit."""
    tail, lineage, claim = source.tail, source.lineage, required(source.tail.claim, "the ledger has a claim")
    has_committed = tail.commit is not None and tail.commit.lineage == lineage.id
    return replace(
        lineage,
        id=str(uuid.uuid4()),
        cluster_id=tail.cluster_id,
        ledger_topic_id=tail.topic_id,
        last_commit=tail.place.commit,
        base_batch=source.batch + 1,
        base_commit=source.commit,
        parent=claim.lineage,
        parent_run=claim.run,
        parent_commit=tail.place.commit,
        reemits=None if has_committed else lineage.reemits,
    )


def _check_whole(defects: Sequence[object]) -> None:
    if defects:
        raise ExactlyOnceError(
            f"what Spark has made of the state is not whole: {'; '.join(map(str, defects[:3]))}. Nothing was changed; "
            "try again"
        )


def _check_same(source: _RescaleSource, final: Checkpoint, batch: int, partitions: int) -> None:
    """Check that the batch is the one before it, but for the number of partitions."""
    offsets, operators = final.offsets(batch), StateDirectory(final.path).operators(batch)
    expected = [replace(operator, partitions=partitions) for operator in source.operators]
    conf = {**source.offsets.conf, SHUFFLE_PARTITIONS: str(partitions)}
    actual = offsets and (offsets.same_sources(source.offsets), offsets.watermark, offsets.conf)
    if actual != (True, source.offsets.watermark, conf) or operators != expected:
        raise ExactlyOnceError(
            f"Spark has made another batch than was asked for: {offsets}, {operators}. Nothing was changed; tell us"
        )


def _check_sums(before: Sums, after: Sums) -> None:
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            operator, store, family = key
            (old, _), (new, _) = before.get(key, (0, 0)), after.get(key, (0, 0))
            raise ExactlyOnceError(
                f"operator {operator}, store {store}, {family}: Spark has made {new:,} rows of {old:,}, or others. "
                "Nothing was changed; tell us"
            )


def _counts(operators: Sequence[StatefulOperator], sums: Sums) -> list[dict[str, Any]]:
    return [
        {
            "operator": operator.id,
            "name": operator.name,
            "store": store,
            "rows": sum(
                rows
                for (operator_id, name, _), (rows, _) in sums.items()
                if (operator_id, name) == (operator.id, store)
            ),
        }
        for operator in operators
        for store in operator.stores
    ]
