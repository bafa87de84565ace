"""A record of the drivers that died and were started again, for supervisors, reports and people."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.codec import Rewritten
from airflow_provider_exactlyonce.control import json_store

_KEPT: Final = 200


@dataclass(frozen=True, kw_only=True)
class Restart(Rewritten):
    """One death of a driver, and the start after it.

    :param series: start token of the first driver of the series
    :param number: 1 for the first restart of the series
    :param token: start token of the driver that died
    :param run: its run, 0 when it died before its claim
    :param commit: the last commit that it had reported
    :param cause: why it died, in a sentence
    :param exit_code: its exit code, negative for a signal, None when nobody saw it
    :param rows: rows that its run had committed to the primary sink
    :param rows_by_sink: {sink: rows that its run had committed}
    :param records: source records that its run's batches had read
    :param late_rows: rows behind the watermark that its run had left out
    :param died: seconds since the epoch when the supervisor saw it
    :param due: seconds since the epoch when the next driver is to be started
    :param relaunched: seconds since the epoch when the next driver's process was started, None before
    """

    series: str
    number: int
    token: str
    run: int
    commit: int
    cause: str
    exit_code: int | None
    died: float
    rows: int = 0
    rows_by_sink: dict[str, int] = field(default_factory=dict)
    records: int = 0
    late_rows: int = 0
    due: float = 0.0
    relaunched: float | None = None


def read(path: Path) -> tuple[Restart, ...]:
    """Return the recorded restarts, oldest first."""
    body = json_store.read(path)
    return tuple(codec.load(Restart, entry, str(path)) for entry in body["restarts"]) if body else ()


def of_series(path: Path, series: str) -> tuple[Restart, ...]:
    """Return the recorded restarts of one series, oldest first."""
    return tuple(entry for entry in read(path) if entry.series == series)


def append(path: Path, restart: Restart) -> None:
    """Record a death; called before the delay, so that a supervisor that dies in it has left its trace."""
    _write(path, (*read(path), restart))


def relaunched(path: Path, token: str, at: float) -> None:
    """Record when the driver after the one with this token was started."""
    _write(path, tuple(replace(entry, relaunched=at) if entry.token == token else entry for entry in read(path)))


def _write(path: Path, entries: tuple[Restart, ...]) -> None:
    json_store.write(path, {"schema": 1, "restarts": [codec.dump(entry) for entry in entries[-_KEPT:]]})
