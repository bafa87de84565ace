"""Writes a sink's values as Protobuf, in Python workers."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_provider_exactlyonce.streaming.registry import protobuf_schemas, protobuf_types, wire_format
from airflow_provider_exactlyonce.streaming.registry.protobuf_encoder import MessageWriter

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class ProtobufWriter:
    """Writes values as a message; pickled to the tasks.

    :param schema: the text of a ``.proto`` file
    :param imports: the schemas that it imports, and their names
    :param message: the message's name, None for the first one of the schema
    """

    schema: str
    imports: tuple[tuple[str, str], ...] = ()
    message: str | None = None

    @property
    def descriptor(self) -> Descriptor:
        """The message.

        :raises RefusedError: when there is no such schema, or no such message in it
        """
        return protobuf_schemas.message_named(protobuf_schemas.compiled(self.schema, self.imports), self.message)

    @property
    def name(self) -> str:
        """The full name of the message."""
        return str(self.descriptor.full_name)

    def check(self, values: DataFrame) -> None:
        """Compare the columns with the message's fields.

        :raises RefusedError: when they can't be written with it
        """
        columns = protobuf_types.of_columns(str(values._jdf.schema().toDDL()))
        MessageWriter(self.descriptor, protobuf_types.struct_of(columns))
        protobuf_schemas.indexes_of(self.descriptor)

    def encode(self, value: Column, schema_id: int) -> Column:
        """Return the value's bytes in the wire format, with the indexes of the message."""
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.functions import arrow_udf
        from pyspark.sql.types import BinaryType

        head = wire_format.head(schema_id) + wire_format.message_indexes(protobuf_schemas.indexes_of(self.descriptor))

        def exactlyonce_encoding(rows: pa.Array) -> pa.Array:
            return self.open(rows.type).write(rows)

        encoding = arrow_udf(exactlyonce_encoding, BinaryType())  # type: ignore[call-overload]  # its stubs know no hints
        return F.concat(F.lit(head), encoding(value))

    @functools.lru_cache  # noqa: B019  # a process has few
    def open(self, rows: pa.StructType) -> MessageWriter:
        """Return what writes rows of a type, the same one in all tasks of a process."""
        return MessageWriter(self.descriptor, rows)
