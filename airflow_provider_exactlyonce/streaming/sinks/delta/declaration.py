"""What a user declares of the Delta sink; its committer reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from airflow_provider_exactlyonce.environment import parameters_of
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.settings import STORES_VARIABLE
from airflow_provider_exactlyonce.streaming.sinks.file_checks import check_compaction, check_declaration
from airflow_provider_exactlyonce.streaming.sinks.spi import TWO_PHASE_COMMIT, Sink

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, Field
    from pyspark.sql.types import StructType

FIXED: Final = "fixed"
EVOLVE: Final = "evolve"
APPEND: Final = "append"
UPSERT: Final = "upsert"
OVERWRITE_PARTITIONS: Final = "overwrite partitions"
_WORDS: Final = "delta-rs' storage options"
_MODES: Final = (APPEND, UPSERT, OVERWRITE_PARTITIONS)


@dataclass(frozen=True, kw_only=True)
class DeltaDeclaration(Sink):
    """The path, mode, columns and format of a ``DeltaSink``, which says what each is."""

    path: str
    mode: str = APPEND
    key: Sequence[str] = ()
    order: str | None = None
    deleted: str | None = None
    partition_by: Sequence[str] = ()
    schema: str = FIXED
    compression: str = "zstd"
    max_file_bytes: int = 256 * 2**20
    compact_every: int | None = None
    conn_id: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        for name in ("key", "partition_by"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        check_declaration("DeltaSink", self.name, self.path, self.compression, self.max_file_bytes)
        check_compaction("DeltaSink", self.compact_every)
        if self.schema not in (FIXED, EVOLVE):
            raise RefusedError(f"DeltaSink(schema={self.schema!r}): {FIXED!r} or {EVOLVE!r}")
        self._check_mode()

    def _check_mode(self) -> None:
        if self.mode not in _MODES:
            raise RefusedError(f"DeltaSink(mode={self.mode!r}): {', '.join(map(repr, _MODES))}")
        if bool(self.key) != (self.mode == UPSERT):
            raise RefusedError(f"DeltaSink(mode={self.mode!r}, key={list(self.key)}): {UPSERT!r} goes by a key")
        if self.mode != UPSERT and (self.order or self.deleted):
            raise RefusedError(f"DeltaSink(mode={self.mode!r}): order and deleted are for mode={UPSERT!r}")
        if self.deleted is not None and self.deleted in (*self.key, self.order, *self.partition_by):
            raise RefusedError(f"DeltaSink(deleted={self.deleted!r}): the table has no such column")
        if self.mode == OVERWRITE_PARTITIONS and not self.partition_by:
            raise RefusedError(f"DeltaSink(mode={self.mode!r}) needs partition_by: what it replaces are partitions")

    @property
    @override
    def guarantee(self) -> str:
        return TWO_PHASE_COMMIT

    @property
    @override
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        given = {"order": self.order, "deleted": self.deleted}
        replaces = {"mode": (self.mode,), "key": tuple(self.key)} if self.mode != APPEND else {}
        return {
            "kind": ("delta",),
            "path": (self.path,),
            "partition_by": tuple(self.partition_by),
            **replaces,
            **{name: (value,) for name, value in given.items() if value is not None},
        }

    @property
    def evolves(self) -> bool:
        """Whether columns are added to the table."""
        return self.schema == EVOLVE

    @property
    def options(self) -> dict[str, str]:
        """What delta-rs is told of the store: the connection's, and over them those that are declared; never shown.

        :raises RefusedError: when the connection is not known here
        """
        from_connection = (
            {} if self.conn_id is None else parameters_of(STORES_VARIABLE, self.conn_id, _WORDS, "store_conn_ids")
        )
        return {**(from_connection or {}), **self.storage_options}

    @property
    def where(self) -> str:
        """The table, for messages."""
        return f"table {self.path} of sink {self.name}"

    def stored(self, columns: StructType) -> StructType:
        """Return the columns of the rows that the table has, too."""
        from pyspark.sql.types import StructType

        return StructType([column for column in columns if column.name != self.deleted])

    def missing_columns(self, table: DeltaTable, columns: pa.Schema) -> list[Field]:
        """Return the columns that the table lacks and gets, once everything else fits.

        :param columns: of the rows
        :raises RefusedError: naming what does not fit
        """
        from airflow_provider_exactlyonce.streaming.sinks.delta import properties, schema

        properties.check_table(table, tuple(self.partition_by), self.where)
        if self.mode != APPEND or self.compact_every is not None:
            properties.check_whole_files(table, self.where)
        if self.mode != APPEND:
            properties.check_rewrites(table, self.where, copies=self.mode == UPSERT)
        return schema.missing_columns(table.schema(), columns, self.where, evolves=self.evolves)
