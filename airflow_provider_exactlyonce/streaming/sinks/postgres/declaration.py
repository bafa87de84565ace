"""The user's declaration of the PostgreSQL sink; its committer reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.spi import TWO_PHASE_COMMIT, Sink

_RIGHTS: Mapping[str, tuple[str, ...]] = {
    "insert": ("INSERT",),
    "upsert": ("SELECT", "INSERT", "UPDATE"),
    "delete": ("SELECT", "DELETE"),
}


@dataclass(frozen=True, kw_only=True)
class PostgresDeclaration(Sink):
    """The columns, table and mode of a ``PostgresSink``, which describes them."""

    table: str
    mode: str = "insert"
    key: Sequence[str] = ()
    order: str | None = None
    deleted: str | None = None
    commit_column: str | None = None
    conn_id: str = "postgres_default"

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (self.key,) if isinstance(self.key, str) else tuple(self.key))
        if self.mode not in _RIGHTS:
            raise RefusedError(f"PostgresSink(mode={self.mode!r}): {', '.join(_RIGHTS)}")
        if bool(self.key) == (self.mode == "insert"):
            raise RefusedError(f"PostgresSink(mode={self.mode!r}, key={self.key!r}): upsert and delete go by a key")
        if self.mode != "upsert" and (self.order or self.deleted):
            raise RefusedError(f"PostgresSink(mode={self.mode!r}): order and deleted are for mode='upsert'")
        if self.mode == "delete" and self.commit_column:
            raise RefusedError("PostgresSink(mode='delete'): there is no row for a commit_column")

    @property
    @override
    def guarantee(self) -> str:
        return TWO_PHASE_COMMIT

    @property
    @override
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        settings = {name: getattr(self, name) for name in ("order", "deleted", "commit_column")}
        return {
            "kind": ("postgres",),
            "table": (self.table,),
            "mode": (self.mode,),
            "key": tuple(self.key),
            **{name: (value,) for name, value in settings.items() if value is not None},
        }

    @property
    @override
    def exclusive_place(self) -> object:
        return "postgres", self.conn_id, self.table

    @property
    def rights(self) -> Sequence[str]:
        """The rights that the user needs on the table."""
        deletion_rights = ["DELETE"] if self.deleted else []
        return [
            *_RIGHTS[self.mode],
            *deletion_rights,
            *(["SELECT"] if self.commit_column and self.mode == "insert" else []),
        ]
