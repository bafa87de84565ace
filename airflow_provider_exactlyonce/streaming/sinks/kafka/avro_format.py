"""Avro as a format of values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

_MAGIC_BYTE: Final = 0


@dataclass(frozen=True)
class AvroFormat:
    """Values as Avro in the wire format of schema registries: a zero byte, the schema's id, the Avro binary.

    The job needs Spark's ``spark-avro`` package; ``exactlyonce run`` brings it.

    :param schema: the Avro schema, JSON; the result's columns are matched with its fields by name
    :param schema_id: the id that the registry has given to the schema
    """

    schema: str
    schema_id: int

    def encode(self, value: Column) -> Column:
        """Return the value's bytes.

        :param value: a struct
        """
        from pyspark.sql import functions as F
        from pyspark.sql.avro.functions import to_avro

        prefix = bytes([_MAGIC_BYTE]) + self.schema_id.to_bytes(4, "big")
        return F.concat(F.lit(prefix), to_avro(value, self.schema))
