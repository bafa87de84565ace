"""The Kafka sink, as a user declares it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka.compression import Compression
from airflow_provider_exactlyonce.streaming.registry.registry_format import RegistryFormat


@dataclass(frozen=True)
class KafkaSink:
    """Writes each micro-batch to one topic or several in one transaction.

    Without ``value_format`` and ``key``, a frame whose only columns are ``value`` or ``key`` and ``value`` (string or
    binary) is written as it is, as Spark's own sink does. Everything else becomes one JSON object a row, with nulls.
    The columns named by ``headers``, ``partition``, ``timestamp`` and ``topic_column`` are not part of the value.

    :param topic: the topic, which must exist; None when every row names its own
    :param key: the column whose text or bytes is the record key, None for records without a key
    :param value_format: ``"json"``, ``"raw"``, an :class:`AvroFormat` or a :class:`ProtobufFormat`, None for the rule
        above
    :param headers: a column ``array<struct<key: string, value: binary>>``, as Spark's Kafka source gives it
    :param partition: an integer column with the target partition; rows with null go by their key
    :param timestamp: a column, timestamp or milliseconds since the epoch, with the record's CreateTime; null is now
    :param topic_column: a string column with the record's topic; null is ``topic``
    :param compression: ``none``, ``gzip``, ``snappy``, ``lz4`` or ``zstd``
    :param compression_level: the codec's level, None for the Java client's default
    :param bad_records: ``"stop"``: a source record that does not fit its schema, and a record above its topic's limit,
        stop the pipeline. ``"topic"``: they go to ``bad_records_topic`` in the same transaction, with the headers
        ``exactlyonce.origin`` and ``exactlyonce.reason``; the ledger counts them
    :param bad_records_topic: None for ``<topic>.bad``; with a larger ``max.message.bytes``, for records too large
    :param offsets_group: a consumer group without members, whose offsets follow the pipeline's: committed in the
        batch's transaction, for tools that show a lag
    :param transaction_timeout_seconds: from the first record to the commit of one batch; at most the broker's
        ``transaction.max.timeout.ms``. A batch that takes longer is aborted and attempted again
    :raises RefusedError: when the values do not go together
    """

    topic: str | None = None
    key: str | None = None
    transaction_timeout_seconds: int = 300
    _: KW_ONLY
    value_format: str | RegistryFormat | None = None
    headers: str | None = None
    partition: str | None = None
    timestamp: str | None = None
    topic_column: str | None = None
    compression: str = "none"
    compression_level: int | None = None
    bad_records: str = "stop"
    bad_records_topic: str | None = None
    offsets_group: str | None = None

    def __post_init__(self) -> None:
        for name in ("topic", "key", "topic_column"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise RefusedError(f"KafkaSink({name}={value!r}): a name, or None")
        if self.topic is None and self.topic_column is None:
            raise RefusedError("KafkaSink needs a topic, or a topic_column")
        if not (self.value_format in (None, "json", "raw") or isinstance(self.value_format, RegistryFormat)):
            raise RefusedError(
                f"KafkaSink(value_format={self.value_format!r}): 'json', 'raw', an AvroFormat or a ProtobufFormat"
            )
        if isinstance(self.value_format, RegistryFormat) and self.topic is None and self.value_format.names_topic:
            name = type(self.value_format).__name__
            raise RefusedError(f"KafkaSink without a topic: {name}(subject='record'), or with a schema_id")
        if self.bad_records not in ("stop", "topic"):
            raise RefusedError(f"KafkaSink(bad_records={self.bad_records!r}): 'stop' or 'topic'")
        if self.diverts and (self.topic is None or self.bad_topic == self.topic):
            raise RefusedError("KafkaSink(bad_records='topic') needs a topic, and another one for bad records")
        Compression(
            self.compression, self.compression_level
        )  # refuses an unknown codec, and a level that the codec lacks
        if self.transaction_timeout_seconds < 1:
            raise RefusedError(f"KafkaSink(transaction_timeout_seconds={self.transaction_timeout_seconds}): at least 1")

    @property
    def diverts(self) -> bool:
        """Whether bad records go to a topic of their own."""
        return self.bad_records == "topic"

    @property
    def bad_topic(self) -> str | None:
        """The topic for bad records, None when there is none."""
        return (self.bad_records_topic or f"{self.topic}.bad") if self.diverts else None

    @property
    def facts(self) -> dict[str, tuple[str, ...]]:
        """The properties that readers notice, and a new version of the job may change."""
        names = ("key", "value_format", "headers", "partition", "timestamp", "topic_column")
        settings = {name: getattr(self, name) for name in names}
        return {
            "kind": ("kafka",),
            "topics": tuple(self.topics),
            **{name: (str(value),) for name, value in settings.items() if value is not None},
        }

    @property
    def topics(self) -> list[str]:
        """The topics that are known before the first row."""
        return [topic for topic in (self.topic, self.bad_topic) if topic is not None]
