"""A lake's table beside the topic, in the same query, and what it owes; read by what shares no code with its writer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from tests.crash_matrix.shapes import UPDATE, canonical, key_of
from tests.delta_reader import newest_delta_entry, read_delta
from tests.iceberg_reader import newest_iceberg_entry, newest_metadata, read_iceberg

NAME: Final = "shop.rows"


class Table(ABC):
    """A pipeline's table: of all rows, or for updates of the latest of each key.

    :param folder: of the table, or of its catalog and warehouse
    """

    def __init__(self, folder: Path, shape: str) -> None:
        self.folder, self._shape = folder, shape
        self._owed: Counter[str] = Counter()
        folder.mkdir()

    def expect(self, rows: Counter[str]) -> None:
        """Take what the next batch owes."""
        if self._shape == UPDATE:
            latest = {key_of(row): row for row in [*self._owed, *rows]}
            self._owed = Counter(latest.values())
        else:
            self._owed += rows

    @property
    def owed(self) -> Counter[str]:
        return self._owed

    def rows(self) -> Counter[str]:
        """Return what a reader sees."""
        return Counter(canonical(row) for row in self._read())

    def commit(self) -> int:
        """Return the number of the newest commit that it has, 0 for none."""
        entry = self._newest_entry()
        return entry["commit"] if entry else 0

    @abstractmethod
    def _newest_entry(self) -> dict[str, Any] | None: ...

    @abstractmethod
    def _read(self) -> list[dict[str, Any]]: ...


class _Delta(Table):
    @override
    def _newest_entry(self) -> dict[str, Any] | None:
        return newest_delta_entry(self.folder)

    @override
    def _read(self) -> list[dict[str, Any]]:
        return read_delta(self.folder)


class _Iceberg(Table):
    @override
    def _newest_entry(self) -> dict[str, Any] | None:
        return newest_iceberg_entry(self._metadata())

    @override
    def _read(self) -> list[dict[str, Any]]:
        return read_iceberg(self._metadata())

    def _metadata(self) -> str:
        return newest_metadata(self.folder / "catalog.db", NAME)


#: By the names that the job knows.
TABLES: Final[Mapping[str, type[Table]]] = {"delta": _Delta, "iceberg": _Iceberg}
