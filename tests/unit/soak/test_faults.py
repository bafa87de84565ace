"""A plan is gone through in its order, whatever fails on the way."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from tests.clocks import StandingClock
from tests.soak import faults
from tests.soak.faults import Faults
from tests.soak.journal import EVENTS, Journal, read
from tests.soak.judge import Finding
from tests.soak.names import CHECKED, POSTED
from tests.soak.plan import Event, Kind

ROLLBACK = Event(number=1, at=0.0, kind=Kind.ROLLBACK, target=POSTED)
UPGRADE = Event(number=2, at=0.0, kind=Kind.UPGRADE, target=POSTED)
SCHEDULER = Event(number=3, at=0.0, kind=Kind.SCHEDULER, seconds=0.01)


class Fake:
    """A world in which a DAG run ends at once."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.outcome: dict[str, Any] = {"outcome": "done"}
        self.result = "success"
        self.version = "first"
        self.fails = False
        self.seconds: float | None = 1.5
        self.found: list[Finding] = []
        self.parts = self

    def trigger(self, dag: str, run_id: str, **conf: Any) -> None:
        self.done.append(dag)
        self.version = f"after {run_id}"

    def state(self, run_id: str) -> str:
        return self.result

    def pushed(self, run_id: str) -> dict[str, Any]:
        return self.outcome

    def kill(self, part: str) -> None:
        if self.fails:
            raise AssertionError("it is not there")
        self.done.append(f"kill {part}")

    def start(self, part: str) -> None:
        self.done.append(f"start {part}")

    def heal(self) -> None:
        self.done.append("heal")

    def start_one(self) -> None:
        self.done.append("a gate")

    def recovered(self, since: float) -> float | None:
        return self.seconds


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    standing = StandingClock()
    monkeypatch.setattr(faults, "time", standing)
    return standing


@pytest.fixture
def made(fake: Fake, clock: StandingClock, tmp_path: Path) -> Faults:
    readers = cast(Any, {POSTED: fake, CHECKED: fake})
    return Faults(cast(Any, fake), readers, cast(Any, fake), Journal(tmp_path), fake.found.extend)


def noted(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read(folder / EVENTS) if event["kind"] == kind]


def test_a_part_is_killed_and_started_again_and_how_soon_all_went_on_is_noted(
    made: Faults, fake: Fake, tmp_path: Path
) -> None:
    made.carry_out(SCHEDULER, 0.0)
    assert fake.done == ["kill scheduler", "start scheduler", "a gate"]
    [done] = noted(tmp_path, "done")
    assert (done["what"], done["seconds"]) == ("SIGKILL, scheduler", 1.5)
    assert set(done["recovered"]) == {POSTED, CHECKED, "a gate"}
    assert fake.found == []


def test_a_rollback_waits_for_an_upgrade(made: Faults, fake: Fake) -> None:
    made.carry_out(ROLLBACK, 0.0)
    assert fake.done == []
    made.carry_out(UPGRADE, 0.0)
    made.carry_out(UPGRADE, 0.0)
    made.carry_out(ROLLBACK, 0.0)
    assert fake.done == [f"{POSTED}-upgrade", f"{POSTED}-rollback"]
    assert fake.found == []


def test_a_change_that_fails_is_a_finding_and_so_is_one_that_changes_nothing(made: Faults, fake: Fake) -> None:
    fake.result, fake.outcome = "failed", {"outcome": "rolled-back", "reason": "not stable"}
    made.carry_out(UPGRADE, 0.0)
    assert [finding.kind for finding in fake.found] == ["failed"]
    assert "not stable" in fake.found[0].note
    fake.found.clear()
    fake.result = "success"
    fake.trigger = lambda *_, **__: None  # type: ignore[method-assign]
    made.carry_out(UPGRADE, 0.0)
    assert "still commits with version" in fake.found[0].note


def test_what_does_not_go_on_is_a_finding(made: Faults, fake: Fake) -> None:
    fake.seconds = None
    made.carry_out(SCHEDULER, 0.0)
    assert [finding.kind for finding in fake.found] == ["hanging"]


def test_after_a_fault_that_could_not_be_carried_out_everything_is_brought_back(made: Faults, fake: Fake) -> None:
    fake.fails = True
    made.carry_out(SCHEDULER, 0.0)
    assert fake.done == ["heal"]
    assert [finding.kind for finding in fake.found] == ["failed"]


def test_a_kill_that_comes_late_is_left_out_and_a_change_is_not(made: Faults, fake: Fake, tmp_path: Path) -> None:
    for event in (SCHEDULER, UPGRADE):
        made.carry_out(event, faults.LATE_SECONDS + 1)
    assert fake.done == [f"{POSTED}-upgrade"]
    assert [event["what"] for event in noted(tmp_path, "skipped")] == ["SIGKILL, scheduler"]


def test_each_has_its_time_and_nothing_more_is_done_once_it_is_over(
    made: Faults, fake: Fake, clock: StandingClock
) -> None:
    ended, began, ticks = threading.Event(), clock.now, list[float]()

    def tick() -> None:
        ticks.append(clock.now - began)
        if clock.now - began >= 60:
            ended.set()

    later = Event(number=8, at=30.0, kind=Kind.UPGRADE, target=POSTED)
    never = Event(number=9, at=3600.0, kind=Kind.SCHEDULER)
    faults.run([SCHEDULER, later, never], made, began, ended, tick)
    assert fake.done == ["kill scheduler", "start scheduler", "a gate", f"{POSTED}-upgrade"]
    assert (30.0 in ticks, max(ticks)) == (True, 60.0)
