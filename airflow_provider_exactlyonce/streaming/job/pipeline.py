"""How a user declares a pipeline."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow_provider_exactlyonce.checkpoint.job import JobDescription
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.records import KAFKA, SourceRanges, check_pipeline_name
from airflow_provider_exactlyonce.ledger.retention import DEFAULT_RETENTION, LedgerRetention
from airflow_provider_exactlyonce.streaming.analysis import feedback
from airflow_provider_exactlyonce.streaming.analysis.late_rows import COUNT_LATE_ROWS, LateRowsPolicy, check_can_be_told
from airflow_provider_exactlyonce.streaming.analysis.late_rows import policy as late_policy
from airflow_provider_exactlyonce.streaming.job import job_file, process
from airflow_provider_exactlyonce.streaming.job.checkpoint_config import CheckpointConfig, CheckpointingMode
from airflow_provider_exactlyonce.streaming.job.job_file import JobSource
from airflow_provider_exactlyonce.streaming.job.kafka_source import KafkaSource
from airflow_provider_exactlyonce.streaming.job.state_backend import StateBackend
from airflow_provider_exactlyonce.streaming.sinks.kafka import columns
from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink
from airflow_provider_exactlyonce.streaming.sinks.places import one_place
from airflow_provider_exactlyonce.streaming.sinks.shares import Shares
from airflow_provider_exactlyonce.streaming.sinks.spi import Share, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("exactlyonce")

OUTPUT_MODES: Final = ("append", "update", "complete")
#: What can be declared as a pipeline's sink.
AnySink = KafkaSink | Sink | Share
_ONE_SOURCE: Final = ""
_MAX_BATCH_ATTEMPTS: Final = 3
_DEFAULT_CHECKPOINT: Final = CheckpointConfig()

process.watch()


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A named stream: sources, a function of ordinary PySpark, a sink.

    :param name: unique per Kafka cluster; ledger and transactional.id are named by it
    :param sources: by the function's argument; one source without a name is its only positional argument
    :param shares: who gets what of the result
    :param output_mode: ``append``, ``update`` or ``complete``, as in Spark
    :param max_batch_attempts: attempts of one batch before the query fails
    :param ledger_retention: how much of the ledger's history stays
    :param checkpoint: how it checkpoints
    :param state_backend: where its state lives, None for what Spark's settings say: RocksDB unless they were changed
    :param guarantee: what a reader of the output may rely on
    :param allow_weaker: it runs even if its weakest link can't give that
    :param allow_feedback: it may write to a topic that it reads
    :param late_rows: what becomes of rows behind the watermark
    :param job: the job's file, as it was executed; None when it has none
    """

    name: str
    sources: Mapping[str, KafkaSource]
    shares: Shares
    output_mode: str
    function: Callable[..., DataFrame]
    max_batch_attempts: int = _MAX_BATCH_ATTEMPTS
    ledger_retention: LedgerRetention = DEFAULT_RETENTION
    checkpoint: CheckpointConfig = _DEFAULT_CHECKPOINT
    state_backend: StateBackend | None = None
    transaction_timeout_seconds: int = KafkaSink.transaction_timeout_seconds
    guarantee: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    allow_weaker: bool = False
    allow_feedback: bool = False
    late_rows: LateRowsPolicy = COUNT_LATE_ROWS
    job: JobSource | None = None

    @property
    def topics_read(self) -> list[str]:
        """The topics that it declares as sources."""
        return sorted({source.topic for source in self.sources.values()})

    @property
    def mode(self) -> CheckpointingMode:
        """How batches are committed; a weaker guarantee makes it cheaper only where Kafka is the only sink."""
        return CheckpointingMode.EXACTLY_ONCE if self.shares.others else self.guarantee

    @property
    def sink(self) -> KafkaSink | None:
        """The Kafka sink, None when no sink is Kafka."""
        return None if self.shares.kafka is None else self.shares.kafka.sink

    @property
    def sink_topics(self) -> list[str]:
        """The topics that it is known to write before the first row."""
        topics = self.sink.topics if self.sink is not None else []
        return [*topics, self.late_rows.topic] if self.late_rows.topic is not None else topics

    def kafka_sink(self, what: str) -> KafkaSink:
        """Return the Kafka sink.

        :param what: what is to be done with it
        :raises RefusedError: when the pipeline has none
        """
        if self.sink is None:
            raise RefusedError(f"{what} needs a KafkaSink, and pipeline {self.name} has none")
        return self.sink

    def __call__(self, *args: Any, **kwargs: Any) -> DataFrame:
        """Apply the function, to batch frames in a test as to streams."""
        return self.function(*args, **kwargs)

    def result(self, spark: SparkSession, config: Mapping[str, str]) -> DataFrame:
        """Return the stream that goes to the sink."""
        diverts = self.sink is not None and self.sink.diverts
        frames = {
            name: source.read(spark, config, leave_out_bad=diverts, may_lose=True)
            for name, source in self.sources.items()
        }
        return self.applied(frames)

    def planned(self, spark: SparkSession) -> DataFrame:
        """Return the same stream for planning only: without a broker, and without a record in it."""
        return self.applied({name: source.stand_in(spark) for name, source in self.sources.items()})

    def applied(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """Return what the function makes of its sources' streams.

        :param frames: by the sources' names in :attr:`sources`
        :raises RefusedError: when that is no stream
        """
        from pyspark.sql import DataFrame

        result = self.function(frames[_ONE_SOURCE]) if _ONE_SOURCE in frames else self.function(**frames)
        if not isinstance(result, DataFrame) or not result.isStreaming:
            what = "a DataFrame that is no stream" if isinstance(result, DataFrame) else repr(result)
            raise RefusedError(
                f"the function of pipeline {self.name} returned {what}; let it return what it makes of its sources"
            )
        return result

    def check(self, result: DataFrame) -> None:
        """Check that what is declared fits the stream that goes to the sinks.

        :raises RefusedError: when it does not
        """
        self.shares.check(result)
        if self.late_rows.topic is not None:
            check_can_be_told(result)

    def bad_source_records(
        self, spark: SparkSession, config: Mapping[str, str], bad_topic: str | None, ranges: SourceRanges
    ) -> DataFrame | None:
        """Return a batch's source records that do not fit their schema, as records for the topic of bad ones.

        :param bad_topic: that topic
        :param ranges: the batch's source ranges
        """
        from pyspark.sql import functions as F

        read = [
            source.bad_records(spark, config, ranges[source.topic])
            for source in self.sources.values()
            if source.topic in ranges
        ]
        found = [frame for frame in read if frame is not None]
        if not found:
            return None
        records = reduce(lambda one, other: one.unionByName(other), found).withColumn("topic", F.lit(bad_topic))
        return columns.with_digest(records)

    def describe(self, spark: SparkSession, result: DataFrame, unsure: Sequence[str] = ()) -> JobDescription:
        """Return what this version says of itself, for the savepoints of what it commits.

        :param result: the stream that goes to the sink, or the one for planning only
        :param unsure: what may give other rows when a batch is run again
        """
        from airflow_provider_exactlyonce.streaming.analysis.plan_description import describe

        try:
            plan = describe(result, self.shares.facts)
        except Exception as error:  # no stream stops because an upgrade could not be judged later
            log.warning("the plan could not be described, so that savepoints will lack it: %s", error)
            plan = None
        return JobDescription(
            version=self.version,
            job_hash=self.job_hash,
            spark_version=spark.version,
            output_mode=self.output_mode,
            sources={source.topic: source.schema for source in self.sources.values()},
            sinks=tuple(self.shares.names),
            result_schema=result.schema.json(),
            nondeterministic=tuple(unsure),
            plan=plan,
        )

    @property
    def version(self) -> str:
        """The first 12 hexadecimal digits of the SHA-256 of the job's file and declaration."""
        text = self.job.content if self.job else repr(self.function).encode()
        declared = repr((self.name, dict(self.sources), self.shares.declared, self.output_mode)).encode()
        return hashlib.sha256(text + declared).hexdigest()[:12]

    @property
    def job_hash(self) -> str | None:
        """The SHA-256 of the job's file, None when it has none."""
        return self.job.hash if self.job else None

    def main(self, arguments: Sequence[str] | None = None) -> NoReturn:
        """Run the pipeline as a driver and exit; ``--help`` lists the arguments.

        :param arguments: command line without the program's name, None for this process's
        """
        from airflow_provider_exactlyonce.streaming.driver.driver import main

        main(self, arguments)


def pipeline(
    *,
    name: str,
    source: KafkaSource | Mapping[str, KafkaSource],
    sink: AnySink | Sequence[AnySink],
    output_mode: str = "append",
    max_batch_attempts: int | None = None,
    ledger_retention: LedgerRetention = DEFAULT_RETENTION,
    checkpoint: CheckpointConfig = _DEFAULT_CHECKPOINT,
    state_backend: StateBackend | None = None,
    guarantee: str | None = None,
    allow_weaker: bool = False,
    allow_feedback: bool = False,
    late_rows: str = "count",
    late_topic: str | None = None,
) -> Callable[[Callable[..., DataFrame]], Pipeline]:
    """Declare a pipeline.

    :param name: unique per Kafka cluster; it never changes
    :param source: one source, or several by the function's keyword arguments; ``{}``, with ``allow_weaker``, for a
        function that reads streams of other kinds by itself
    :param sink: where the result goes; several sinks get the same rows, or their :class:`Share` of them
    :param output_mode: ``append``, ``update`` or ``complete``
    :param max_batch_attempts: attempts of one batch before the query fails; by default 3
    :param ledger_retention: how much of the ledger's history stays; by default 30 days and 10,000 commits at least
    :param checkpoint: how it checkpoints, in Flink's words
    :param state_backend: where its state lives; by default RocksDB
    :param guarantee: ``exactly_once``, ``at_least_once`` or ``at_most_once``; by default the first
    :param allow_weaker: run even if the weakest link can't give that
    :param allow_feedback: the sink may write to a topic that the pipeline reads, its topic for bad records too
    :param late_rows: what becomes of rows behind the watermark. ``"count"``: Spark's operators leave them out; the
        ledger, status, log and metrics say how many. ``"stop"``: a batch that has any is not committed, and the
        pipeline ends. ``"topic"``: they go to ``late_topic`` in the batch's transaction, as JSON, with the headers
        ``exactlyonce.origin`` and ``exactlyonce.reason``; refused where an operator's late rows can't be told
    :param late_topic: None for the Kafka sink's ``<topic>.late``
    :raises RefusedError: when a value can't be
    """
    check_pipeline_name(name)
    if output_mode not in OUTPUT_MODES:
        raise RefusedError(f"output_mode={output_mode!r} of pipeline {name}: one of {', '.join(OUTPUT_MODES)}")
    if max_batch_attempts is not None and max_batch_attempts < 1:
        raise RefusedError(f"max_batch_attempts={max_batch_attempts} of pipeline {name}: at least 1")
    sources = {_ONE_SOURCE: source} if isinstance(source, KafkaSource) else dict(source)
    if not sources and not allow_weaker:
        raise RefusedError(f"pipeline {name} has no source: declare a KafkaSource; others give less, see allow_weaker")
    attempts = checkpoint.max_batch_attempts(max_batch_attempts, _MAX_BATCH_ATTEMPTS)
    promised = checkpoint.guarantee(guarantee)
    shares = _shares(name, [sink] if isinstance(sink, KafkaSink | Sink | Share) else sink)
    kafka = shares.kafka.sink if shares.kafka else None
    policy = late_policy(name, late_rows, late_topic, kafka.topic if kafka else None)
    if policy.topic is not None and promised is not CheckpointingMode.EXACTLY_ONCE:
        raise RefusedError(
            f"late_rows='topic' of pipeline {name} needs guarantee='exactly_once', not {promised.value!r}"
        )
    read = {one.topic for one in sources.values()}
    written = [*(kafka.topics if kafka else ()), *([policy.topic] if policy.topic is not None else ())]
    feedback.check_topics(name, written, read, allowed=allow_feedback)
    seconds = checkpoint.transaction_timeout_seconds(
        kafka.transaction_timeout_seconds if kafka else KafkaSink.transaction_timeout_seconds,
        KafkaSink.transaction_timeout_seconds,
    )

    def declare(function: Callable[..., DataFrame]) -> Pipeline:
        return Pipeline(
            name=name,
            sources=sources,
            shares=shares,
            transaction_timeout_seconds=seconds,
            output_mode=output_mode,
            function=function,
            max_batch_attempts=attempts,
            ledger_retention=ledger_retention,
            checkpoint=checkpoint,
            state_backend=state_backend,
            guarantee=promised,
            allow_weaker=allow_weaker,
            allow_feedback=allow_feedback,
            late_rows=policy,
            job=job_file.of(function),
        )

    return declare


def _shares(pipeline: str, sinks: Sequence[AnySink]) -> Shares:
    given = [one if isinstance(one, Share) else Share(one) for one in sinks]
    kafka = [one for one in given if isinstance(one.sink, KafkaSink)]
    others = [one for one in given if isinstance(one.sink, Sink)]
    if len(kafka) + len(others) < len(given) or not given:
        raise RefusedError(f"sink={sinks!r} of pipeline {pipeline}: a sink, or a list of sinks and shares of them")
    if len(kafka) > 1:
        raise RefusedError(
            f"pipeline {pipeline} has {len(kafka)} Kafka sinks: declare one, with a topic_column that names each row's "
            "topic; its transaction spans them all"
        )
    names = [one.sink.name for one in others]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RefusedError(f"pipeline {pipeline} has two sinks with the name {twice[0]!r}: give each its own")
    if KAFKA in names:
        raise RefusedError(f"a sink of pipeline {pipeline} has the name {KAFKA!r}, the Kafka sink's: give it another")
    if "" in names:
        raise RefusedError(f"a sink of pipeline {pipeline} has no name: give it one, which never changes")
    for position, one in enumerate(others):
        for other in others[:position]:
            if one.sink.exclusive_place is not None and one.sink.exclusive_place == other.sink.exclusive_place:
                raise RefusedError(one_place(pipeline, other.sink.name, one.sink.name))
    return Shares(kafka=kafka[0] if kafka else None, others=others)
