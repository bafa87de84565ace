"""Finds files of 0.1.0's file sink in a table's directory: their rows would be missing in the table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_exactlyonce.exceptions import BatchFailedError, ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta.ledger import SinkLedger
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import DeltaFiles

#: The run of the record that ends the log of a file sink: no other is higher, so that nothing can follow it.
LAST_RUN: Final = 2**63 - 1
_SINKS: Final = "_exactlyonce"
_RECORD: Final = re.compile(r"\d{20}\.json")
_DELIVERED: Final = frozenset({"delivered", "delivered.json"})


def check(path: str, options: Mapping[str, str]) -> None:
    """Check that all rows that a file sink of 0.1.0 has committed here are in the table.

    :param path: of the table
    :param options: what delta-rs needs to know of the store
    :raises RefusedError: naming the sink, and the command that converts it
    :raises BatchFailedError: when the store does not answer
    """
    try:
        files = DeltaFiles(path, options)
        for folder in files.names(_SINKS):
            if (newest := _newest(files, f"{_SINKS}/{folder}")) is not None:
                _check_converted(path, options, files, folder, newest)
    except ExactlyOnceError:
        raise
    except Exception as error:  # a store has errors of its own
        raise BatchFailedError(f"{path} can't be read: {type(error).__name__}: {error}") from error


def _newest(files: DeltaFiles, place: str) -> Mapping[str, Any] | None:
    """Return the last record of a file sink's log, None when there is none, or none with a commit.

    A write-ahead log has the same records. It goes on as it is: 0.1.0 has noted beside it what is delivered, and what
    this release writes says so.
    """
    records = [name for name in files.names(f"{place}/log") if _RECORD.fullmatch(name)]
    if not records or _DELIVERED & set(files.names(place)):
        return None
    record: Mapping[str, Any] = json.loads(files.read(f"{place}/log/{records[-1]}").partition(b"\n")[0])
    return None if record.get("holds_rows") or record["entry"] is None else record


def _check_converted(
    path: str, options: Mapping[str, str], files: DeltaFiles, folder: str, newest: Mapping[str, Any]
) -> None:
    pipeline, _, sink = folder.rpartition(".")
    log, commit = DeltaLog(path, options), newest["entry"]["commit"]
    if newest["run"] == LAST_RUN and log.open() and SinkLedger(log, files, pipeline, sink).highest >= commit:
        return
    raise RefusedError(
        f"{path} has commits up to {commit} of the file sink {sink} of pipeline {pipeline}, which release 0.1.0 wrote "
        f"in a format of its own. Make a Delta table of them first: exactlyonce convert-files {path}"
    )
