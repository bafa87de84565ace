"""``FileSink``, a name of 0.1: a Delta sink now. It warns, and is deleted in 0.3."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Final

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta.sink import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.files.file_table import FileTable

_FORMAT: Final = "parquet"


@dataclass(frozen=True, kw_only=True)
class FileSink(DeltaSink):
    """Appends the result to Parquet files of a Delta table; declare a ``DeltaSink`` of the same name and path instead.

    :param format: ``parquet``
    """

    format: str = _FORMAT

    def __post_init__(self) -> None:
        warnings.warn(
            "FileSink writes a Delta table now: declare DeltaSink with the same name, path, partition_by, compression "
            "and max_file_bytes. FileSink is deleted in 0.3",
            DeprecationWarning,
            stacklevel=3,
        )
        super().__post_init__()
        if self.format != _FORMAT:
            raise RefusedError(f"FileSink(format={self.format!r}): only {_FORMAT!r} can be written")
        if self.storage_options:
            raise RefusedError(
                f"FileSink(name={self.name!r}): storage_options were fsspec's, and delta-rs has words of its own, such "
                "as AWS_ENDPOINT_URL: declare DeltaSink(storage_options=…) in its words"
            )

    def table(self, pipeline: str) -> FileTable:
        """Return the table of a pipeline's rows, for readers.

        :param pipeline: the pipeline's name
        """
        return FileTable(self.path, pipeline=pipeline, sink=self.name, storage_options=self.options)
