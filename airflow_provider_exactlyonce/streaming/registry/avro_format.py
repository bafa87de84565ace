"""Avro as a format of values, as a user declares it of a source or a sink."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.exceptions import RefusedError

if TYPE_CHECKING:
    from pyspark.sql import Column

_SUBJECTS: Final = ("topic", "record", "topic_record")
LATEST: Final = "latest"


@dataclass(frozen=True)
class AvroFormat:
    """Values as Avro in the wire format of schema registries: a zero byte, the schema's id, the Avro binary.

    A source decodes each record with the schema that its id names, and reads it as ``schema``. A sink registers
    ``schema`` when the pipeline starts, and writes its id. The registry is the one of ``EXACTLYONCE_SCHEMA_REGISTRY``,
    which operators fill from ``schema_registry_conn_id``.

    :param schema: the Avro schema of a record, JSON. Of a source: what it reads records as; None for the columns that
        its own ``schema`` declares. Of a sink: what it writes, with which the result's columns are matched by name;
        None for the schema that the columns make, ``"latest"`` for the latest of the subject
    :param schema_id: of a sink: the id that the registry has given to ``schema``; then no registry is asked
    :param subject: of a sink: which subject the schema belongs to. ``"topic"``: ``<topic>-value``; ``"record"``: the
        record's full name; ``"topic_record"``: both, ``<topic>-<full name>``
    :param register: of a sink: whether a schema that the subject lacks is added to it. If not, it has to be there
    :raises RefusedError: when the values do not go together
    """

    schema: str | None = None
    schema_id: int | None = None
    _: KW_ONLY
    subject: str = field(default="topic", repr=False)  # the version of a pipeline without them stays
    register: bool = field(default=True, repr=False)

    def __post_init__(self) -> None:
        if self.subject not in _SUBJECTS:
            raise RefusedError(f"AvroFormat(subject={self.subject!r}): {', '.join(_SUBJECTS)}")
        if self.schema == LATEST and self.subject != "topic":
            raise RefusedError(
                f"AvroFormat('latest', subject={self.subject!r}): the record is not known before; 'topic'"
            )
        if self.schema_id is not None and self.schema in (None, LATEST):
            raise RefusedError(f"AvroFormat(schema_id={self.schema_id}): the id is of a schema, which it needs, too")
        if self.schema_id is not None and not 0 <= self.schema_id < 2**31:
            raise RefusedError(f"AvroFormat(schema_id={self.schema_id}): 0 to {2**31 - 1}")

    def __str__(self) -> str:
        return repr(self) if self.subject == "topic" else f"{self!r}, subject {self.subject}"

    @property
    def names_topic(self) -> bool:
        """Whether a sink's subject is named after its topic."""
        return self.schema_id is None and self.subject != "record"

    def columns(self) -> str | None:
        """Return the columns of a source that reads records as the schema, in DDL; None when it names no schema.

        :raises RefusedError: when no columns can have what the schema says
        """
        from airflow_provider_exactlyonce.streaming.registry import avro_types

        return None if self.schema is None else avro_types.columns_ddl(avro_types.parse(self.schema))

    def reading_schema(self, columns: str) -> str:
        """Return the Avro schema that a source reads records as.

        :param columns: of the stream, in DDL
        :raises RefusedError: when Avro has no type for a column
        """
        import json

        from airflow_provider_exactlyonce.streaming.registry import avro_types

        return self.schema or json.dumps(avro_types.schema_of_columns(columns, "columns", reading=True))

    def encode(self, value: Column) -> Column:
        """Return the value's bytes; the format has a schema and its id.

        :param value: a struct
        """
        from pyspark.sql import functions as F
        from pyspark.sql.avro.functions import to_avro

        from airflow_provider_exactlyonce.streaming.registry import wire_format

        return F.concat(F.lit(wire_format.head(int(self.schema_id or 0))), to_avro(value, str(self.schema)))
