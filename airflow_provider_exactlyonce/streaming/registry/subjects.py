"""A sink's schema under a subject of the registry, settled when the pipeline starts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.registry import connection
from airflow_provider_exactlyonce.streaming.registry.registry_format import LATEST, RegistryFormat, Writer
from airflow_provider_exactlyonce.streaming.spark.jvm import java_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from airflow_provider_exactlyonce.streaming.registry.connection import Registry

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def encoded(given: RegistryFormat, topic: str | None, values: DataFrame, value: Column) -> Column:
    """Return encoded values, with the schema of a sink's format and the id that the registry has for it.

    :param topic: that the sink writes, None when each row names its own
    :param values: whose columns make a value
    :param value: the struct of them
    :raises RefusedError: when the columns are not the schema's, or with the registry's text when it refuses the schema
    :raises BatchFailedError: when the registry does not answer
    """
    writer, number = _settled(given, topic, values)
    return writer.encode(value, number)


def _settled(value_format: RegistryFormat, topic: str | None, values: DataFrame) -> tuple[Writer, int]:
    if value_format.schema_id is not None:
        return _checked(value_format.writer(str(value_format.schema), {}), values), value_format.schema_id
    registry = connection.connect(connection.from_environment())
    if value_format.schema == LATEST:
        latest = _latest(value_format, registry, f"{topic}-value")
        if latest is None:
            raise RefusedError(
                f"{type(value_format).__name__}('latest'): the schema registry has no subject {topic}-value"
            )
        return _checked(latest[0], values), latest[1]
    name = _record_name(topic)
    if value_format.schema is None:
        subject = _subject(value_format, topic, name)
        schema = value_format.schema_of(
            _columns(values), name, lambda: (_latest(value_format, registry, subject) or (None,))[0]
        )
        writer = value_format.writer(schema, {})
    else:
        schema, writer = value_format.schema, value_format.writer(value_format.schema, {})
        subject = _subject(value_format, topic, writer.name)
    _checked(writer, values)
    settle = registry.register if value_format.register else registry.lookup
    return writer, settle(subject, value_format.kind, schema)


def _latest(value_format: RegistryFormat, registry: Registry, subject: str) -> tuple[Writer, int] | None:
    latest = registry.latest(subject)
    if latest is None:
        return None
    number, schema = latest
    if schema.schema_type != value_format.kind:
        raise RefusedError(f"{type(value_format).__name__}: schema {number} of {subject} is {schema.schema_type}")
    return value_format.writer(str(schema.schema_str), registry.referred(schema)), number


def _checked(writer: Writer, values: DataFrame) -> Writer:
    writer.check(values)
    return writer


def _columns(values: DataFrame) -> str:
    for name in values.columns:
        if not _NAME.fullmatch(name):
            raise RefusedError(f"column {name!r} can't be a field: a name is letters, digits and _")
    return str(java_schema(values).toDDL())


def _record_name(topic: str | None) -> str:
    name = re.sub(r"[^A-Za-z0-9_]", "_", f"{topic or 'rows'}_value")
    return name if _NAME.fullmatch(name) else f"_{name}"


def _subject(value_format: RegistryFormat, topic: str | None, name: str) -> str:
    return {"topic": f"{topic}-value", "record": name, "topic_record": f"{topic}-{name}"}[value_format.subject]
