"""Backfills of one pipeline take turns, whatever starts them."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.backfill import workspace
from airflow_provider_exactlyonce.backfill.begin import begin
from airflow_provider_exactlyonce.backfill.request import BackfillRequest
from airflow_provider_exactlyonce.backfill.resolve import Resolved
from airflow_provider_exactlyonce.backfill.results import BackfillWritten
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError, StopRequestedError
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.storage.local import LocalStore
from tests.clocks import StandingClock
from tests.unit.backfill.test_plan import at, commit

COMMIT = commit(1, at(0), at(10))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create("p")
    return home


def made(home: Home, commits: str) -> Home:
    return workspace.make(home, "p", BackfillRequest.parse(commits=commits))


def never() -> None:
    return None


def test_a_request_has_one_home_and_what_it_is_for_is_in_it(home: Home) -> None:
    first, second = made(home, "1..2"), made(home, "1..3")
    assert made(home, "1..2").path == first.path != second.path
    assert (first.identity(), first.pipeline()) == (second.identity(), "p.backfill")
    assert first.identity() != home.identity()
    asked = workspace.asked_of(first)
    assert (asked.pipeline, asked.home, asked.request.commits) == ("p", str(home.path), (1, 2))
    with pytest.raises(RefusedError, match="is no home of a backfill"):
        workspace.asked_of(home)
    with pytest.raises(RefusedError, match="is the home of pipeline p, not of q"):
        workspace.make(home, "q", BackfillRequest.parse(commits="1..2"))


def test_only_one_has_the_turn_and_who_waits_may_give_up(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    first_home, second_home = made(home, "1..2"), made(home, "1..3")
    asked: list[str] = []
    with ExitStack() as first:
        first.enter_context(workspace.turn(first_home, never))

        def give_up() -> None:
            raise StopRequestedError("stopped")

        with pytest.raises(StopRequestedError), workspace.turn(second_home, give_up):
            pytest.fail("it is not its turn")

        def others() -> None:
            if len(asked) == 2:
                first.close()

        monkeypatch.setattr(workspace, "time", StandingClock(meanwhile=others))
        with workspace.turn(second_home, lambda: asked.append("it waits")):
            assert len(asked) == 2


def test_the_ledger_keeps_what_an_unfinished_backfill_reads(home: Home) -> None:
    assert workspace.oldest_needed(home) is None
    for commits, base in (("8..9", 7), ("5..9", 3)):
        backfill_home = made(home, commits)
        workspace.begin(
            backfill_home,
            workspace.StartedBackfill(
                version="v", name="n", resolved=Resolved(starts={}, ends={}, begins={}, base_commit=base)
            ),
            nullcontext,
        )
        assert workspace.oldest_needed(home) == {7: None, 3: 8}[base], "it has not made its lineage yet"
        backfill_home.create("p.backfill")
    assert workspace.oldest_needed(home) == 4
    workspace.forget(made(home, "5..9"), nullcontext)
    assert workspace.oldest_needed(home) == 8


def test_who_was_frozen_in_his_turn_forgets_nothing_of_the_next(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStore, "has_locks", False)
    backfill_home, clock = made(home, "1..2"), StandingClock()
    monkeypatch.setattr(leases, "time", clock)
    backfill_home.create("p.backfill")
    following: list[Lineage] = []

    def freeze() -> AbstractContextManager[None]:
        clock.now += 10 * leases.STALE_SECONDS
        with workspace.turn(made(home, "1..2"), never) as sure:
            workspace.forget(backfill_home, sure)
            following.append(backfill_home.create("p.backfill"))
        return frozen()

    with pytest.raises(AlreadyRunningError), workspace.turn(backfill_home, never) as frozen:
        workspace.forget(backfill_home, freeze)
    assert [backfill_home.current()] == following
    assert backfill_home.lineages.joinpath(following[0].id, "checkpoint").exists()


def ledger(commit: int, topic: str = "t") -> LedgerTail:
    return LedgerTail(
        cluster_id="c", topic_id=topic, end_offset=0, commit=replace(COMMIT, commit=commit), commit_offset=7
    )


@pytest.mark.parametrize("tail", [None, ledger(2), ledger(3, "other")])
def test_a_ledger_that_has_lost_what_was_written_is_refused_for_every_request(
    home: Home, tail: LedgerTail | None
) -> None:
    workspace.check_ledger(made(home, "1..2"), tail)
    workspace.note_ledger(made(home, "1..2"), ledger(3))
    workspace.check_ledger(made(home, "1..3"), ledger(4))
    with pytest.raises(RefusedError, match="what was written would be written again"):
        workspace.check_ledger(made(home, "1..3"), tail)


def test_a_backfill_of_a_table_is_refused_before_anything_is_asked(home: Home) -> None:
    sources = [SourceTopics.of("in"), SourceTopics(names=("delta:/t",))]
    with pytest.raises(RefusedError, match=r"pipeline p reads table delta:/t, .*starting_version"):
        begin(made(home, "1..2"), {}, "v", SourceClusters({}, {"delta:/t": ""}), sources, nullcontext)


def test_a_directory_that_was_lost_gets_the_identity_that_the_ledger_knows(home: Home) -> None:
    known = made(home, "1..2").identity()
    shutil.rmtree(home.path / "backfills")
    backfill_home = made(home, "1..2")
    assert backfill_home.identity() != known is not None
    workspace.adopt(backfill_home, known)
    assert (backfill_home.identity(), backfill_home.pipeline(), made(home, "1..3").identity()) == (
        known,
        "p.backfill",
        known,
    )


@pytest.mark.parametrize(
    ("asked", "then", "refused"),
    [
        ((2, 3), (2, 2), True),
        ((2, 2), (2, 2), False),
        (None, (2, 2), False),
        ((2, 2), None, False),
    ],
)
def test_commits_without_data_do_not_pass_for_part_of_a_backfill_of_the_same_records(
    asked: tuple[int, int] | None, then: tuple[int, int] | None, refused: bool
) -> None:
    resolved = Resolved(starts={}, ends={}, begins={}, commits=then)
    for written in (BackfillWritten(begun=resolved), BackfillWritten(result={"commits": then and list(then)})):
        with pytest.raises(RefusedError, match=r"n was asked for as commits 2\.\.2") if refused else nullcontext():
            written.check_asked("n", asked)
