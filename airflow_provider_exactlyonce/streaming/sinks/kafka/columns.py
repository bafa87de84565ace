"""From a query's result to the columns that Kafka records are made of, as Spark expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka.digest import BACKFILL_HEADER
from airflow_provider_exactlyonce.streaming.registry import subjects
from airflow_provider_exactlyonce.streaming.registry.registry_format import RegistryFormat

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink

_RAW_COLUMNS: Final = frozenset({"key", "value"})
_TEXT_TYPES: Final = frozenset({"string", "binary"})
#: Spark's type of a Kafka record's headers.
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
_ROUTING_TYPES: Final[Mapping[str, frozenset[str]]] = {
    "headers": frozenset({HEADERS_TYPE}),
    "partition": frozenset({"int", "smallint", "tinyint", "bigint"}),
    "timestamp": frozenset({"timestamp", "bigint"}),
    "topic_column": frozenset({"string"}),
}
#: At most this many bytes of a record batch of one record are neither key nor value nor a header's content.
_OVERHEAD_BYTES: Final = 61 + 40
_HEADER_OVERHEAD_BYTES: Final = 10


def encode(
    sink: KafkaSink, frame: DataFrame, *, batch_bytes_maximum: int | None = None, carried: Sequence[str] = ()
) -> DataFrame:
    """Return the columns of the frame's records.

    Always ``key`` and ``value`` (string or binary: Spark hashes both alike) and ``digest`` (bigint): Spark's xxhash64
    over key, its absence, value, its absence and the headers. Where the sink declares them, ``headers``, ``partition``
    and ``timestamp`` (bigint; milliseconds since the epoch) and ``topic``.

    :param batch_bytes_maximum: the topic's limit; larger records go to the topic for bad records, if the sink has one
    :param carried: columns that are no part of the records and stay as they are
    :raises RefusedError: when a column that the sink names is missing or of another type
    """
    result = frame.drop(*carried)
    _check_columns(sink, result)
    key, value = _key_and_value(sink, result)
    columns = {"key": key, "value": value}
    if sink.headers or sink.diverts:
        columns["headers"] = F.col(f"`{sink.headers}`") if sink.headers else F.lit(None).cast(HEADERS_TYPE)
    if sink.partition:
        columns["partition"] = F.col(f"`{sink.partition}`").cast("bigint")  # none is another in an int
    if sink.timestamp:
        time = F.col(f"`{sink.timestamp}`")
        is_timestamp = dict(result.dtypes)[sink.timestamp] == "timestamp"
        columns["timestamp"] = F.unix_millis(time) if is_timestamp else time
    if sink.topic_column or sink.diverts:
        column = F.col(f"`{sink.topic_column}`") if sink.topic_column else F.lit(None).cast("string")
        columns["topic"] = F.coalesce(column, F.lit(sink.topic).cast("string"))
    records = frame.select(*[column.alias(name) for name, column in columns.items()], *carried)
    if sink.diverts and batch_bytes_maximum is not None:
        records = _divert_oversized(sink, records, batch_bytes_maximum)
    return with_digest(records)


def with_digest(records: DataFrame) -> DataFrame:
    """Add ``digest`` to the other columns of records."""
    hashed = [F.col("key"), F.isnull("key"), F.col("value"), F.isnull("value")]
    if "headers" in records.columns:  # no headers, absent or empty, leave the hash as it is
        hashed.append(F.col("headers"))
    return records.withColumn("digest", F.xxhash64(*hashed))


def marked(records: DataFrame, backfill: str) -> DataFrame:
    """Mark records, in a header that their digest leaves out, as written by a backfill."""
    header = F.struct(F.lit(BACKFILL_HEADER).alias("key"), F.lit(backfill).cast("binary").alias("value"))
    mark = F.array(header).cast(HEADERS_TYPE)
    return records.withColumn("headers", followed_by(mark) if "headers" in records.columns else mark)


def _check_columns(sink: KafkaSink, frame: DataFrame) -> None:
    types = dict(frame.dtypes)
    for role, accepted in _ROUTING_TYPES.items():
        name = getattr(sink, role)
        if name is None:
            continue
        if name not in types:
            raise RefusedError(f"KafkaSink({role}={name!r}): the result has the columns {', '.join(frame.columns)}")
        if types[name] not in accepted:
            raise RefusedError(
                f"KafkaSink({role}={name!r}): the column is {types[name]}, it must be {' or '.join(sorted(accepted))}"
            )


def _key_and_value(sink: KafkaSink, frame: DataFrame) -> tuple[Column, Column]:
    if sink.key is not None and sink.key not in frame.columns:
        raise RefusedError(f"KafkaSink(key={sink.key!r}): the result has the columns {', '.join(frame.columns)}")
    routing = {getattr(sink, role) for role in _ROUTING_TYPES}
    types = {name: kind for name, kind in frame.dtypes if name not in routing}
    is_raw = "value" in types and types.keys() <= _RAW_COLUMNS and set(types.values()) <= _TEXT_TYPES
    if sink.value_format == "raw" and not is_raw:
        raise RefusedError(
            "KafkaSink(value_format='raw'): besides the columns that the sink names the result must have value, or key "
            f"and value, string or binary; it has {', '.join(f'{name} {kind}' for name, kind in types.items())}"
        )
    if sink.value_format == "raw" or (is_raw and sink.value_format is None and sink.key is None):
        key = sink.key or ("key" if "key" in types else None)
        return (F.lit(None).cast("binary") if key is None else F.col(key)), F.col("value")
    value_columns = [F.col(f"`{name}`") for name in types]
    content = F.struct(*value_columns)
    if isinstance(sink.value_format, RegistryFormat):
        value = subjects.encoded(sink.value_format, sink.topic, frame.select(*value_columns), content)
    else:
        value = F.to_json(content, {"ignoreNullFields": "false"})
    if sink.key is None:
        return F.lit(None).cast("binary"), value
    column = F.col(f"`{sink.key}`")
    return (column if dict(frame.dtypes)[sink.key] in _TEXT_TYPES else column.cast("string")), value


def _divert_oversized(sink: KafkaSink, records: DataFrame, batch_bytes_maximum: int) -> DataFrame:
    """Send records of the declared topic that may be above its limit to the topic for bad records, with the reason."""

    def size(column: Column) -> Column:
        return F.coalesce(F.octet_length(column), F.lit(0))

    in_headers = F.aggregate(
        F.coalesce(F.col("headers"), F.array().cast(HEADERS_TYPE)),
        F.lit(0),
        lambda total, header: total + size(header["key"]) + size(header["value"]) + F.lit(_HEADER_OVERHEAD_BYTES),
    )
    total = size(F.col("key")) + size(F.col("value")) + in_headers + F.lit(_OVERHEAD_BYTES)
    oversized = (F.col("topic") == F.lit(sink.topic)) & (total > batch_bytes_maximum)
    reason = F.concat(
        total.cast("string"),
        F.lit(f" bytes as a record batch, the limit of {sink.topic} is {batch_bytes_maximum}"),
    )
    diverted = origin_headers(F.lit(f"sink {sink.topic}"), reason)
    changed = {
        "topic": F.when(oversized, F.lit(sink.bad_topic)).otherwise(F.col("topic")),
        "headers": F.when(oversized, followed_by(diverted)).otherwise(F.col("headers")),
    }
    if sink.partition:  # the other topic may have fewer
        changed["partition"] = F.when(~oversized, F.col("partition"))
    return records.withColumns(changed)


def followed_by(headers: Column) -> Column:
    """Return a record's own headers, followed by others."""
    return F.concat(F.coalesce("headers", F.array().cast(HEADERS_TYPE)), headers)


def origin_headers(origin: Column, reason: Column) -> Column:
    """Return the headers that tell where a bad record comes from, and why it is bad."""
    return F.array(
        *[
            F.struct(F.lit(f"exactlyonce.{name}").alias("key"), text.cast("binary").alias("value"))
            for name, text in (("origin", origin), ("reason", reason))
        ]
    ).cast(HEADERS_TYPE)
