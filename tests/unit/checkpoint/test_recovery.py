"""An empty lineage after lost state: it begins where the last commit ended, and its home and its ledger accept it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.checkpoint import recovery, restore
from airflow_provider_exactlyonce.checkpoint.home_match import check_start
from airflow_provider_exactlyonce.checkpoint.integrity import newest_whole
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.recovery import begin_empty, recover
from airflow_provider_exactlyonce.checkpoint.restart import RestartSource, decide, removals_for
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.checkpoint.start_checks import reconcile
from airflow_provider_exactlyonce.control import lease
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.records import LedgerPointer
from airflow_provider_exactlyonce.storage.local import LocalStore
from airflow_provider_exactlyonce.storage.opening import store_of
from tests import memory_store
from tests.clocks import StandingClock
from tests.frozen import ALL, WRITES, at_each
from tests.ledger_records import claim_record
from tests.memory_store import MemoryStore
from tests.unit.checkpoint import crafted

LINEAGE = Lineage(id=crafted.LINEAGE)


@pytest.fixture(params=["local", "memory", "memory without locks"])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr(MemoryStore, "has_locks", request.param == "memory")
    return made(Home(tmp_path / "home") if request.param == "local" else Home("memory", memory_store.folder()))


def made(home: Home) -> Home:
    """Make a home whose lineage has three batches."""
    lineage = home.create("p")
    remove(home.checkpoint(lineage.id))
    crafted.checkpoint(home.checkpoint(crafted.LINEAGE))
    home.remember(Lineage(id=crafted.LINEAGE, cluster_id="c", ledger_topic_id="t"))
    home.use(crafted.LINEAGE)
    return home


def remove(directory: Path) -> None:
    store_of(directory).remove(directory)


def tail_of(home: Home) -> LedgerTail:
    claim = claim_record(4, lineage=crafted.LINEAGE, version="abc", home=str(home.identity()), home_path=str(home))
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
    remove(home.checkpoint(crafted.LINEAGE) / "state")
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


def tear(home: Home) -> Checkpoint:
    """Tear a file of the newest batch, whose other files are whole."""
    checkpoint = Checkpoint(home.checkpoint(crafted.LINEAGE))
    next(checkpoint.path.glob("state/0/1/3_*.zip")).write_bytes(b"torn")
    return checkpoint


def contents(directory: Path) -> dict[str, bytes]:
    return {path: (directory / path).read_bytes() for path in store_of(directory).files(directory)}


@pytest.mark.parametrize("requests", [WRITES, pytest.param(ALL, marks=pytest.mark.slow)], ids=["writes", "all"])
def test_a_driver_that_was_frozen_while_it_removed_torn_files_removes_nothing_of_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requests: Sequence[str]
) -> None:
    """A store without locks keeps nobody out; each request of the frozen driver may be the one that is late."""
    monkeypatch.setattr(LocalStore, "has_locks", False)
    clock, outcomes = StandingClock(), set[str]()
    monkeypatch.setattr(leases, "time", clock)

    def scene() -> tuple[Callable[[], object], Callable[[], None]]:
        home = made(Home(tmp_path / str(uuid.uuid4())))
        checkpoint, tail = tear(home), tail_of(home)
        left: dict[str, bytes] = {}

        def succeed() -> None:
            held = leases.acquire(home.lease, "p", "successor", run=5)
            clock.meanwhile = partial(leases.renew, home.lease, held)
            decision = decide(checkpoint, Savepoints(home.savepoints), LINEAGE, 3)
            if decision.source is RestartSource.NEWEST_AGAIN:
                for removal in removals_for(checkpoint, decision):
                    removal()
            home.use(crafted.LINEAGE)
            for batch in (2, 3, 4):
                crafted.run(checkpoint.path, batch)
            left.update((path, of) for path, of in contents(checkpoint.path).items() if of != b"torn")

        def recover_late() -> None:
            try:
                outcomes.add(recover(home, "p", {}, tail).value)
            except AlreadyRunningError:
                outcomes.add("superseded")
            if left:
                assert left.items() <= contents(checkpoint.path).items()
                assert newest_whole(checkpoint) == (4, [])

        return recover_late, succeed

    assert at_each(requests, LocalStore, scene) >= 5
    assert {"newest again", "superseded"} <= outcomes <= {"checkpoint", "newest again", "superseded"}


def test_what_was_torn_when_it_was_decided_and_is_whole_now_is_not_removed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor was done before this start had the lease."""
    checkpoint, wait = tear(home), leases.holding_stopped

    def late(*arguments: Any) -> Any:
        for batch in (2, 3):
            crafted.run(checkpoint.path, batch)
        return wait(*arguments)

    monkeypatch.setattr(leases, "holding_stopped", late)
    with pytest.raises(AlreadyRunningError, match=r"another process has changed .* meanwhile. Start again"):
        recover(home, "p", {}, tail_of(home))
    assert newest_whole(checkpoint) == (3, [])


def test_what_was_lost_when_it_was_decided_and_is_there_now_is_not_begun_anew(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has put it back before this start had the lease."""
    path, wait = home.checkpoint(crafted.LINEAGE), leases.holding_stopped
    remove(path)

    def late(*arguments: Any) -> Any:
        crafted.checkpoint(path)
        return wait(*arguments)

    monkeypatch.setattr(leases, "holding_stopped", late)
    with pytest.raises(AlreadyRunningError, match=r"another process has changed .* meanwhile. Start again"):
        recover(home, "p", {}, tail_of(home), allow_empty_state=True)
    assert home.uses(crafted.LINEAGE)


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_checkpoint_whose_deletion_was_begun_is_none_to_go_on_from(
    home: Home, monkeypatch: pytest.MonkeyPatch, *, is_saved: bool
) -> None:
    lineage, tail, savepoints = home.current(), tail_of(home), Savepoints(home.savepoints)
    assert lineage is not None
    if is_saved:
        savepoints.take(Checkpoint(home.checkpoint(lineage.id)), 2, crafted.record(2), None)
    ledger = crafted.Ledger(*map(crafted.record, range(3)), claim=tail.claim)
    monkeypatch.setattr(restore, "LedgerReader", lambda config, pipeline: ledger)
    with leases.holding(home.lease, "p", "cancelled") as hold:
        home.switch(lineage.id, hold.pointer, deleted=True)
    assert (home.current(), home.uses(lineage.id)) == (lineage, False)
    if not is_saved:
        with pytest.raises(RefusedError, match=r"state of pipeline p is lost: checkpoint was deleted when the"):
            recover(home, "p", {}, tail)
        recover(home, "p", {}, tail, allow_empty_state=True)
    else:
        assert recover(home, "p", {}, tail) is RestartSource.SAVEPOINT
    following = home.current()
    assert following is not None
    assert following.id != lineage.id
    assert home.uses(following.id)
    check_start(home, "p", tail)


def test_a_pipeline_without_commits_whose_checkpoint_was_deleted_begins_again(home: Home) -> None:
    lineage, tail = home.current(), tail_of(home)
    assert lineage is not None
    assert tail.claim is not None
    claim = replace(tail.claim, before=LedgerPointer())
    with leases.holding(home.lease, "p", "cancelled") as hold:
        home.switch(lineage.id, hold.pointer, deleted=True)
    tail = LedgerTail(cluster_id="c", topic_id="t", end_offset=2, claim=claim, claim_offset=1)
    assert recover(home, "p", {}, tail) is RestartSource.NOTHING
    following = home.current()
    assert following is not None
    assert following.commit_of(0) == 1
    check_start(home, "p", tail)


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
