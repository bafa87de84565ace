"""``FileTable``, a name of 0.1: reads a Delta table now. It warns, and is deleted in 0.3."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta import unconverted

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds


class FileTable:
    """The committed rows of a sink, and the upkeep of their files; use ``deltalake.DeltaTable`` instead.

    :param path: the sink's path
    :param pipeline: the pipeline's name
    :param sink: the sink's name
    :param storage_options: as of ``DeltaTable``
    :raises RefusedError: when the path has files of 0.1.0 that are not converted
    """

    def __init__(
        self, path: str, *, pipeline: str, sink: str, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        warnings.warn(
            "FileTable reads a Delta table now: use deltalake.DeltaTable. FileTable is deleted in 0.3",
            DeprecationWarning,
            stacklevel=2,
        )
        from deltalake import DeltaTable

        self._path, self._options, self._application = str(path), dict(storage_options or {}), f"{pipeline}/{sink}"
        unconverted.check(self._path, self._options)
        is_there = DeltaTable.is_deltatable(self._path, self._options)
        self._table: Final[Any] = DeltaTable(self._path, storage_options=self._options) if is_there else None

    @property
    def commit(self) -> int:
        """The newest commit, 0 before the first."""
        return (self._table and self._table.transaction_version(self._application)) or 0

    def paths(self, **selection: Any) -> list[str]:
        """Return the paths or URLs of the files.

        :raises RefusedError: when the table has partitions, whose values are in its log and not in its files
        """
        if selection:
            self._refuse(f"paths({', '.join(selection)})")
        if self._table is None:
            return []
        if partitions := self._table.metadata().partition_columns:
            raise RefusedError(
                f"{self._path} is partitioned by {', '.join(partitions)}, and these columns are not in its files: read "
                f"it as what it is, for example with delta_scan('{self._path}') in DuckDB"
            )
        return list(self._table.file_uris())

    def dataset(self, **selection: Any) -> ds.Dataset:
        """Return the files as a dataset of pyarrow."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        if selection:
            self._refuse(f"dataset({', '.join(selection)})")
        return ds.dataset(pa.table({})) if self._table is None else self._table.to_pyarrow_dataset()

    def to_table(self, **selection: Any) -> pa.Table:
        """Return all rows as a table of pyarrow."""
        return self.dataset(**selection).to_table()

    def files(self, **_: Any) -> NoReturn:
        """Refuse: the table's own log has them."""
        self._refuse("files()")

    def history(self) -> NoReturn:
        """Refuse: the table's own log has it."""
        self._refuse("history()")

    def compact(self, *, target_bytes: int = 128 * 2**20) -> int:
        """Write many small files together into few; returns how many were replaced."""
        if self._table is None:
            return 0
        return int(self._table.optimize.compact(target_size=target_bytes)["numFilesRemoved"])

    def clean(self, *, grace_hours: float = 24) -> int:
        """Remove files that no version has needed for so long; returns how many."""
        if self._table is None:
            return 0
        hours = max(1, round(grace_hours))
        removed = self._table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)
        return len(removed)

    def _refuse(self, call: str) -> NoReturn:
        raise RefusedError(
            f"FileTable.{call} is gone with the format of 0.1.0: ask deltalake.DeltaTable({self._path!r}), which has "
            "get_add_actions(), history(), load_as_version() and to_pyarrow_table(filters=…)"
        )
