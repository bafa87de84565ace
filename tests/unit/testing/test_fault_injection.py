"""What a rehearsal with faults promises of the runs that it lets live."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from airflow_provider_exactlyonce.streaming.sinks.spi import SinkCommitter, SinkContext
from airflow_provider_exactlyonce.streaming.sinks.staged import StagedCommitter
from airflow_provider_exactlyonce.testing.fault_injection import Fault, Kind, Rehearsal, target_call
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from dags.jobs.own_sink import SqliteSink


class AskingSink(SqliteSink):
    """Asks its target in each call that is no step of a batch."""

    def open(self, context: SinkContext) -> StagedCommitter:
        return cast(StagedCommitter, _Asking(target_call("target.open", partial(super().open, context))))


class _Asking:
    def __init__(self, inner: SinkCommitter) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        return partial(target_call, f"target.{name}", real) if name in ("tail", "open_writer") else real


@pytest.mark.parametrize("step", ["target.open", "target.tail", "target.open_writer"])
@pytest.mark.parametrize("kind", [Kind.FROZEN, Kind.FROZEN_LONG])
def test_a_successor_of_a_frozen_run_meets_none_of_its_faults(tmp_path: Path, kind: Kind, step: str) -> None:
    with closing(sqlite3.connect(tmp_path / "rows.db")) as database:
        database.execute("CREATE TABLE rows (id INT, k TEXT, v REAL)")
    sink = AskingSink(name="table", path=tmp_path / "rows.db", table="rows")
    freezes, lost = Fault(step="ledger.claim", kind=kind), Fault(step=step, kind=Kind.REQUEST_LOST)
    seam = Rehearsal(sink, tmp_path, SinkConformance().make_rows).run([freezes, lost])
    assert seam.met == [freezes]
    assert seam.calls[step] == 0
