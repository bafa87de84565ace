"""Runs a version of a pipeline again on what was committed, on a copy of its state, and gives the rows; writes nothing.

The copy is made of a savepoint, or of a batch of the lineage in use, that lies before the commits. It has no lease, no
transaction and no ledger: the pipeline that runs meanwhile does not notice.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
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
    from pyspark.sql.streaming.query import StreamingQuery

    from airflow_provider_exactlyonce.kafka.wire import WireClient
    from airflow_provider_exactlyonce.streaming.job.definition import PipelineDefinition
    from airflow_provider_exactlyonce.streaming.replay.replay import Replay

_WAIT_SECONDS: Final = 0.2


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
class _Stay:
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
    wanted, lineage = max(1, last - commits), home.current()
    if lineage is not None and lineage.base_commit <= wanted:
        checkpoint, batch = Checkpoint(home.checkpoint(lineage.id)), lineage.batch_of(wanted)
        needed = integrity.files_of(checkpoint, batch)
        if not needed.defects:
            return ShadowBase(
                name=f"batch {batch} of the lineage in use",
                source=checkpoint,
                files=needed.files,
                batch=batch,
                commit=wanted,
            )
    savepoints = Savepoints(home.savepoints)
    known = [one for one in savepoints.list() if one.commit < last]
    nearest = sorted(known, key=lambda one: (one.commit > wanted, abs(one.commit - wanted)))
    chosen = next((one for one in nearest if not savepoints.verify(one.id)), None)
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
        self._failure: ExactlyOnceError | None = None
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
        replay = Replay(spark, _Stay(lineage), self._checkpoint, commits, stretch=stretch, comparison=comparison)
        try:
            with WireClient(self._config) as client:
                self._repeat(spark, replay, client, lineage.id)
        finally:
            replay.close()
        return stretch

    def _repeat(self, spark: SparkSession, replay: Replay, client: WireClient, lineage: str) -> None:
        from airflow_provider_exactlyonce.streaming.replay.replay import OneStartPerBatchError
        from airflow_provider_exactlyonce.streaming.sinks.kafka import columns
        from airflow_provider_exactlyonce.streaming.spark.steering import missing_part

        sink = self._pipeline.kafka_sink("a shadow run")
        stream = columns.encode(sink, self._pipeline.shares.kafka_rows(self._pipeline.result(spark, self._config)))
        stream = stream.withColumns({name: stream[name].cast("binary") for name in ("key", "value")})
        impossible = missing_part(spark)
        while replay.prepare(one_start_per_batch=impossible):
            query = self._start(stream, self._process(replay, client, lineage), once=impossible is not None)
            replay.attach(query)
            try:
                self._wait(query, replay)
            except OneStartPerBatchError as error:
                impossible, self._failure = str(error), None
                continue
            if not replay.pending:
                return  # Spark may not have noted the last batch, and must not run it again
            replay.check_progress()

    def _start(self, stream: DataFrame, process: Callable[[DataFrame, int], None], *, once: bool) -> StreamingQuery:
        writer = (
            stream.writeStream.outputMode(self._pipeline.output_mode)
            .option("checkpointLocation", str(self._checkpoint.path))
            .foreachBatch(process)
        )
        return (writer.trigger(once=True) if once else writer.trigger(processingTime="0 seconds")).start()

    def _process(self, replay: Replay, client: WireClient, lineage: str) -> Callable[[DataFrame, int], None]:
        from airflow_provider_exactlyonce.streaming.commit.batch import planned_batch

        topic = self._pipeline.kafka_sink("a shadow run").topic

        def process(frame: DataFrame, number: int) -> None:
            try:
                if not replay.pending:
                    raise ExactlyOnceError("all is repeated")  # what comes next is not committed yet
                replay.recorded(planned_batch(self._checkpoint, client, lineage, number))
                for row in frame.collect():
                    name = row["topic"] if "topic" in frame.columns else topic
                    key = None if row["key"] is None else bytes(row["key"])
                    value = None if row["value"] is None else bytes(row["value"])
                    self.rows.append(decode(str(name), key, value))
                replay.repeated()
            except ExactlyOnceError as error:
                self._failure = error
                raise

        return process

    def _wait(self, query: StreamingQuery, replay: Replay) -> None:
        try:
            while replay.pending and query.isActive:
                time.sleep(_WAIT_SECONDS)
                replay.check_moving()
                if replay.needs_restart() and not query.status["isTriggerActive"]:
                    return
            if replay.pending:
                query.awaitTermination()  # raises what has ended it
        except Exception:
            if not replay.pending:
                return
            if self._failure is not None:
                raise self._failure from None
            raise
        finally:
            query.stop()
