"""The user's declaration of the Delta sink; its committer reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from typing_extensions import override

from airflow_provider_exactlyonce.streaming.sinks.file_checks import check_place, check_plain
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.declaration import UPSERT, TableDeclaration

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, Field

_WORDS: Final = "delta-rs' storage options"


@dataclass(frozen=True, kw_only=True)
class DeltaDeclaration(TableDeclaration):
    """The path and store of a ``DeltaSink``, which describes them."""

    KIND: ClassVar = "DeltaSink"

    path: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        check_place(self.KIND, self.name, self.path)
        check_plain(self.KIND, self.path)
        super().__post_init__()

    @property
    @override
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        return {"kind": ("delta",), "path": (self.path,), **super().facts}

    @property
    def options(self) -> dict[str, str]:
        """The store's options for delta-rs: the connection's, overridden by the declared ones; never shown.

        :raises RefusedError: when the connection is not known here
        """
        declared = {name.lower() for name in self.storage_options}  # in any case: delta-rs would take one by chance
        of_connection = self._connection_options(_WORDS).items()
        return {
            **{name: value for name, value in of_connection if name.lower() not in declared},
            **self.storage_options,
        }

    @property
    @override
    def where(self) -> str:
        return f"table {self.path} of sink {self.name}"

    def missing_columns(self, table: DeltaTable, columns: pa.Schema) -> list[Field]:
        """Return the columns that the table lacks and gets, once everything else fits.

        :param columns: of the rows
        :raises RefusedError: naming what does not fit
        """
        from airflow_provider_exactlyonce.streaming.sinks.delta import properties, schema

        properties.check_table(table, tuple(self.partition_by), self.where)
        if self.replaces or self.compact_every is not None:
            properties.check_whole_files(table, self.where)
        if self.replaces:
            properties.check_rewrites(table, self.where, copies=self.mode == UPSERT)
        missing = schema.missing_columns(table.schema(), columns, self.where, evolves=self.evolves)
        schema.check_new(missing, table.protocol().writer_features or (), self.where)
        return missing
