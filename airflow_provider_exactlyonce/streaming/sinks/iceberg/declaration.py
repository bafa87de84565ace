"""The user's declaration of the Iceberg sink; its committer reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.file_checks import check_name
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.declaration import TableDeclaration

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql.types import StructType

    from airflow_provider_exactlyonce.streaming.sinks.iceberg.schema import NewColumn

_WORDS: Final = "pyiceberg's properties of a catalog"
_PARTS: Final = 3  # of a table's name, at least


@dataclass(frozen=True, kw_only=True)
class IcebergDeclaration(TableDeclaration):
    """The table and catalog of an ``IcebergSink``, which describes them."""

    KIND: ClassVar = "IcebergSink"

    table: str = field(kw_only=False)
    catalog_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    expire_snapshots: bool = False

    def __post_init__(self) -> None:
        parts = self.table.split(".")
        if len(parts) < _PARTS or not all(parts):
            raise RefusedError(
                f"IcebergSink({self.table!r}): name catalog, namespace and table, with dots between them"
            )
        check_name(self.KIND, self.name)
        super().__post_init__()
        if self.expire_snapshots and self.compact_every is None:
            raise RefusedError("IcebergSink(expire_snapshots=True) needs compact_every: it is done as often")

    @property
    @override
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        return {"kind": ("iceberg",), "table": (self.table,), **super().facts}

    @property
    def properties(self) -> dict[str, str]:
        """The catalog's properties for pyiceberg: the connection's, overridden by the declared ones; never shown.

        :raises RefusedError: when the connection is not known here, or is to an object store
        """
        connection_options = self._connection_options(_WORDS)
        if store_options := sorted(
            name for name in connection_options if name.startswith(("aws_", "azure_", "google_"))
        ):
            raise RefusedError(
                f"connection {self.conn_id} of sink {self.name} has {', '.join(store_options)}, which is of an object "
                "store. Name one of type iceberg, whose extra has the store's keys as s3.access-key-id and so on"
            )
        return {**connection_options, **self.catalog_properties}

    @property
    @override
    def where(self) -> str:
        return f"table {self.table} of sink {self.name}"

    def missing_columns(self, table: TableMetadata, columns: StructType) -> list[NewColumn]:
        """Return the columns that the table lacks and gets, once everything else fits.

        :param columns: of the rows
        :raises RefusedError: naming what does not fit
        """
        from airflow_provider_exactlyonce.streaming.sinks.iceberg import partitions, properties, schema

        properties.check_table(table, self.where)
        partitions.check_spec(table.spec(), table.schema(), self.partition_by, self.where)
        missing = schema.missing_columns(table.schema(), columns, self.where, evolves=self.evolves)
        partitions.check_new_columns(table, missing, self.where)
        return missing
