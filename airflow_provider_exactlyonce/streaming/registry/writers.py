"""Writers of a sink's values: Spark's own functions for Avro, Python workers for Protobuf."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.registry import avro_types, protobuf_schemas, protobuf_types, wire_format
from airflow_provider_exactlyonce.streaming.registry.protobuf_encoder import MessageWriter
from airflow_provider_exactlyonce.streaming.spark.jvm import class_of, java_schema

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class AvroWriter:
    """Writes values with an Avro schema, JSON."""

    schema: str

    @property
    def name(self) -> str:
        """The full name of the record that a value is."""
        return avro_types.parse(self.schema).name

    def check(self, values: DataFrame) -> None:
        """Have Spark compare the columns with the schema, which it would do in a task only.

        :raises RefusedError: when they can't be written with it
        """
        spark = values.sparkSession
        if avro_types.parse(self.schema).kind != "record":
            raise RefusedError(f"AvroFormat: the schema is no record: {self.schema[:200]}")
        try:
            parsed = class_of(spark, "org.apache.avro.Schema$Parser")().parse(self.schema)
            class_of(spark, "org.apache.spark.sql.avro.AvroSerializer")(java_schema(values), parsed, False)
        except TypeError:
            raise RefusedError(
                "Spark's Avro package is not on the driver's class path; start the job with --packages "
                f"org.apache.spark:spark-avro_2.13:{spark.version}, or with `exactlyonce run`"
            ) from None
        except Exception as error:
            # The innermost names the field.
            causes = [line for line in str(error).splitlines() if "Exception: " in line]
            reason = causes[-1].partition("Exception: ")[2] if causes else str(error)
            raise RefusedError(f"AvroFormat: the result can't be written with the schema: {reason}") from None

    def encode(self, value: Column, schema_id: int) -> Column:
        """Return the value's bytes in the wire format."""
        from pyspark.sql import functions as F
        from pyspark.sql.avro.functions import to_avro

        return F.concat(F.lit(wire_format.head(schema_id)), to_avro(value, self.schema))


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
        columns = protobuf_types.of_columns(str(java_schema(values).toDDL()))
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
        """Return the writer of rows of a type, the same one in all tasks of a process."""
        return MessageWriter(self.descriptor, rows)
