"""The Iceberg sink's protocol: what a claim rests on, and outcomes that nobody knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException

from airflow_provider_exactlyonce.exceptions import CommitUnknownError, FencedError
from tests.integration.streaming.sinks.iceberg.lake import IcebergLake
from tests.integration.streaming.sinks.lake import Live, rows


def test_what_pyiceberg_itself_would_take(lake: IcebergLake, tmp_path: Path) -> None:
    """What the sink rests on: its own commit is refused behind a claim, and pyiceberg's is put on top of it."""
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(0, 1))
    stale = lake.opened
    zombie = lake.table
    Live(lake.sink(), tmp_path, run=2)
    with pytest.raises(CommitFailedException, match="branch main has changed"):
        stale.append([], {}, lambda snapshot, sequence: {})
    zombie.append(pa.Table.from_pylist(rows(7, 1), zombie.schema().as_arrow()))
    assert lake.ids() == [0, 7], "a retry has put it on top of the claim"


def test_a_property_alone_does_not_fence(lake: IcebergLake, tmp_path: Path) -> None:
    """Why a claim is a snapshot: no requirement of a write says what a property has to be."""
    Live(lake.sink(), tmp_path).commit(rows(0, 1))
    stale = lake.opened
    lake.table.transaction().set_properties({"claimed-by": "run 2"}).commit_transaction()
    stale.append([], {}, lambda snapshot, sequence: {"claimed-by": "run 1"})
    assert lake.table.properties["claimed-by"] == "run 1"


# Unknown outcomes


@pytest.mark.parametrize("arrived", [False, True])
def test_a_commit_that_is_refused_while_nobody_else_wrote_is_found_or_tried_again(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    live = Live(lake.sink(), tmp_path)

    def refuse(write: Callable[[], None]) -> None:
        if arrived:
            write()
        raise CommitFailedException("busy, or a second request for the same")

    lake.at_next_write(monkeypatch, refuse)
    live.commit(rows(0, 2))
    assert lake.ids() == [0, 1]
    assert len(lake.files()) == 1


def test_a_commit_that_was_refused_and_no_longer_fits_keeps_its_files(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.stage(rows(0, 2))

    def refuse(_: Callable[[], None]) -> None:
        with lake.table.update_spec() as spec:
            spec.add_identity("k")
        raise CommitFailedException("a second request was refused, and the first one may be carried out")

    lake.at_next_write(monkeypatch, refuse)
    with pytest.raises(CommitUnknownError, match=r"commit 1 is in doubt, and can't .*: .* is partitioned by"):
        live.committer.commit(entry)
    assert len(lake.files()) == 1


def test_a_commit_that_was_refused_and_arrives_before_a_successors_claim_keeps_its_files(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.stage(rows(0, 2))
    late: list[Callable[[], None]] = []

    def refuse(write: Callable[[], None]) -> None:
        late.append(write)
        raise CommitFailedException("a second request was refused, and the first one may be carried out")

    wait, ours = time.sleep, threading.current_thread()

    def be_frozen(seconds: float) -> None:
        if threading.current_thread() is not ours:  # Spark's client has threads that sleep, too
            wait(seconds)
            return
        monkeypatch.undo()
        late[0]()
        Live(lake.sink(), tmp_path, run=2)

    lake.at_next_write(monkeypatch, refuse)
    monkeypatch.setattr(time, "sleep", be_frozen)
    with pytest.raises(CommitUnknownError, match=r"commit 1 is in doubt, .* is superseded by run 2"):
        live.committer.commit(entry)
    with pytest.raises(FencedError):
        live.committer.claim(1)
    assert lake.ids() == [0, 1]
