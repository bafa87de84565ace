"""Spark's metrics of the state of a running query: its size, and the cost of a change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.control.status import StateSize

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_ON_DISK: Final = "rocksdbSstFileSize"


class StateSizes:
    """Follows one query's state; asks it once a batch."""

    def __init__(self) -> None:
        self._batch = -1
        self._sizes: list[StateSize] = []

    def follow(self, query: StreamingQuery, batch: int) -> list[StateSize] | None:
        """Return the state's sizes, None when they are not known to have changed.

        :param query: running, or ended
        :param batch: the newest one that is committed; Spark reports on it a moment later
        """
        if batch <= self._batch:
            return None
        # pyspark's own lastProgress makes a hundred calls for one text.
        progress = query._jsq.lastProgress()
        if progress is None:
            return None
        report = json.loads(progress.json())
        if int(report["batchId"]) < batch:
            return None
        self._batch = batch
        self._sizes = sizes_of(report["stateOperators"], self._sizes)
        return self._sizes


def sizes_of(operators: Sequence[Mapping[str, Any]], before: Sequence[StateSize]) -> list[StateSize]:
    """Return the sizes that a progress report tells.

    :param operators: its ``stateOperators``
    :param before: the sizes of earlier; where nothing has changed since, what a change costs is as it was
    """
    sizes = [
        StateSize(
            operator=operator["operatorName"],
            rows=operator["numRowsTotal"],
            memory_bytes=operator["memoryUsedBytes"],
            disk_bytes=operator["customMetrics"].get(_ON_DISK),
            changed=operator["numRowsUpdated"] + operator["numRowsRemoved"],
            milliseconds=operator["allUpdatesTimeMs"] + operator["allRemovalsTimeMs"],
            commit_milliseconds=operator["commitTimeMs"],
        )
        for operator in operators
    ]
    if len(before) != len(sizes):
        return sizes
    return [
        size
        if size.changed
        else replace(
            size,
            changed=old.changed,
            milliseconds=old.milliseconds,
            commit_milliseconds=old.commit_milliseconds,
        )
        for size, old in zip(sizes, before, strict=True)
    ]
