"""Runs a version of a pipeline again on what was committed, on a copy of its state, and gives the rows; writes nothing.

The copy is made of a savepoint, or of a batch of the lineage in use, that lies before the commits. It has no lease, no
transaction and no ledger: the pipeline that runs meanwhile does not notice.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.checkpoint import integrity, lineages
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.ledger.commit_range import CommitSpan, RecordedCommits, check_input
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.upgrade.comparison import Row, decode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_exactlyonce.kafka.wire import WireClient
    from airflow_provider_exactlyonce.streaming.job.definition import PipelineDefinition
    from airflow_provider_exactlyonce.streaming.replay.replay import Replay


@dataclass(frozen=True, kw_only=True)
class ShadowBase:
    """What is repeated, and on what.

    :param name: what the copy is made of, for people
    :param commit: the commit that it has the state of
    """

    name: str
    source: Checkpoint
    files: tuple[str, ...]
    batch: int
    commit: int


@dataclass
class _CopiedLineage:
    """What a replay needs of a run, without one."""

    lineage: Lineage

    def rebase(self, batch: int, commit: int) -> None:
        self.lineage = replace(self.lineage, base_batch=batch, base_commit=commit)


def find_base(home: Home, commits: int, last: int) -> ShadowBase:
    """Find the state that lies so many commits before the last one, or as near before that as there is.

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


class ShadowReplay:
    """One repetition.

    :param home: of the pipeline; only read
    :param directory: for the copy; must not exist
    :param config: client configuration in librdkafka's names
    """

    def __init__(self, home: Home, pipeline: PipelineDefinition, config: Mapping[str, str], directory: Path) -> None:
        self._home: Final = home
        self._pipeline: Final = pipeline
        self._config: Final = dict(config)
        self._checkpoint: Final = Checkpoint(directory / "checkpoint")
        self.rows: Final[list[Row]] = []

    def run(self, spark: SparkSession, base: ShadowBase, last: int) -> CommitSpan:
        """Repeat all commits after the base's up to ``last``; returns what they add up to.

        :raises RefusedError: when commits or source records are gone
        :raises ExactlyOnceError: when it could not be done
        """
        from airflow_provider_exactlyonce.kafka.wire import WireClient
        from airflow_provider_exactlyonce.streaming.replay.replay import Comparison, Replay

        lineage = Lineage(id=str(uuid.uuid4()), base_batch=base.batch, base_commit=base.commit)
        lineages.make(self._checkpoint.path.parent, base.source.path, base.files, lineage)
        commits = RecordedCommits(LedgerReader(self._config, self._pipeline.name), base.commit + 1, last)
        stretch = commits.check()
        check_input(self._config, stretch)
        comparison = Comparison(version=self._pipeline.version, accept=True)
        replay = Replay(
            spark,
            _CopiedLineage(lineage),
            self._checkpoint,
            commits,
            stretch=stretch,
            comparison=comparison,
            goes_live=False,
        )
        try:
            with WireClient(self._config) as client:
                self._repeat(spark, replay, _Collector(self._pipeline, replay, client, lineage.id, self._checkpoint))
        finally:
            replay.close()
        return stretch

    def _repeat(self, spark: SparkSession, replay: Replay, collector: _Collector) -> None:
        from airflow_provider_exactlyonce.streaming.sinks.kafka import columns
        from airflow_provider_exactlyonce.streaming.spark.query_runner import (
            QueryCallbacks,
            QueryOptions,
            QueryRunner,
        )

        sink = self._pipeline.kafka_sink("a shadow run")
        stream = columns.encode(sink, self._pipeline.routes.kafka_rows(self._pipeline.result(spark, self._config)))
        stream = stream.withColumns({name: stream[name].cast("binary") for name in ("key", "value")})
        options = QueryOptions(
            name=self._pipeline.name, output_mode=self._pipeline.output_mode, checkpoint=self._checkpoint.path
        )
        callbacks = QueryCallbacks(needs_restart=replay.needs_restart)
        QueryRunner(stream, collector.process, options, callbacks).run_recorded(replay)
        self.rows.extend(collector.rows)


class _Collector:
    """Keeps the rows of each batch that is repeated.

    :param client: tells the ids of source topics
    :param lineage: the copy's
    """

    def __init__(
        self, pipeline: PipelineDefinition, replay: Replay, client: WireClient, lineage: str, checkpoint: Checkpoint
    ) -> None:
        self._topic: Final = pipeline.kafka_sink("a shadow run").topic
        self._replay: Final = replay
        self._client: Final = client
        self._lineage: Final = lineage
        self._checkpoint: Final = checkpoint
        self.rows: Final[list[Row]] = []

    def process(self, frame: DataFrame, number: int) -> None:
        """Keep a batch's rows; the callback of ``foreachBatch``.

        :raises ExactlyOnceError: what ends the query
        """
        from airflow_provider_exactlyonce.streaming.commit.batch import planned_batch

        if not self._replay.pending:
            raise ExactlyOnceError("all is repeated")  # what comes next is not committed yet
        self._replay.recorded(planned_batch(self._checkpoint, self._client, self._lineage, number))
        for row in frame.collect():
            name = row["topic"] if "topic" in frame.columns else self._topic
            key = None if row["key"] is None else bytes(row["key"])
            value = None if row["value"] is None else bytes(row["value"])
            self.rows.append(decode(str(name), key, value))
        self._replay.repeated()
