"""An empty lineage after lost state: it begins where the last commit ended, and its home and its ledger accept it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.checkpoint import recovery
from airflow_provider_exactlyonce.checkpoint.home_match import check_start
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.recovery import begin_empty, recover
from airflow_provider_exactlyonce.checkpoint.restart import RestartSource
from airflow_provider_exactlyonce.checkpoint.start_checks import reconcile
from airflow_provider_exactlyonce.control import lease
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from tests.ledger_records import claim_record
from tests.unit.checkpoint import crafted


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    lineage = home.create("p")
    shutil.rmtree(home.checkpoint(lineage.id))
    crafted.checkpoint(home.checkpoint(crafted.LINEAGE))
    home.remember(Lineage(id=crafted.LINEAGE, cluster_id="c", ledger_topic_id="t"))
    home.use(crafted.LINEAGE)
    return home


def tail_of(home: Home) -> LedgerTail:
    claim = claim_record(4, lineage=crafted.LINEAGE, version="abc", home=str(home.identity()), home_path=str(home.path))
    record = crafted.record(2)
    return LedgerTail(
        cluster_id="c",
        topic_id="t",
        end_offset=9,
        claim=claim,
        claim_offset=1,
        commit=record,
        commit_offset=8,
    )


def test_it_begins_at_the_source_offsets_of_the_last_commit_and_its_first_batch_is_the_next_commit(home: Home) -> None:
    tail = tail_of(home)
    lost = home.current()
    assert lost is not None
    with leases.holding(home.lease, "p", "recovery") as hold:
        empty = begin_empty(home, lost, tail, hold)
    assert home.current() == empty
    checkpoint = Checkpoint(home.checkpoint(empty.id))
    assert checkpoint.query_id() == empty.id
    assert checkpoint.kafka_starts(0) == {"in": {0: 30, 1: 15}}
    assert (empty.batch_of(4), empty.commit_of(0)) == (0, 4)
    check_start(home, "p", tail)
    assert reconcile(checkpoint, empty, tail) is False
    home.use(lost.id)
    with pytest.raises(RefusedError, match=f"which was abandoned for {empty.id}"):
        check_start(home, "p", tail)


def test_lost_state_is_refused_unless_empty_state_is_allowed_and_nothing_is_changed_before(home: Home) -> None:
    tail = tail_of(home)
    assert recover(home, "p", {}, tail) is RestartSource.CHECKPOINT
    shutil.rmtree(home.checkpoint(crafted.LINEAGE) / "state")
    with pytest.raises(RefusedError, match=r"state of pipeline p is lost: state/0/_metadata is missing.*commit 3"):
        recover(home, "p", {}, tail)
    current = home.current()
    assert current is not None
    assert current.id == crafted.LINEAGE
    assert recover(home, "p", {}, tail, allow_empty_state=True) is RestartSource.NOTHING
    assert home.current() != current
    assert lease.read(home.lease) is None


def test_torn_files_of_the_newest_batch_are_removed_and_the_lease_is_let_go(home: Home) -> None:
    checkpoint = Checkpoint(home.checkpoint(crafted.LINEAGE))
    torn = next(checkpoint.path.glob("state/0/1/3_*.zip"))
    torn.write_bytes(b"torn")
    (checkpoint.path / "metadata").unlink()
    assert recover(home, "p", {}, tail_of(home)) is RestartSource.NEWEST_AGAIN
    assert (checkpoint.newest_commit(), checkpoint.query_id(), torn.exists()) == (1, crafted.LINEAGE, False)
    assert lease.read(home.lease) is None
    assert recover(home, "p", {}, tail_of(home)) is RestartSource.CHECKPOINT


def test_what_a_reemit_restored_is_saved_as_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "other")
    lineage = crafted.reemitting(home)
    ledger = crafted.reemitted()
    monkeypatch.setattr(recovery, "LedgerReader", lambda config, pipeline: ledger)
    for batch in (3, 4):  # both are torn
        (home.checkpoint(lineage.id) / f"commits/{batch}").write_text("v2\n{}")
        ledger.written.append(crafted.record(batch, commit=18 + batch))
    with pytest.raises(RefusedError, match=r"whole up to batch 2 only .*mode reemit.*: exactlyonce doctor p --fix"):
        recover(home, "p", {}, ledger.tail())
