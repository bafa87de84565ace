"""What a sink writes with: a schema under a subject of the registry, settled when the pipeline starts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.registry import avro_types, connection
from airflow_provider_exactlyonce.streaming.registry.avro_format import LATEST, AvroFormat
from airflow_provider_exactlyonce.streaming.spark.jvm import class_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AVRO: Final = "AVRO"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def settled(given: AvroFormat, topic: str | None, values: DataFrame) -> AvroFormat:
    """Return a sink's format with its schema and the id that the registry has for it.

    :param topic: that the sink writes, None when each row names its own
    :param values: whose columns make a value
    :raises RefusedError: when the columns are not those of the schema, or with the registry's words for what it refuses
    :raises BatchFailedError: when the registry does not answer
    """
    if given.schema_id is not None:
        _check(str(given.schema), values)
        return given
    registry = connection.connect(connection.from_environment())
    if given.schema == LATEST:
        number, latest = registry.latest(f"{topic}-value")
        if latest.schema_type != AVRO:
            raise RefusedError(f"AvroFormat('latest'): schema {number} of {topic}-value is {latest.schema_type}")
        _check(str(latest.schema_str), values)
        return replace(given, schema=latest.schema_str, schema_id=number)
    schema = given.schema or _schema_of(values, topic)
    _check(schema, values)
    settle = registry.register if given.register else registry.lookup
    return replace(given, schema=schema, schema_id=settle(_subject(given, topic, schema), AVRO, schema))


def _schema_of(values: DataFrame, topic: str | None) -> str:
    for name in values.columns:
        if not _NAME.fullmatch(name):
            raise RefusedError(f"AvroFormat: column {name!r} can't be a field: a name is letters, digits and _")
    name = re.sub(r"[^A-Za-z0-9_]", "_", f"{topic or 'rows'}_value")
    name = name if _NAME.fullmatch(name) else f"_{name}"
    return json.dumps(avro_types.schema_of_columns(str(values._jdf.schema().toDDL()), name))


def _subject(given: AvroFormat, topic: str | None, schema: str) -> str:
    name = avro_types.parse(schema).name
    return {"topic": f"{topic}-value", "record": name, "topic_record": f"{topic}-{name}"}[given.subject]


def _check(schema: str, values: DataFrame) -> None:
    """Have Spark compare the columns with the schema, which it would do in a task only."""
    spark = values.sparkSession
    if avro_types.parse(schema).kind != "record":
        raise RefusedError(f"AvroFormat: the schema is no record: {schema[:200]}")
    try:
        parsed = class_of(spark, "org.apache.avro.Schema$Parser")().parse(schema)
        class_of(spark, "org.apache.spark.sql.avro.AvroSerializer")(values._jdf.schema(), parsed, False)
    except TypeError:
        raise RefusedError(
            "Spark's Avro package is not on the driver's class path; start the job with --packages "
            f"org.apache.spark:spark-avro_2.13:{spark.version}, or with `exactlyonce run`"
        ) from None
    except Exception as error:
        causes = [line for line in str(error).splitlines() if "Exception: " in line]  # the innermost names the field
        said = causes[-1].partition("Exception: ")[2] if causes else str(error)
        raise RefusedError(f"AvroFormat: the result can't be written with the schema: {said}") from None
