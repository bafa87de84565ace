"""The Kafka source: its declaration, and records that fit a schema or stop the pipeline."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from airflow_provider_exactlyonce import moments
from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.kafka.config import for_spark
from airflow_provider_exactlyonce.ledger import source_clusters
from airflow_provider_exactlyonce.ledger.records import SourceRanges
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics, TopicPattern
from airflow_provider_exactlyonce.state import ddl
from airflow_provider_exactlyonce.streaming.analysis.source_mark import counted, mark
from airflow_provider_exactlyonce.streaming.job.source import NOWHERE, Begins, Source, columns_of
from airflow_provider_exactlyonce.streaming.registry.registry_format import RegistryFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_provider_exactlyonce.streaming.job.json_values import JsonValues
    from airflow_provider_exactlyonce.streaming.registry.encoded_values import EncodedValues

#: Why records of topics can be read again.
REPLAYABLE: Final = "its offsets are in the checkpoint and in the ledger"
_STARTS: Final = ("earliest", "latest")
#: {topic: {partition: offset}}
_Offsets = Mapping[str, Mapping[int, int]]
_HEADERS: Final = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
#: What Spark's source gives.
_KAFKA_COLUMNS: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
)

#: Options of Spark's source with which the guarantee doesn't hold, and the only values that are accepted.
_FAIL_ON_LOSS: Final = "failOnDataLoss"
_FIXED: Final[Mapping[str, str]] = {_FAIL_ON_LOSS: "true", "kafka.isolation.level": "read_committed"}
_LIMIT: Final = "maxOffsetsPerTrigger"
#: Options that a parameter of KafkaSource declares.
_DECLARED: Final[Mapping[str, str]] = {
    "subscribe": "topic",
    "subscribePattern": "topic",
    "assign": "topic",
    "startingOffsets": "starting_offsets",
    "startingTimestamp": "starting_offsets",
    "startingOffsetsByTimestamp": "starting_offsets",
    "startingOffsetsByTimestampStrategy": "starting_offsets",
    _LIMIT: "max_offsets_per_trigger",
}
#: A task takes one partition's records from its consumer a poll at a time; Kafka's own are 500 and 1 MiB.
_DEFAULTS: Final[Mapping[str, str]] = {
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    # At a partition's end a consumer's next fetch is on its way already; Spark asks for the offsets there are, and the
    # broker answers that after the fetch, so a task of a small batch takes as long as this at least. Kafka's is 500.
    "kafka.fetch.max.wait.ms": "10",
}


@dataclass(frozen=True)
class KafkaSource(Source):
    """Reads one or several topics, committed records only.

    With ``schema`` each value is a JSON object, or what ``value_format`` says, and the stream has the schema's columns.
    A field that is declared ``NOT NULL`` is required. A record that does not fit (no value, not JSON, a wrong type, a
    decimal that would be rounded, a required field that is missing) stops the pipeline before its batch commits; fields
    that the schema does not name are ignored. Without ``schema`` the stream has Spark's own columns: key, value, topic,
    partition, offset, timestamp, timestampType.

    :param topic: the topic; or a list of topics; or a :class:`TopicPattern`
    :param schema: columns in Spark's DDL, for example ``"id STRING NOT NULL, price DECIMAL(12,2)"``
    :param starting_offsets: where a new pipeline begins: ``"earliest"``, ``"latest"``, a time, or
        {topic: {partition: first offset}} with all partitions of all topics. From a time on records are read by the
        timestamps that Kafka has of them; a partition without later ones is read from its end. It is a ``datetime``, or
        text in ISO 8601; without a zone it is UTC
    :param max_offsets_per_trigger: at most so many records a batch, None for no limit
    :param offset_column: beside the schema's columns, one of this name with the record's offset: the order of records
        that have one key, which are in one partition
    :param options: more options of Spark's Kafka source
    :param value_format: what the values are, None for JSON. ``schema`` is made of the one of an :class:`AvroFormat` or
        of a :class:`ProtobufFormat`
    :param topic_column: beside the schema's columns, one of this name with the record's topic
    :param conn_id: the connection to the cluster that the topics are on, where that is not the pipeline's: one of
        ``EXACTLYONCE_SOURCES``, which operators fill
    """

    topic: str | Sequence[str] | TopicPattern
    schema: str | None = None
    starting_offsets: str | datetime | Mapping[str, Mapping[int, int] | Mapping[str, int]] = "earliest"
    max_offsets_per_trigger: int | None = None
    offset_column: str | None = field(default=None, repr=False)  # the version of a pipeline without it stays
    options: Mapping[str, str] = field(default_factory=dict)
    value_format: RegistryFormat | None = field(default=None, repr=False)  # its schema is in the other one
    topic_column: str | None = field(default=None, repr=False)
    conn_id: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        try:
            topics = SourceTopics.of(self.topic)
        except (RefusedError, TypeError):
            raise RefusedError(
                f"KafkaSource({self.topic!r}): the name of a topic, a list of names, or a TopicPattern"
            ) from None
        names = topics.names  # in one order: a pipeline's version does not change with it
        object.__setattr__(self, "topic", topics.pattern or (names if len(names) > 1 else names[0]))
        if self.value_format is not None:
            object.__setattr__(self, "schema", self._encoded_columns(self.value_format))
        if self.starting_offsets not in _STARTS:
            # One form for equal ones, in a pipeline's version, too.
            object.__setattr__(self, "starting_offsets", self._start())
        if self.max_offsets_per_trigger is not None and (
            not isinstance(self.max_offsets_per_trigger, int) or self.max_offsets_per_trigger < 1
        ):
            raise self._refused("max_offsets_per_trigger", "at least 1, or None for no limit")
        if self.schema is not None:
            try:
                ddl.check_columns(self.schema)
            except RefusedError as error:
                raise RefusedError(f"schema of KafkaSource({self.topic!r}) is not DDL: {error}") from error
        if self.conn_id is not None and (not isinstance(self.conn_id, str) or not self.conn_id):
            raise self._refused("conn_id", "the name of a connection, or None for the pipeline's cluster")
        for name in ("offset", "topic"):
            column = getattr(self, f"{name}_column")
            if column is not None and self.schema is None:
                raise RefusedError(
                    f"{name}_column={column!r} of KafkaSource({self.topic!r}): without a schema the stream has Spark's "
                    f"own columns, with {name}"
                )

    @property
    @override
    def topics(self) -> SourceTopics:
        return SourceTopics.of(self.topic)

    @property
    @override
    def connection(self) -> str | None:
        return self.conn_id

    @property
    @override
    def link(self) -> tuple[str, str]:
        return f"kafka {self.topics}", REPLAYABLE

    @property
    @override
    def spark_settings(self) -> Mapping[str, str]:
        return self.options

    @property
    @override
    def first_offsets(self) -> _Offsets:
        return self.starting_offsets if isinstance(self.starting_offsets, Mapping) else {}  # type: ignore[return-value]

    def _start(self) -> str | _Offsets:
        starting_offsets = self.starting_offsets
        try:
            if not isinstance(starting_offsets, Mapping):
                return moments.text(moments.milliseconds(starting_offsets))
            offsets = {
                topic: dict(
                    sorted((int(str(partition)), int(str(offset))) for partition, offset in by_partition.items())
                )
                for topic, by_partition in sorted(starting_offsets.items())
            }
        except (ValueError, TypeError, AttributeError):
            raise self._refused(
                "starting_offsets",
                f"{', '.join(_STARTS)}, a time in ISO 8601, or {{topic: {{partition: offset}}}}",
            ) from None
        topics = self.topics
        if not all(topic in topics for topic in offsets) or set(topics.names) - offsets.keys():
            raise self._refused("starting_offsets", f"the offsets of {topics}, and of no other topic")
        if any(number < 0 for by_partition in offsets.values() for pair in by_partition.items() for number in pair):
            raise self._refused("starting_offsets", "partitions and offsets from 0")
        return offsets

    def _encoded_columns(self, value_format: RegistryFormat) -> str:
        if not isinstance(value_format, RegistryFormat) or value_format.schema_id is not None:
            raise self._refused(
                "value_format",
                "None for JSON, or an AvroFormat or a ProtobufFormat without schema_id: each record has one",
            )
        columns = value_format.columns()
        if columns is None and self.schema is None:
            raise self._refused("value_format", "it needs a schema, of its own or of the source")
        if None not in (columns, self.schema) and columns != self.schema:
            raise self._refused("schema", "the columns are those of value_format's schema")
        return str(columns or self.schema)

    def _refused(self, name: str, accepted: str) -> RefusedError:
        return RefusedError(f"{name}={getattr(self, name)!r} of KafkaSource({self.topic!r}): {accepted}")

    @override
    def read(
        self, spark: SparkSession, config: Mapping[str, str], begins: Begins = NOWHERE, *, leave_out_bad: bool = False
    ) -> DataFrame:
        """Return the stream.

        :param config: client configuration of the pipeline's cluster, in librdkafka's names
        :param begins: Spark finds them in the checkpoint by itself
        :param leave_out_bad: leave out records that do not fit, as :meth:`bad_records` gives them to the sink
        :raises SettingRefusedError: when an option would break the guarantee
        """
        reader = spark.readStream.format("kafka").options(**self.spark_options(config))
        try:
            records = reader.load()
        except Exception as error:
            if "kafka" in str(error) and "Failed to find" in str(error):
                raise RefusedError(
                    "Spark's Kafka connector is not on the driver's class path; start the job with "
                    f"--packages org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}, or with `exactlyonce run`"
                ) from error
            raise
        return self.stream_of(records, leave_out_bad=leave_out_bad)

    @property
    @override
    def columns(self) -> str:
        """The columns of Spark's Kafka source as it is used here, in DDL."""
        headers = (_option(self.options, "includeHeaders") or "").lower() == "true"
        return _KAFKA_COLUMNS + (f", headers {_HEADERS}" if headers else "")

    @override
    def stream_of(self, records: DataFrame, *, leave_out_bad: bool = False) -> DataFrame:
        fitted = self.fitted(records, leave_out_bad=leave_out_bad)
        return mark(counted(fitted, self.topics) if leave_out_bad else fitted, self.topics)

    @override
    def stand_in(self, spark: SparkSession) -> DataFrame:
        schema = self.schema or self.columns
        if self.offset_column is not None:
            schema += f", `{self.offset_column}` BIGINT"
        if self.topic_column is not None:
            schema += f", `{self.topic_column}` STRING"
        # A path with a wildcard need not exist.
        stream = spark.readStream.format("parquet").schema(schema).load("/exactlyonce/planning/only/*")
        return mark(stream, self.topics)

    @override
    def bad_records(self, spark: SparkSession, config: Mapping[str, str], ranges: SourceRanges) -> DataFrame | None:
        """Read a batch's ranges again and return the records that do not fit, None when every record fits.

        The columns are key, value and headers; the last says where the record is from and why it does not fit.

        :param ranges: of all sources
        """
        own_ranges = self.topics.share(ranges)
        if self.schema is None or not any(own_ranges.values()):
            return None
        options = self.spark_options(config)
        options = {name: value for name, value in options.items() if _option(_DECLARED, name) is None}
        starts, ends = (
            {
                topic: {str(partition): span[bound] for partition, span in partitions.items()}
                for topic, partitions in own_ranges.items()
            }
            for bound in (0, 1)
        )
        batch_options = {
            "assign": json.dumps({topic: sorted(partitions) for topic, partitions in own_ranges.items()}),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
            "includeHeaders": "true",
        }
        options = _merged(options, batch_options)
        return self.misfits(spark.read.format("kafka").options(**options).load())

    @override
    def misfits(self, records: DataFrame) -> DataFrame:
        """Return the records that do not fit the schema, as :meth:`bad_records` does.

        :param records: a frame of Spark's Kafka columns with headers
        """
        from pyspark.sql import functions as F

        from airflow_provider_exactlyonce.streaming.sinks.kafka.columns import followed_by, origin_headers

        origin = F.concat(F.concat_ws("-", "topic", "partition"), F.lit(" offset "), "offset")
        headers = followed_by(origin_headers(origin, F.col("reason"))).alias("headers")
        return self._values().misfits(records).select("key", "value", headers)

    @property
    @override
    def may_lose(self) -> bool:
        return (_option(self.options, _FAIL_ON_LOSS) or "").lower() == "false"

    def spark_options(self, config: Mapping[str, str]) -> dict[str, str]:
        """Return the options that Spark's source gets; whether records may be lost is judged with the guarantee.

        :raises SettingRefusedError: when an option would break the guarantee, or says other than a parameter
        """
        fixed = dict(_FIXED)
        if self.may_lose:
            fixed[_FAIL_ON_LOSS] = "false"
        declared = self._declared()
        for name, value in self.options.items():
            setting = f"option {name} of KafkaSource"
            if (required := _option(fixed, name)) is not None and value.lower() != required:
                raise SettingRefusedError(setting, value, required, "records would be lost")
            parameter, required = _option(_DECLARED, name), _option(declared, name)
            if parameter is not None and getattr(self, parameter) is not None and value != required:
                raise SettingRefusedError(setting, value, required, f"use the parameter {parameter}")
            if name.lower() == "kafka.bootstrap.servers":
                raise SettingRefusedError(setting, value, None, "name a connection: conn_id")
        cluster = config if self.conn_id is None else source_clusters.from_environment(self.conn_id)
        return _merged(_DEFAULTS, self.options, for_spark(cluster), declared, fixed)

    def _declared(self) -> dict[str, str]:
        topics = self.topics
        declared = {"subscribePattern": topics.pattern.guarded} if topics.pattern else {"subscribe": str(topics)}
        if isinstance(self.starting_offsets, Mapping):
            declared["startingOffsets"] = json.dumps(self.starting_offsets)
        elif self.starting_offsets in _STARTS:
            declared["startingOffsets"] = str(self.starting_offsets)
        else:
            declared["startingTimestamp"] = str(moments.milliseconds(self.starting_offsets))
            declared["startingOffsetsByTimestampStrategy"] = "latest"
        if self.max_offsets_per_trigger is not None:
            declared[_LIMIT] = str(self.max_offsets_per_trigger)
        return declared

    def fitted(self, records: DataFrame, *, leave_out_bad: bool = False) -> DataFrame:
        """Return the schema's columns of Kafka records.

        :param records: a frame with Spark's Kafka columns
        :param leave_out_bad: leave out records that do not fit, instead of raising
        """
        return records if self.schema is None else self._values().fitted(records, leave_out_bad=leave_out_bad)

    def _values(self) -> JsonValues | EncodedValues:
        from airflow_provider_exactlyonce.streaming.job.json_values import JsonValues
        from airflow_provider_exactlyonce.streaming.registry import connection
        from airflow_provider_exactlyonce.streaming.registry.encoded_values import EncodedValues

        if self.value_format is None:
            return JsonValues(self._struct(), self.offset_column, self.topic_column)
        reader = self.value_format.reader(str(self.schema), connection.from_environment())
        return EncodedValues(reader, self._struct(), self.offset_column, self.topic_column)

    def _struct(self) -> StructType:
        return columns_of(str(self.schema), f"KafkaSource({self.topic!r})")


def _option(options: Mapping[str, str], name: str) -> str | None:
    """Return an option's value; Spark does not tell upper from lower case."""
    return next((value for option, value in options.items() if option.lower() == name.lower()), None)


def _merged(*layers: Mapping[str, str]) -> dict[str, str]:
    """Return the options of all layers; of equal names the last layer's."""
    return dict({name.lower(): (name, value) for layer in layers for name, value in layer.items()}.values())
