"""The definition of a declared pipeline."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.checkpoint.job import JobDescription
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.records import SourceRanges
from airflow_provider_exactlyonce.ledger.retention import DEFAULT_RETENTION, LedgerRetention
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.streaming.analysis.late_rows import COUNT_LATE_ROWS, LateRowsPolicy, check_can_be_told
from airflow_provider_exactlyonce.streaming.analysis.logical_plans import undeclared_streams
from airflow_provider_exactlyonce.streaming.job.checkpoint_config import CheckpointConfig, CheckpointingMode
from airflow_provider_exactlyonce.streaming.job.job_file import JobSource
from airflow_provider_exactlyonce.streaming.job.source import NOWHERE, Begins, Source, table_begins
from airflow_provider_exactlyonce.streaming.job.state_backend import StateBackend
from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink
from airflow_provider_exactlyonce.streaming.sinks.sink_routes import SinkRoutes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("exactlyonce")

#: The name of a source that is the function's only positional argument.
ONE_SOURCE: Final = ""
MAX_BATCH_ATTEMPTS: Final = 3
DEFAULT_CHECKPOINT: Final = CheckpointConfig()


@dataclass(frozen=True, kw_only=True)
class PipelineDefinition:
    """A named stream: sources, a function of ordinary PySpark, a sink.

    :param name: unique per Kafka cluster; ledger and transactional.id are named by it
    :param sources: by the function's argument; one source without a name is its only positional argument
    :param routes: each sink's share of the result
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
    sources: Mapping[str, Source]
    routes: SinkRoutes
    output_mode: str
    function: Callable[..., DataFrame]
    max_batch_attempts: int = MAX_BATCH_ATTEMPTS
    ledger_retention: LedgerRetention = DEFAULT_RETENTION
    checkpoint: CheckpointConfig = DEFAULT_CHECKPOINT
    state_backend: StateBackend | None = None
    transaction_timeout_seconds: int = KafkaSink.transaction_timeout_seconds
    guarantee: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    allow_weaker: bool = False
    allow_feedback: bool = False
    late_rows: LateRowsPolicy = COUNT_LATE_ROWS
    job: JobSource | None = None

    @property
    def source_patterns(self) -> tuple[str, ...]:
        """The expressions with which its sources find topics."""
        patterns = [source.topics.pattern for source in self.sources.values()]
        return tuple(pattern.expression for pattern in patterns if pattern is not None)

    @property
    def source_connections(self) -> dict[str, str]:
        """{topics of a source, as text: its connection} of sources that are not read from the pipeline's cluster."""
        sources = self.sources.values()
        return {str(source.topics): source.connection for source in sources if source.connection is not None}

    def topics_read(self, clusters: SourceClusters) -> list[str]:
        """Return the topics that it reads.

        :param clusters: asked only where a pattern has to be
        :raises RefusedError: when two sources read one topic, and one of them by a pattern
        """
        sources = [source.topics for source in self.sources.values()]
        topics = {topic for source in sources for topic in clusters.topics(source)}
        for topic in sorted(topics):
            readers = [source for source in sources if topic in source]
            if len(readers) > 1 and any(source.pattern for source in readers):
                raise RefusedError(f"two sources of pipeline {self.name} read topic {topic}: let one of them read it")
        return sorted(topics)

    @property
    def mode(self) -> CheckpointingMode:
        """How batches are committed; a weaker guarantee makes it cheaper only where Kafka is the only sink."""
        return CheckpointingMode.EXACTLY_ONCE if self.routes.others else self.guarantee

    @property
    def sink(self) -> KafkaSink | None:
        """The Kafka sink, None when no sink is Kafka."""
        return None if self.routes.kafka is None else self.routes.kafka.sink

    @property
    def sink_topics(self) -> list[str]:
        """The topics that it is known to write before the first row."""
        topics = self.sink.topics if self.sink is not None else []
        return [*topics, self.late_rows.topic] if self.late_rows.topic is not None else topics

    def kafka_sink(self, what: str) -> KafkaSink:
        """Return the Kafka sink.

        :param what: its use, for the message
        :raises RefusedError: when the pipeline has none
        """
        if self.sink is None:
            raise RefusedError(f"{what} needs a KafkaSink, and pipeline {self.name} has none")
        return self.sink

    def __call__(self, *args: Any, **kwargs: Any) -> DataFrame:
        """Apply the function, to batch frames in a test as to streams."""
        return self.function(*args, **kwargs)

    def result(self, spark: SparkSession, config: Mapping[str, str], begins: Begins = NOWHERE) -> DataFrame:
        """Return the stream that goes to the sink.

        :param begins: where the checkpoint begins, by the topics that it knows
        """
        diverts = self.sink is not None and self.sink.diverts
        frames = {
            name: source.read(spark, config, begins, leave_out_bad=diverts) for name, source in self.sources.items()
        }
        return self.applied(frames)

    def planned(self, spark: SparkSession) -> DataFrame:
        """Return the same stream for planning only: without a broker, and without a record in it."""
        return self.applied({name: source.stand_in(spark) for name, source in self.sources.items()})

    def applied(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """Return the function's result for its sources' streams.

        :param frames: by the sources' names in :attr:`sources`
        :raises RefusedError: when the result is no stream
        """
        from pyspark.sql import DataFrame

        result = self.function(frames[ONE_SOURCE]) if ONE_SOURCE in frames else self.function(**frames)
        if not isinstance(result, DataFrame) or not result.isStreaming:
            returned = "a DataFrame that is no stream" if isinstance(result, DataFrame) else repr(result)
            raise RefusedError(
                f"the function of pipeline {self.name} returned {returned}; let it return what it makes of its sources"
            )
        return result

    def check(self, result: DataFrame) -> None:
        """Check that the declarations fit the stream that goes to the sinks.

        :raises RefusedError: when it does not
        """
        self.routes.check(result)
        if table_begins(self.sources.values()) and (streams := undeclared_streams(result)):
            raise RefusedError(
                f"the function of pipeline {self.name}, which reads a table, reads a stream of {streams[0].source} by "
                "itself: declare all of its sources"
            )
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

        from airflow_provider_exactlyonce.streaming.sinks.kafka import columns

        bad_records = [source.bad_records(spark, config, ranges) for source in self.sources.values()]
        frames = [frame for frame in bad_records if frame is not None]
        if not frames:
            return None
        records = reduce(lambda frame, other: frame.unionByName(other), frames).withColumn("topic", F.lit(bad_topic))
        return columns.with_digest(records)

    def describe(self, spark: SparkSession, result: DataFrame, unsure: Sequence[str] = ()) -> JobDescription:
        """Return this version's description, for the savepoints of its commits.

        :param result: the stream that goes to the sink, or the stream for planning only
        :param unsure: parts that may give other rows when a batch is run again
        """
        from airflow_provider_exactlyonce.streaming.analysis.plan_description import describe

        try:
            plan = describe(result, self.routes.facts)
        except Exception as error:  # no stream stops because an upgrade could not be judged later
            log.warning("the plan could not be described, so that savepoints will lack it: %s", error)
            plan = None
        return JobDescription(
            version=self.version,
            job_hash=self.job_hash,
            spark_version=spark.version,
            output_mode=self.output_mode,
            sources={
                topic: source.schema
                for source in self.sources.values()
                for topic in source.topics.names or (str(source.topics),)
            },
            sinks=tuple(self.routes.names),
            result_schema=result.schema.json(),
            nondeterministic=tuple(unsure),
            plan=plan,
        )

    @property
    def version(self) -> str:
        """The first 12 hexadecimal digits of the SHA-256 of the job's file and declaration."""
        text = self.job.content if self.job else repr(self.function).encode()
        declared = repr((self.name, dict(self.sources), self.routes.declared, self.output_mode)).encode()
        return hashlib.sha256(text + declared).hexdigest()[:12]

    @property
    def job_hash(self) -> str | None:
        """The SHA-256 of the job's file, None when it has none."""
        return self.job.hash if self.job else None
