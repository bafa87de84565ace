"""What a user declares of the Delta sink; its committer reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.file_checks import check_declaration
from airflow_provider_exactlyonce.streaming.sinks.spi import TWO_PHASE_COMMIT, Sink

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, Field

FIXED: Final = "fixed"
EVOLVE: Final = "evolve"


@dataclass(frozen=True, kw_only=True)
class DeltaDeclaration(Sink):
    """The path, columns and format of a ``DeltaSink``, which says what each is."""

    path: str
    partition_by: Sequence[str] = ()
    schema: str = FIXED
    compression: str = "zstd"
    max_file_bytes: int = 256 * 2**20
    compact_every: int | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        given = (self.partition_by,) if isinstance(self.partition_by, str) else tuple(self.partition_by)
        object.__setattr__(self, "path", str(self.path))
        object.__setattr__(self, "partition_by", given)
        check_declaration("DeltaSink", self.name, self.path, self.compression, self.max_file_bytes)
        if self.compact_every is not None and self.compact_every < 1:
            raise RefusedError(f"DeltaSink(compact_every={self.compact_every}): a number of commits, at least 1")
        if self.schema not in (FIXED, EVOLVE):
            raise RefusedError(f"DeltaSink(schema={self.schema!r}): {FIXED!r} or {EVOLVE!r}")

    @property
    @override
    def guarantee(self) -> str:
        return TWO_PHASE_COMMIT

    @property
    @override
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        return {"kind": ("delta",), "path": (self.path,), "partition_by": tuple(self.partition_by)}

    @property
    def evolves(self) -> bool:
        """Whether columns are added to the table."""
        return self.schema == EVOLVE

    @property
    def where(self) -> str:
        """The table, for messages."""
        return f"table {self.path} of sink {self.name}"

    def missing_columns(self, table: DeltaTable, columns: pa.Schema) -> list[Field]:
        """Return the columns that the table lacks and gets, once everything else fits.

        :param columns: of the rows
        :raises RefusedError: naming what does not fit
        """
        from airflow_provider_exactlyonce.streaming.sinks.delta import properties, schema

        properties.check_table(table, tuple(self.partition_by), self.where)
        return schema.missing_columns(table.schema(), columns, self.where, evolves=self.evolves)
