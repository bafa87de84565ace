"""The Iceberg sink's protocol: what a claim rests on, and outcomes that nobody knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from airflow_provider_exactlyonce.exceptions import (
    CommitUnknownError,
    FencedError,
)
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


def lose_answers(monkeypatch: pytest.MonkeyPatch, error: Exception, *, before: bool) -> None:
    """Lose an answer of the catalog's, once."""
    real = Table._do_commit

    def commit(table: Table, **given: Any) -> None:
        monkeypatch.setattr(Table, "_do_commit", real)
        if not before:
            real(table, **given)
        raise error

    monkeypatch.setattr(Table, "_do_commit", commit)


@pytest.mark.parametrize("error", [ConnectionError("the answer was lost"), CommitFailedException("409, repeated")])
def test_a_commit_whose_answer_is_lost_is_found(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    live = Live(lake.sink(), tmp_path)
    lose_answers(monkeypatch, error, before=False)
    live.commit(rows(0, 2))
    live.commit(rows(2, 2))
    assert lake.ids() == [0, 1, 2, 3]
    assert len(lake.files()) == 2


def test_a_commit_whose_request_is_lost_is_in_doubt_until_a_claim(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.stage(rows(0, 2))
    lose_answers(monkeypatch, ConnectionError("the request was lost"), before=True)
    with pytest.raises(CommitUnknownError, match=r"the snapshot of table .* after \d+ may be written or not"):
        live.committer.commit(entry)
    assert len(lake.files()) == 1, "they may be committed"
    assert live.committer.claim(1) is None
    assert lake.files() == []
    live.commit(rows(0, 2))
    assert lake.ids() == [0, 1]


def test_a_commit_that_is_refused_while_nobody_else_wrote_is_tried_again(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(), tmp_path)
    lose_answers(monkeypatch, CommitFailedException("busy"), before=True)
    live.commit(rows(0, 2))
    assert lake.ids() == [0, 1]


def test_a_commit_that_was_refused_and_no_longer_fits_keeps_its_files(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.stage(rows(0, 2))
    real = Table._do_commit

    def commit(table: Table, **_: Any) -> None:
        monkeypatch.setattr(Table, "_do_commit", real)
        with lake.table.update_spec() as spec:
            spec.add_identity("k")
        raise CommitFailedException("a second request was refused, and the first one may be carried out")

    monkeypatch.setattr(Table, "_do_commit", commit)
    with pytest.raises(CommitUnknownError, match=r"commit 1 is in doubt, and can't .*: .* is partitioned by"):
        live.committer.commit(entry)
    assert len(lake.files()) == 1


def test_a_request_that_arrives_after_the_claim_that_decided_is_refused(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.stage(rows(0, 2))
    late: list[Callable[[], None]] = []
    real = Table._do_commit

    def delay(table: Table, **given: Any) -> None:
        on_its_way = lake.table
        late.append(lambda: real(on_its_way, **given))
        raise ConnectionError("no answer yet")

    with monkeypatch.context() as patched:
        patched.setattr(Table, "_do_commit", delay)
        with pytest.raises(CommitUnknownError):
            live.committer.commit(entry)
    assert live.committer.claim(1) is None
    with pytest.raises(CommitFailedException):
        late[0]()
    live.commit(rows(0, 2))
    assert lake.ids() == [0, 1]


def test_a_commit_whose_answer_is_lost_until_a_successor_has_committed_keeps_its_files(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.stage(rows(0, 2))
    real = Table._do_commit

    def commit(table: Table, **given: Any) -> None:
        real(table, **given)
        monkeypatch.setattr(Table, "_do_commit", real)
        successor = Live(lake.sink(), tmp_path, run=2)
        assert successor.number == 1
        successor.commit(rows(2, 2))
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(Table, "_do_commit", commit)
    with pytest.raises(CommitUnknownError, match="has commit 2 by another attempt than the one at 1"):
        live.committer.commit(entry)
    with pytest.raises(FencedError):
        live.committer.claim(1)
    assert lake.ids() == [0, 1, 2, 3]
