"""The user's declaration of a sink of a table of any kind; its committer reads it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from typing_extensions import override

from airflow_provider_exactlyonce.environment import parameters_of
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.settings import STORES_VARIABLE
from airflow_provider_exactlyonce.streaming.sinks.file_checks import check_compaction, check_format
from airflow_provider_exactlyonce.streaming.sinks.spi import TWO_PHASE_COMMIT, Sink

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

FIXED: Final = "fixed"
EVOLVE: Final = "evolve"
APPEND: Final = "append"
UPSERT: Final = "upsert"
OVERWRITE_PARTITIONS: Final = "overwrite partitions"
_MODES: Final = (APPEND, UPSERT, OVERWRITE_PARTITIONS)
_NO_ORDER: Final = ("array", "map", "struct", "binary")
_NO_KEY: Final = (*_NO_ORDER, "float", "double")


@dataclass(frozen=True, kw_only=True)
class TableDeclaration(Sink):
    """The mode, columns and format of a sink that writes versions of a table; its subclass describes them."""

    #: The sink's class, for messages.
    KIND: ClassVar[str]

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

    def __post_init__(self) -> None:
        for name in ("key", "partition_by"):
            declared = getattr(self, name)
            columns = (declared,) if isinstance(declared, str) else tuple(declared or ())
            if not all(isinstance(column, str) and column for column in columns) or len(set(columns)) < len(columns):
                raise RefusedError(f"{self.KIND}({name}={declared!r}): names of columns, each once")
            object.__setattr__(self, name, columns)
        check_format(self.KIND, self.compression, self.max_file_bytes)
        check_compaction(self.KIND, self.compact_every)
        if self.schema not in (FIXED, EVOLVE):
            raise RefusedError(f"{self.KIND}(schema={self.schema!r}): {FIXED!r} or {EVOLVE!r}")
        self._check_mode()

    def _check_mode(self) -> None:
        if self.mode not in _MODES:
            raise RefusedError(f"{self.KIND}(mode={self.mode!r}): {', '.join(map(repr, _MODES))}")
        if bool(self.key) != (self.mode == UPSERT):
            raise RefusedError(f"{self.KIND}(mode={self.mode!r}, key={list(self.key)}): {UPSERT!r} goes by a key")
        if self.mode != UPSERT and (self.order or self.deleted):
            raise RefusedError(f"{self.KIND}(mode={self.mode!r}): order and deleted are for mode={UPSERT!r}")
        if self.deleted is not None and self.deleted in (*self.key, self.order, *self.partition_by):
            raise RefusedError(f"{self.KIND}(deleted={self.deleted!r}): the table has no such column")
        if self.mode == OVERWRITE_PARTITIONS and not self.partition_by:
            raise RefusedError(f"{self.KIND}(mode={self.mode!r}) needs partition_by: what it replaces are partitions")

    @property
    @override
    def guarantee(self) -> str:
        return TWO_PHASE_COMMIT

    @property
    @override
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        settings = {"order": self.order, "deleted": self.deleted}
        replaces = {"mode": (self.mode,), "key": tuple(self.key)} if self.replaces else {}
        return {
            "partition_by": tuple(self.partition_by),
            **replaces,
            **{name: (value,) for name, value in settings.items() if value is not None},
        }

    @property
    @abstractmethod
    def where(self) -> str:
        """The table, for messages."""

    @property
    def evolves(self) -> bool:
        """Whether columns are added to the table."""
        return self.schema == EVOLVE

    @property
    def replaces(self) -> bool:
        """Whether rows replace others."""
        return self.mode != APPEND

    def stored(self, columns: StructType) -> StructType:
        """Return the columns of the rows that the table has, too."""
        from pyspark.sql.types import StructType

        return StructType([column for column in columns if column.name != self.deleted])

    def check_key(self, columns: StructType) -> None:
        """Check that the rows can replace each other as it is declared.

        :raises RefusedError: naming the column, and its type
        """
        kinds = {column.name: column.dataType for column in columns}
        for name in (*self.key, self.order, self.deleted):
            if name is not None and name not in kinds:
                raise RefusedError(f"sink {self.name} names the column {name!r}; the columns are {', '.join(kinds)}")
        for name in self.key:
            if kinds[name].typeName().startswith(_NO_KEY) or _is_collated(kinds[name]):
                raise RefusedError(
                    f"sink {self.name}: column {name!r} of the key is {kinds[name].simpleString()}, of which it is not "
                    "certain when two are equal. Derive a text or a number of it"
                )
        order = None if self.order is None else kinds[self.order]
        if order is not None and (order.typeName().startswith(_NO_ORDER) or _is_collated(order)):
            raise RefusedError(f"sink {self.name}: order={self.order!r} is {order.simpleString()}")
        if self.deleted is not None and kinds[self.deleted].typeName() != "boolean":
            raise RefusedError(f"sink {self.name}: deleted={self.deleted!r} must be a boolean column")

    def _connection_options(self, words: str) -> dict[str, str]:
        """Return the connection's options; empty when there is none, or when no connections are given here.

        :param words: names the options' vocabulary, for messages
        :raises RefusedError: when connections are given and it is not among them
        """
        if self.conn_id is None:
            return {}
        return parameters_of(STORES_VARIABLE, self.conn_id, words, "store_conn_ids") or {}


def _is_collated(kind: DataType) -> bool:
    """Whether texts of a type may be equal, or ordered, by other rules than by their bytes."""
    return getattr(kind, "collation", "UTF8_BINARY") != "UTF8_BINARY"
