"""Rows that others have deleted beside their files, as merge on read does it, and their commits: for the audit.

https://iceberg.apache.org/spec/#row-level-deletes
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFileContent, FileFormat

from airflow_provider_exactlyonce.exceptions import required
from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.streaming.sinks.iceberg.partitions import live_fields
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.audit import TableHistory

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestEntry
    from pyiceberg.typedef import Record

_PATH, _POSITION, _POSITIONS = "file_path", "pos", "pos_list"
#: The partitioning's id, and the values.
_Partition = tuple[int, "Record"]


class RowDeletes:
    """Follows the files of deleted rows, by snapshots from the oldest on.

    :param history: what is known of the table's files, and gets what is found of the sink's
    :param oldest: the sequence number of the oldest snapshot that is kept: nobody knows what was deleted before
    """

    def __init__(self, table: IcebergTable, history: TableHistory, oldest: int) -> None:
        self._table: Final = table
        self._history: Final = history
        self._partitions: Final[dict[str, tuple[_Partition, int]]] = {}  # of each file with rows, and how old that is
        # The newest deletes by value, or those that may be, in each partition, and for None anywhere.
        self._by_value: Final[dict[_Partition | None, int]] = {None: oldest}
        self._deleted: Final[dict[str, pa.Array]] = {}  # positions in each
        self._doubted: Final[set[str]] = set()  # files with unknown deletes

    def place(self, files: Iterable[ManifestEntry]) -> None:
        """Note where the files with rows are that a snapshot adds: it can delete rows of these by position, too.

        Those of a rewrite may be as old as what it began with, so that deletes since then are about them.
        """
        for entry in files:
            file, sequence = entry.data_file, _sequence(entry)
            partition = (file.spec_id, file.partition)
            self._partitions[file.file_path] = partition, sequence
            if sequence < max(self._by_value.get(key, 0) for key in (None, partition)):
                self._doubted.add(file.file_path)

    def follow(self, version: str, deletes: Iterable[ManifestEntry]) -> None:
        """Note which rows a snapshot of others has deleted.

        :param version: the snapshot, for messages
        :param deletes: files that it has added
        """
        lost = dict[str, int]()
        for entry in deletes:
            file = entry.data_file
            if file.content == DataFileContent.EQUALITY_DELETES:
                columns = ", ".join(map(self._column, file.equality_ids or ()))
                self._doubt(version, entry, f"their values of {columns} in {file.file_path}, which is not read")
            elif file.file_format != FileFormat.PARQUET:
                self._doubt(version, entry, f"{file.file_path}, which is {file.file_format.value} and not read")
            else:
                try:
                    positions = self._positions(file)
                except (OSError, pa.ArrowException) as error:
                    self._doubt(version, entry, f"{file.file_path}, which can't be read ({error})")
                    continue
                for name, rows in positions.items():
                    lost[name] = lost.get(name, 0) + self._delete(name, rows)
        for name, count in lost.items():
            if count:
                self._history.lose(version, [name], count)

    def rows_left(self, file: DataFile) -> int | None:
        """Return how many rows of a file are not deleted; None when nobody knows."""
        name = file.file_path
        if name not in self._partitions or name in self._doubted:  # it may be older than the oldest snapshot
            return None
        return file.record_count - len(self._deleted.get(name, ()))

    def _doubt(self, version: str, deletes: ManifestEntry, what: str) -> None:
        """Note that rows of all files may be gone that a file of deletes can be about: by value only of older ones."""
        file, newest = deletes.data_file, _sequence(deletes)
        is_anywhere = not live_fields(self._table.metadata.specs()[file.spec_id])
        partition = None if is_anywhere else (file.spec_id, file.partition)
        if file.content == DataFileContent.EQUALITY_DELETES:
            self._by_value[partition] = max(newest, self._by_value.get(partition, 0))
            newest -= 1
        files = [
            name
            for name, (file_partition, sequence) in self._partitions.items()
            if sequence <= newest and partition in (None, file_partition) and self._is_there(name)
        ]
        self._doubted.update(files)
        self._history.doubt(version, files, what)

    def _column(self, key: int) -> str:
        return self._table.metadata.schema().find_column_name(key) or f"a column that was dropped ({key})"

    def _positions(self, file: DataFile) -> Mapping[str, pa.Array]:
        """Return the positions that a file names in each of the files that are in the table."""
        with self._table.io.new_input(file.file_path).open() as opened:
            rows = pq.read_table(opened, columns=[_PATH, _POSITION])
        by_file = rows.group_by(_PATH).aggregate([(_POSITION, "list")])
        positions = zip(by_file[_PATH].to_pylist(), by_file[_POSITIONS], strict=True)
        return {name: scalar.values for name, scalar in positions if self._is_there(name)}

    def _is_there(self, file: str) -> bool:
        return file in self._partitions and file not in self._history.removed

    def _delete(self, file: str, positions: pa.Array) -> int:
        """Return how many positions are new: some writers put those of before into their next file again."""
        earlier = self._deleted.get(file, pa.array([], pa.int64()))
        self._deleted[file] = pc.unique(pa.concat_arrays([earlier, positions.cast(pa.int64())]))
        return len(self._deleted[file]) - len(earlier)


def _sequence(entry: ManifestEntry) -> int:
    """Return a new file's data sequence number; a rewrite may give it that of the snapshot that it began with."""
    return required(entry.sequence_number, "a file that is added has a sequence number")
