"""The base of all drivers: run, Spark session, queries, signs of life, and an end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint, KafkaOffsets
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.exceptions import BatchFailedError, Decision, ExactlyOnceError, StopRequestedError
from airflow_provider_exactlyonce.kafka import preflight
from airflow_provider_exactlyonce.kafka.preflight import TopicFacts
from airflow_provider_exactlyonce.ledger.records import ledger_topic
from airflow_provider_exactlyonce.policies.termination import AVAILABLE
from airflow_provider_exactlyonce.streaming import file_systems, settings
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from airflow_provider_exactlyonce.streaming.driver.heartbeat import Heartbeat
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from airflow_provider_exactlyonce.streaming.driver.savepoint_service import SavepointService
from airflow_provider_exactlyonce.streaming.driver.status_reporter import DriverReport
from airflow_provider_exactlyonce.streaming.driver.stop_reasons import StopReasons
from airflow_provider_exactlyonce.streaming.job import mistakes
from airflow_provider_exactlyonce.streaming.job.checkpoint_config import PausedBatches
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.spark import errors, spark_log
from airflow_provider_exactlyonce.streaming.spark.jvm import submitted
from airflow_provider_exactlyonce.streaming.spark.query_runner import (
    ProcessBatch,
    QueryCallbacks,
    QueryOptions,
    QueryRunner,
)
from airflow_provider_exactlyonce.streaming.spark.session import open_session, stop_session
from airflow_provider_exactlyonce.streaming.spark.state_metrics import StateSizes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from airflow_provider_exactlyonce.streaming.job.definition import PipelineDefinition

log = logging.getLogger("exactlyonce")

_LOG_UPDATE_CONFLICT: Final = "CONCURRENT_STREAM_LOG_UPDATE"


class DriverLifecycle:
    """One driver's process from its start to its exit code; :meth:`run` is called once, the others from its work.

    :param name: of the pipeline that the ledger knows
    :ivar report: the driver's reports
    :ivar stop: why it should stop
    :ivar savepoints: served until the end, once the driver has set it
    :ivar closing: resources that are closed last
    :ivar begins: where the checkpoint begins of which the stream was planned
    """

    def __init__(self, pipeline: PipelineDefinition, options: DriverOptions, name: str) -> None:
        self.report: Final = DriverReport(options.home, options.token, name)
        self.stop: Final = StopReasons(options, self.report)
        self.savepoints: SavepointService | None = None
        self.closing: Final = ExitStack()
        self.begins: KafkaOffsets = {}
        self._pipeline: Final = pipeline
        self._options: Final = options
        self._name: Final = name
        self._run: Run | None = None
        self._spark: SparkSession | None = None
        self._heartbeat: Heartbeat | None = None
        self._state_sizes: Final = StateSizes()

    def run(self, work: Callable[[], None], stopped: Callable[[Run], None] = lambda run: None) -> int:
        """Do a driver's work to its end; returns the process's exit code.

        :param stopped: called at a stop, when the savepoints that were asked for are answered, while the driver still
            gives signs of life
        """
        self.stop.heed_signals()
        try:
            self._do(work)
        except StopRequestedError as error:
            if self.stop.done:
                return self._end(DriverState.FINISHED)
            log.info("stopped: %s", error)
            return self._end(DriverState.STOPPED, stopped)
        except Exception as error:
            return self._failed(error)
        else:
            return self._end(DriverState.FINISHED)
        finally:
            self._stop_heartbeat()
            if self.savepoints is not None:
                self.savepoints.close(serve=False)
            if self._run is not None:
                self._run.close()
            if self._spark is not None:
                stop_session(self._spark)
            self.closing.close()

    def _do(self, work: Callable[[], None]) -> None:
        """Do the work; a sink's failure before the first batch counts as the stop, if a stop was requested."""
        try:
            work()
        except BatchFailedError as error:
            if self.report.status.state is DriverState.STARTING and (reason := self.stop.reason()):
                raise StopRequestedError(f"{reason}; no batch is begun: {error}") from error
            raise

    def open_run(self, options: RunOptions) -> Run:
        """Return the hold on the pipeline; nothing is claimed yet."""
        self._run = Run(self._options.home, self._name, options)
        return self._run

    def check_topics(self, run: Run, sinks: Sequence[str]) -> dict[str, TopicFacts]:
        """Check the topics of the pipeline's cluster and rights, before the ledger is read.

        A right that is missing is told by its name.

        :param sinks: the topics that are known to be written
        :raises RefusedError: naming the topic or the right
        """
        return preflight.check_topics(
            run.client,
            sources=run.sources.by_cluster(dict.fromkeys(self.topics_read(run)))[run.sources.own],
            sinks=sinks,
            ledger=ledger_topic(run.pipeline),
            user=self._options.config.get("sasl.username"),
            allow_single_replica=self._options.allow_single_replica,
        )

    def check_topics_elsewhere(self, run: Run) -> dict[str, TopicFacts]:
        """Check the topics that are read from other clusters, after :meth:`SourceClusters.check` has let them pass.

        :raises RefusedError: naming the topic or the right
        """
        topics: dict[str, TopicFacts] = {}
        for cluster, cluster_topics in run.sources.by_cluster(dict.fromkeys(self.topics_read(run))).items():
            if cluster is not run.sources.own:
                topics |= cluster.checked(cluster_topics, allow_single_replica=self._options.allow_single_replica)
        return topics

    def topics_read(self, run: Run) -> list[str]:
        """Return the topics that the pipeline's sources read now: those that they name, and that their patterns match.

        :raises RefusedError: when two sources read one
        """
        return self._pipeline.topics_read(run.sources)

    def open_session(self) -> SparkSession:
        """Return the Spark session, with the settings that the pipeline's declaration asks for.

        :raises RefusedError: when a setting can't change any more
        """
        self._spark = open_session(self._pipeline.name)
        self.stop.heed_signals()  # a new session has taken SIGINT
        spark_log.quieten(self._spark)
        file_systems.prepare(self._spark, self._options.home.path)
        self._apply_settings(self._spark)
        return self._spark

    def result(self, spark: SparkSession) -> DataFrame:
        """Return the stream that goes to the sink.

        :raises RefusedError: when the job's function can't make it, with the line
        """
        lineage = self._options.home.current()
        if lineage is not None:
            self.begins = Checkpoint(self._options.home.checkpoint(lineage.id)).kafka_starts(0)
        try:
            return self._pipeline.result(spark, self._options.config, self.begins)
        except ExactlyOnceError:
            raise
        except Exception as error:
            meaning = mistakes.meaning_in_function(error, job.name) if (job := self._pipeline.job) else None
            if meaning is None:
                raise
            raise meaning from error

    def start_run(self, run: Run, spark: SparkSession, others: SinkGroup) -> None:
        """Claim the pipeline, and give signs of life from then on.

        :param others: the sinks that are not Kafka
        :raises ExactlyOnceError: as :meth:`Run.start`
        """
        self._heartbeat = Heartbeat(run, self.report, lambda: self.topics_read(run), others)
        self._heartbeat.start()
        run.start()
        self.report.own()
        newest = run.tail.commit
        self.report.read(newest.source if newest else {})
        context = spark.sparkContext
        self.report.tell(
            run=run.number,
            lineage=run.lineage.id,
            commit=run.tail.place.commit,
            batch=newest.batch if newest else -1,
            committed=newest.committed / 1000 if newest else None,
            watermark=newest.watermark if newest else 0,
            late_total=newest.late_total if newest else 0,
            application_id=context.applicationId,
            ui_url=context.uiWebUrl,
        )
        log.info(
            "run %d of %s, lineage %s, after commit %d",
            run.number,
            run.pipeline,
            run.lineage.id,
            self.report.status.commit,
        )

    def runner(
        self,
        run: Run,
        stream: DataFrame,
        process: ProcessBatch,
        needs_restart: Callable[[], bool] = lambda: False,
    ) -> QueryRunner:
        """Return the runner of the stream's queries on the lineage's checkpoint.

        :param process: called with each batch
        :param needs_restart: whether the query has to be started again to go on
        """
        return QueryRunner(
            stream,
            PausedBatches(self._pipeline.checkpoint, process, self.stop.reason).process,
            QueryOptions(
                name=self._pipeline.name,
                output_mode=self._pipeline.output_mode,
                checkpoint=run.home.checkpoint(run.lineage.id),
                trigger=self._trigger(),
            ),
            QueryCallbacks(
                watch=self._watch,
                needs_restart=needs_restart,
                stop_reason=self.stop.reason,
                stopping=lambda: self.stop.request("the query ends"),  # no further attempt of the batch
                failed=lambda error: run.check_superseded() if _LOG_UPDATE_CONFLICT in str(error) else None,
            ),
        )

    def _trigger(self) -> dict[str, Any]:
        """Return how the query is triggered, as Spark's ``trigger`` takes it."""
        if self._options.until == AVAILABLE:
            return {"availableNow": True}
        return {"processingTime": self._options.interval or self._pipeline.checkpoint.trigger_interval}

    def _watch(self, query: StreamingQuery) -> None:
        sizes = self._state_sizes.follow(query, self.report.status.batch)
        if sizes is not None:
            self.report.tell(state_sizes=sizes)
        if self._heartbeat is not None and query.isActive:
            self._heartbeat.check_lease()

    def _apply_settings(self, spark: SparkSession) -> None:
        submitted_conf = submitted(spark)
        backend, config = self._pipeline.state_backend, self._pipeline.checkpoint
        lineage = self._options.home.current()
        if backend is not None and lineage is not None:
            checkpoint = Checkpoint(self._options.home.checkpoint(lineage.id))
            backend.check_lineage(lineage.id, checkpoint.conf())
        declared_settings = {
            **config.settings(lambda name: submitted_conf.get(name, None)),
            **(backend.settings(lambda name: submitted_conf.get(name, None)) if backend is not None else {}),
        }
        for name, value in declared_settings.items():
            spark.conf.set(name, value)

    def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()

    def _end(self, state: DriverState, before_exit: Callable[[Run], None] = lambda run: None) -> int:
        if self.savepoints is not None:
            self.savepoints.close(serve=True)
        if self._run is not None:
            before_exit(self._run)
        self._stop_heartbeat()
        self.report.ended(state)
        return 0

    def _failed(self, error: Exception) -> int:
        self._stop_heartbeat()
        meaning = error if isinstance(error, ExactlyOnceError) else None
        is_passing = meaning is None or meaning.decision is Decision.REPLAY_BATCH
        if self.stop.interrupted and is_passing:
            reason = self.stop.requested()
            log.info("stopped: %s, in the middle of a batch; the ledger says whether it is committed", reason)
            self.report.ended(DriverState.STOPPED)
            return 0
        if is_passing:
            meaning = errors.meaning_of(error) or meaning or self._source_away(error)
        if meaning:
            log.error("%s: %s", type(meaning).__name__, meaning)
        else:
            log.exception("the driver failed")
        return self.report.failed(error, meaning)

    def _source_away(self, error: Exception) -> ExactlyOnceError | None:
        """Return which source's cluster is away, when one is; Spark tells of none by its name."""
        trouble = self._run.sources.trouble() if self._run is not None else None
        return None if trouble is None else ExactlyOnceError(f"{trouble}. Spark says: {errors.cause_of(error)}")


def listen(spark: SparkSession) -> SequencerListener:
    """Return where this driver's sequencer listens."""
    endpoint = settings.sequencer_endpoint(lambda name: spark.conf.get(name, None), str(spark.sparkContext.master))
    return SequencerListener(endpoint)
