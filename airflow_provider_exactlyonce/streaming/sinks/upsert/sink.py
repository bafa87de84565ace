"""The user's declaration of the idempotent sink: rows replace rows of the same key, in any database of SQLAlchemy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.spi import (
    IDEMPOTENT,
    IDEMPOTENT_UNFENCED,
    Sink,
    SinkCommitter,
    SinkContext,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, kw_only=True)
class UpsertSink(Sink):
    """Writes each row over the one with its key: effectively once with a ``commit_column``, at least once without.

    Tasks write straight into the table. A batch that is attempted again overwrites its own rows, so that after its
    commit the table is as if it had run once. Until then readers may see a part of a batch, and rows of an attempt that
    is repeated. A batch should have one row per key: within a task the last row stays, between tasks any.

    Nothing holds a task back that was frozen in an attempt of long ago. With a ``commit_column`` it changes nothing;
    without one its old rows replace the newer ones, and stay.

    :param url: SQLAlchemy's, of the database; it may hold a password, and is never shown
    :param table: ``table`` or ``schema.table``, which must exist
    :param key: columns under a primary key or unique constraint
    :param commit_column: an integer column of the table that gets the number of the commit: a row is replaced by none
        of an older commit. Rows in which it is null are older than all. ``exactly_once`` needs it
    :raises RefusedError: when there is no key
    """

    url: str = field(repr=False)
    table: str
    key: Sequence[str]
    commit_column: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (self.key,) if isinstance(self.key, str) else tuple(self.key))
        if not self.key:
            raise RefusedError(f"UpsertSink(name={self.name!r}) needs a key: rows are replaced by it")

    @property
    @override
    def guarantee(self) -> str:
        return IDEMPOTENT_UNFENCED if self.commit_column is None else IDEMPOTENT

    @property
    @override
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        commit = {} if self.commit_column is None else {"commit_column": (self.commit_column,)}
        return {"kind": ("upsert",), "table": (self.table,), "key": tuple(self.key), **commit}

    @property
    @override
    def exclusive_place(self) -> object:
        return "upsert", self.url, self.table

    @override
    def check_columns(self, columns: StructType) -> None:
        from airflow_provider_exactlyonce.streaming.sinks.upsert import table as upsert_table

        with upsert_table.connect(self.url) as connection:
            table = upsert_table.find(connection, self.table)
            upsert_table.check_columns(connection, table, columns, self.key, self.commit_column)

    @override
    def open(self, context: SinkContext) -> SinkCommitter:
        from airflow_provider_exactlyonce.streaming.sinks.upsert.committer import OpenUpsertWriter, UpsertCommitter

        opened = OpenUpsertWriter(self.url, self.table, self.key, self.commit_column)
        return UpsertCommitter(context.pipeline, self.name, opened)
