"""Writes a sink's values as Avro, with Spark's own functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.registry import avro_types, wire_format
from airflow_provider_exactlyonce.streaming.spark.jvm import class_of

if TYPE_CHECKING:
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
            class_of(spark, "org.apache.spark.sql.avro.AvroSerializer")(values._jdf.schema(), parsed, False)
        except TypeError:
            raise RefusedError(
                "Spark's Avro package is not on the driver's class path; start the job with --packages "
                f"org.apache.spark:spark-avro_2.13:{spark.version}, or with `exactlyonce run`"
            ) from None
        except Exception as error:
            causes = [
                line for line in str(error).splitlines() if "Exception: " in line
            ]  # the innermost names the field
            said = causes[-1].partition("Exception: ")[2] if causes else str(error)
            raise RefusedError(f"AvroFormat: the result can't be written with the schema: {said}") from None

    def encode(self, value: Column, schema_id: int) -> Column:
        """Return the value's bytes in the wire format."""
        from pyspark.sql import functions as F
        from pyspark.sql.avro.functions import to_avro

        return F.concat(F.lit(wire_format.head(schema_id)), to_avro(value, self.schema))
