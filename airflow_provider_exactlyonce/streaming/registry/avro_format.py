"""Avro as a format of values, as a user declares it of a source or a sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_provider_exactlyonce.streaming.registry import avro_defaults, avro_types
from airflow_provider_exactlyonce.streaming.registry.connection import RegistryAddress
from airflow_provider_exactlyonce.streaming.registry.readers import AvroReader
from airflow_provider_exactlyonce.streaming.registry.registry_format import Reader, RegistryFormat, Writer
from airflow_provider_exactlyonce.streaming.registry.writers import AvroWriter


@dataclass(frozen=True)
class AvroFormat(RegistryFormat):
    """Values as Avro in the wire format of schema registries: a zero byte, the schema's id, the Avro binary.

    A source decodes each record with the schema that its id names, and reads it as ``schema``. A sink registers
    ``schema`` when the pipeline starts, and writes its id. The registry is the one of ``EXACTLYONCE_SCHEMA_REGISTRY``,
    which operators fill from ``schema_registry_conn_id``.

    :param schema: the Avro schema of a record, JSON. Of a source: the reader's schema; None for the columns that its
        own ``schema`` declares. Of a sink: the schema to write, with the result's columns matched by name; None for
        the schema that the columns make, ``"latest"`` for the latest of the subject
    :param schema_id: of a sink: the id that the registry has given to ``schema``; then no registry is asked
    :param subject: of a sink: which subject the schema belongs to. ``"topic"``: ``<topic>-value``; ``"record"``: the
        record's full name; ``"topic_record"``: both, ``<topic>-<full name>``
    :param register: of a sink: whether a schema that the subject lacks is added to it. If not, it has to be there
    :raises RefusedError: when the values do not go together
    """

    kind = "AVRO"

    def columns(self) -> str | None:
        """Return the columns of a source that reads records as the schema, in DDL; None when it names no schema."""
        if self.schema is None:
            return None
        record = avro_types.parse(self.schema)
        columns = avro_types.columns_ddl(record)
        avro_defaults.check(record)
        return columns

    def reading_schema(self, columns: str) -> str:
        """Return the Avro schema that a source reads records as.

        :param columns: of the stream, in DDL
        :raises RefusedError: when Avro has no type for a column
        """
        return self.schema or avro_types.schema_of_columns(columns, "columns", reading=True)

    def reader(self, columns: str, address: RegistryAddress) -> Reader:
        """Return the reader of a source's values as the schema, or as its columns."""
        return AvroReader(self.reading_schema(columns), address)

    def writer(self, schema: str, imports: Mapping[str, str]) -> Writer:
        """Return the writer of a sink's values."""
        return AvroWriter(schema)

    def schema_of(self, columns: str, name: str, latest: Callable[[], Writer | None]) -> str:
        """Return the schema of a record that has a table's columns; they are found by name, whatever was before."""
        return avro_types.schema_of_columns(columns, name)
