"""Replays committed input with a version of a pipeline, on a copy of its state; returns the rows, writes nothing.

The copy is made of a savepoint, or of a batch of the lineage in use, that lies before the commits. It has no lease, no
transaction and no ledger: the pipeline that runs meanwhile does not notice.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_exactlyonce.checkpoint import integrity, lineages
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint, ClaimedCheckpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.ledger.commit_range import CommitSpan, RecordedCommits, check_input
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.upgrade.comparison import Row, decode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_exactlyonce.streaming.job.definition import PipelineDefinition


@dataclass(frozen=True, kw_only=True)
class ShadowBase:
    """The state that the commits are repeated on.

    :param name: the state's origin, for people
    :param commit: the commit that it has the state of
    """

    name: str
    source: Checkpoint
    files: tuple[str, ...]
    batch: int
    commit: int


@dataclass
class _CopiedLineage:
    """In place of a run: the part of it that a replay needs."""

    lineage: Lineage

    def rebase(self, batch: int, commit: int) -> None:
        self.lineage = replace(self.lineage, base_batch=batch, base_commit=commit)


def find_base(home: Home, commits: int, last: int) -> ShadowBase:
    """Find the newest state that is at least so many commits before the last one.

    :raises RefusedError: when there is none
    """
    if last < 2:
        raise RefusedError(f"the pipeline has made {last} commits; a shadow run repeats those after the first one")
    wanted_commit, lineage = max(1, last - commits), home.current()
    if lineage is not None and lineage.base_commit <= wanted_commit:
        checkpoint, batch = Checkpoint(home.checkpoint(lineage.id)), lineage.batch_of(wanted_commit)
        needed = integrity.files_of(checkpoint, batch)
        if not needed.defects:
            return ShadowBase(
                name=f"batch {batch} of the lineage in use",
                source=checkpoint,
                files=needed.files,
                batch=batch,
                commit=wanted_commit,
            )
    savepoints = Savepoints(home.savepoints)
    earlier = [savepoint for savepoint in savepoints.list() if savepoint.commit < last]
    nearest = sorted(
        earlier, key=lambda savepoint: (savepoint.commit > wanted_commit, abs(savepoint.commit - wanted_commit))
    )
    chosen = next((savepoint for savepoint in nearest if not savepoints.verify(savepoint.id)), None)
    if chosen is None:
        raise RefusedError(
            f"there is no state before commit {last} to repeat commits from: no savepoint in {savepoints.directory}, "
            "and the lineage in use does not hold any. Take a savepoint, and do the shadow run some commits later"
        )
    return ShadowBase(
        name=f"savepoint {chosen.id}",
        source=savepoints.checkpoint(chosen.id),
        files=tuple(chosen.files),
        batch=chosen.batch,
        commit=chosen.commit,
    )


def repeat(
    spark: SparkSession,
    pipeline: PipelineDefinition,
    config: dict[str, str],
    base: ShadowBase,
    last: int,
    directory: Path,
) -> tuple[CommitSpan, list[Row]]:
    """Repeat all commits after the base's up to ``last``; returns their totals, and their rows.

    :param config: client configuration in librdkafka's names
    :param directory: for the copy; must not exist
    :raises RefusedError: when commits or source records are gone, or a source would be read from another cluster
    :raises ExactlyOnceError: when the replay fails
    """
    from airflow_provider_exactlyonce.streaming.commit.batch import planned_batch
    from airflow_provider_exactlyonce.streaming.replay.replay import Comparison, Replay
    from airflow_provider_exactlyonce.streaming.spark.query_runner import QueryCallbacks, QueryOptions, QueryRunner

    sink_topic = pipeline.kafka_sink("a shadow run").topic
    lineage = Lineage(id=str(uuid.uuid4()), base_batch=base.batch, base_commit=base.commit)
    lineages.make(directory, base.source.path, base.files, lineage)
    checkpoint = ClaimedCheckpoint(directory / "checkpoint", lambda: None)  # nobody else has this copy
    commits = RecordedCommits(LedgerReader(config, pipeline.name), base.commit + 1, last)
    span = commits.check()
    clusters = SourceClusters(config, pipeline.source_connections)
    with LedgerReader(config, pipeline.name) as reader:
        clusters.check(reader.tail(), [source.topics for source in pipeline.sources.values()])
    check_input(clusters, span)
    comparison = Comparison(version=pipeline.version, accept=True)
    replay = Replay(
        spark, _CopiedLineage(lineage), checkpoint, commits, span=span, comparison=comparison, goes_live=False
    )
    rows: list[Row] = []

    def collect(frame: DataFrame, number: int) -> None:
        if not replay.pending:
            raise ExactlyOnceError("all is repeated")  # what comes next is not committed yet
        replay.recorded(planned_batch(checkpoint, clusters, lineage.id, number))
        for row in frame.collect():
            topic = row["topic"] if "topic" in frame.columns else sink_topic
            key, value = (None if row[name] is None else bytes(row[name]) for name in ("key", "value"))
            rows.append(decode(str(topic), key, value))
        replay.repeated()

    with contextlib.closing(replay), contextlib.closing(clusters):
        stream = _encoded(pipeline, pipeline.result(spark, config))
        options = QueryOptions(name=pipeline.name, output_mode=pipeline.output_mode, checkpoint=checkpoint.path)
        callbacks = QueryCallbacks(needs_restart=replay.needs_restart)
        QueryRunner(stream, collect, options, callbacks).run_recorded(replay)
    return span, rows


def _encoded(pipeline: PipelineDefinition, result: DataFrame) -> DataFrame:
    """Return the records that the sink would get."""
    from airflow_provider_exactlyonce.streaming.sinks.kafka import columns

    stream = columns.encode(pipeline.kafka_sink("a shadow run"), pipeline.routes.kafka_rows(result))
    return stream.withColumns({name: stream[name].cast("binary") for name in ("key", "value")})
