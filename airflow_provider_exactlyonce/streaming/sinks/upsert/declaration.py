"""What a user declares of the upsert sink; its committer reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.spi import (
    IDEMPOTENT,
    IDEMPOTENT_UNFENCED,
    Sink,
)


@dataclass(frozen=True, kw_only=True)
class UpsertDeclaration(Sink):
    """The columns, table and mode of a ``UpsertSink``, which says what each is."""

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
