"""The sizes of state, as Spark's progress reports tell them."""

from __future__ import annotations

from typing import Any

from airflow_provider_exactlyonce.control.status import StateSize
from airflow_provider_exactlyonce.streaming.spark.state_metrics import sizes_of


def operator_progress(**changes: Any) -> dict[str, Any]:
    return {
        "operatorName": "stateStoreSave",
        "numRowsTotal": 37,
        "numRowsUpdated": 30,
        "allUpdatesTimeMs": 12,
        "numRowsRemoved": 2,
        "allRemovalsTimeMs": 4,
        "commitTimeMs": 300,
        "memoryUsedBytes": 18_136,
        "customMetrics": {"rocksdbSstFileSize": 7_787},
        **changes,
    }


SIZE = StateSize(
    operator="stateStoreSave",
    rows=37,
    memory_bytes=18_136,
    disk_bytes=7_787,
    changed=32,
    milliseconds=16,
    commit_milliseconds=300,
)


def test_a_size_is_what_spark_tells() -> None:
    assert sizes_of([operator_progress()], []) == [SIZE]
    assert sizes_of([operator_progress(customMetrics={})], [])[0].disk_bytes is None
    assert sizes_of([], [SIZE]) == []


def test_what_a_change_costs_stays_known_while_nothing_changes() -> None:
    idle = operator_progress(numRowsUpdated=0, numRowsRemoved=0, allUpdatesTimeMs=1, commitTimeMs=0, numRowsTotal=36)
    [size] = sizes_of([idle], [SIZE])
    assert (size.rows, size.changed, size.milliseconds, size.commit_milliseconds) == (36, 32, 16, 300)
