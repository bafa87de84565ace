"""What a user declares of the Iceberg sink; its committer reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from airflow_provider_exactlyonce.environment import parameters_of
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.settings import STORES_VARIABLE
from airflow_provider_exactlyonce.streaming.sinks.file_checks import check_compaction, check_format, check_name
from airflow_provider_exactlyonce.streaming.sinks.spi import TWO_PHASE_COMMIT, Sink

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql.types import StructType

    from airflow_provider_exactlyonce.streaming.sinks.iceberg.schema import NewColumn

FIXED: Final = "fixed"
EVOLVE: Final = "evolve"
_WORDS: Final = "pyiceberg's properties of a catalog"
_PARTS: Final = 3  # of a table's name, at least


@dataclass(frozen=True, kw_only=True)
class IcebergDeclaration(Sink):
    """The name, columns and format of an ``IcebergSink``, which says what each is."""

    table: str = field(kw_only=False)
    conn_id: str | None = None
    catalog_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    partition_by: Sequence[str] = ()
    schema: str = FIXED
    compression: str = "zstd"
    max_file_bytes: int = 256 * 2**20
    compact_every: int | None = None

    def __post_init__(self) -> None:
        given = (self.partition_by,) if isinstance(self.partition_by, str) else tuple(self.partition_by)
        object.__setattr__(self, "partition_by", given)
        parts = self.table.split(".")
        if len(parts) < _PARTS or not all(parts):
            raise RefusedError(
                f"IcebergSink({self.table!r}): name catalog, namespace and table, with dots between them"
            )
        check_name("IcebergSink", self.name)
        check_format("IcebergSink", self.compression, self.max_file_bytes)
        check_compaction("IcebergSink", self.compact_every)
        if self.schema not in (FIXED, EVOLVE):
            raise RefusedError(f"IcebergSink(schema={self.schema!r}): {FIXED!r} or {EVOLVE!r}")

    @property
    @override
    def guarantee(self) -> str:
        return TWO_PHASE_COMMIT

    @property
    @override
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        return {"kind": ("iceberg",), "table": (self.table,), "partition_by": tuple(self.partition_by)}

    @property
    def properties(self) -> dict[str, str]:
        """What pyiceberg is told of the catalog: the connection's, and over them those that are declared; never shown.

        :raises RefusedError: when the connection is not known here, or is to an object store
        """
        if self.conn_id is None:
            return dict(self.catalog_properties)
        given = parameters_of(STORES_VARIABLE, self.conn_id, _WORDS, "store_conn_ids") or {}
        if of_a_store := sorted(name for name in given if name.startswith("aws_")):
            raise RefusedError(
                f"connection {self.conn_id} of sink {self.name} has {', '.join(of_a_store)}, which is of an object "
                "store. Name one of type iceberg, whose extra has the store's keys as s3.access-key-id and so on"
            )
        return {**given, **self.catalog_properties}

    @property
    def where(self) -> str:
        """The table, for messages."""
        return f"table {self.table} of sink {self.name}"

    def missing_columns(self, table: TableMetadata, columns: StructType) -> list[NewColumn]:
        """Return the columns that the table lacks and gets, once everything else fits.

        :param columns: of the rows
        :raises RefusedError: naming what does not fit
        """
        from airflow_provider_exactlyonce.streaming.sinks.iceberg import partitions, properties, schema

        properties.check_table(table, self.where)
        partitions.check_spec(table.spec(), table.schema(), self.partition_by, self.where)
        return schema.missing_columns(table.schema(), columns, self.where, evolves=self.schema == EVOLVE)
