"""Protobuf as a format of values, as a user declares it of a source or a sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from airflow_provider_exactlyonce.streaming.registry import protobuf_schemas, protobuf_types
from airflow_provider_exactlyonce.streaming.registry.connection import RegistryAddress
from airflow_provider_exactlyonce.streaming.registry.readers import ProtobufReader
from airflow_provider_exactlyonce.streaming.registry.registry_format import Reader, RegistryFormat, Writer
from airflow_provider_exactlyonce.streaming.registry.writers import ProtobufWriter


@dataclass(frozen=True)
class ProtobufFormat(RegistryFormat):
    """Values as Protobuf in the wire format of schema registries: zero, the schema's id, which message, the message.

    A source decodes each record with the schema that its id names, and reads it as ``schema``. A sink registers
    ``schema`` when the pipeline starts, and writes its id. The registry is the one of ``EXACTLYONCE_SCHEMA_REGISTRY``,
    which operators fill from ``schema_registry_conn_id``.

    :param schema: the text of a ``.proto`` file, which imports nothing but ``google/protobuf``. Of a source: the
        reader's schema, with fields found by their numbers; None for the columns that its own ``schema`` declares,
        which are found by their names. Of a sink: the schema to write, with the result's columns matched by name;
        None for the schema that the columns make, ``"latest"`` for the latest of the subject
    :param schema_id: of a sink: the id that the registry has given to ``schema``; then no registry is asked
    :param message: the name of the message in ``schema``, None for its first one
    :param subject: of a sink: which subject the schema belongs to. ``"topic"``: ``<topic>-value``; ``"record"``: the
        message's full name; ``"topic_record"``: both, ``<topic>-<full name>``
    :param register: of a sink: whether a schema that the subject lacks is added to it. If not, it has to be there
    :raises RefusedError: when the values do not go together
    """

    message: str | None = field(default=None, kw_only=True)

    kind = "PROTOBUF"

    def columns(self) -> str | None:
        """Return the columns of a source that reads records as the schema, in DDL; None when it names no schema."""
        if self.schema is None:
            return None
        protobuf_schemas.check_compiler()
        file = protobuf_schemas.compiled(self.schema)
        return protobuf_types.columns_ddl(protobuf_schemas.message_named(file, self.message))

    def reader(self, columns: str, address: RegistryAddress) -> Reader:
        """Return the reader of a source's values as the schema's message, or as its columns."""
        protobuf_schemas.check_compiler()
        if self.schema is None:
            return ProtobufReader(protobuf_types.of_columns(columns), address)
        message = protobuf_schemas.message_named(protobuf_schemas.compiled(self.schema), self.message)
        return ProtobufReader(protobuf_types.of_message(message), address)

    def writer(self, schema: str, imports: Mapping[str, str]) -> Writer:
        """Return the writer of a sink's values."""
        protobuf_schemas.check_compiler()
        return ProtobufWriter(schema, tuple(imports.items()), self.message)

    def schema_of(self, columns: str, name: str, latest: Callable[[], Writer | None]) -> str:
        """Return the schema of a message that has a table's columns; each keeps the number that it had before."""
        protobuf_types.of_columns(columns)  # a column without a type is refused before a registry is asked
        latest_writer = latest()
        latest_message = (
            latest_writer.descriptor
            if isinstance(latest_writer, ProtobufWriter) and latest_writer.name == name
            else None
        )
        return protobuf_schemas.schema_of_columns(columns, name, latest_message)
