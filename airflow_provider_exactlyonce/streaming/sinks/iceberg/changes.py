"""A commit's changes of an Iceberg table by whole files, and the refusal of a table with deletes beside files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.streaming.sinks.iceberg.manifests import current_files, has_row_deletes
from airflow_provider_exactlyonce.streaming.sinks.iceberg.writer import TableFormat, data_file
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.changes import Change, StagedRows

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile


class RowsOfPartitions(StagedRows["DataFile"]):
    """Rows that replace all that are in their partitions.

    :param files: theirs
    :param where: the table, for messages
    """

    def __init__(
        self, table: IcebergTable, format_: TableFormat, files: Sequence[Mapping[str, Any]], where: str
    ) -> None:
        self._table: Final = table
        self._spec_id: Final = format_.spec.spec_id
        self._files: Final = files
        self._replaced: Final = {data_file(file, format_).partition for file in files}
        self._where: Final = where

    @override
    def change(self) -> Change[DataFile]:
        removed = [file for file in current_files(self._table) if self._is_replaced(file)] if self._files else []
        rows = sum(file["rows"] for file in self._files) - sum(file.record_count for file in removed)
        return Change(added=self._files, removed=removed, rows=rows)

    def _is_replaced(self, file: DataFile) -> bool:
        if file.spec_id != self._spec_id:
            raise RefusedError(
                f"{self._where} has files that were written before its partitions were changed, such as "
                f"{file.file_path}: it is not known in which of today's partitions their rows are. rewrite_data_files "
                "of Spark or Trino rewrites them"
            )
        return file.partition in self._replaced


def check_whole_files(table: IcebergTable, where: str) -> None:
    """Check that the rows of files are the rows of the table, so that they can be rewritten.

    :param where: the table, for messages
    :raises RefusedError: when some are deleted
    """
    if has_row_deletes(table):
        raise RefusedError(
            f"{where} has rows that are deleted beside their files (merge on read), which must not come back: "
            "rewrite_data_files of Spark with remove-dangling-deletes applies the deletions"
        )
