"""The plan: all from a seed, everything has its turn, and a short run has some of each."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest

from tests.soak.names import PIPELINES
from tests.soak.plan import KILLS, Event, Kind, plan

HOUR = 3600.0


def kinds(events: list[Event]) -> Counter[Kind]:
    return Counter(event.kind for event in events)


def test_a_seed_gives_the_same_plan_again_and_another_seed_another() -> None:
    assert plan(5, HOUR) == plan(5, HOUR)
    assert plan(5, HOUR) != plan(6, HOUR)


@pytest.mark.parametrize("seconds", [180, 360, HOUR, 8 * HOUR])
def test_events_come_in_order_and_none_after_the_end(seconds: float) -> None:
    events = plan(1, seconds)
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert 0 < events[0].at < events[-1].at < seconds


def test_in_eight_hours_there_is_a_savepoint_each_ten_minutes_and_a_change_of_version_each_half_hour() -> None:
    events = plan(1, 8 * HOUR)
    assert [event.at for event in events if event.kind is Kind.SAVEPOINT] == [600.0 * n for n in range(1, 48)]
    changes = [event for event in events if event.kind in (Kind.UPGRADE, Kind.ROLLBACK)]
    assert [event.at for event in changes] == [1800.0 * n for n in range(1, 16)]
    for before, after in zip(changes[::2], changes[1::2], strict=False):
        assert (before.kind, after.kind) == (Kind.UPGRADE, Kind.ROLLBACK)
        assert before.target == after.target
    assert {event.target for event in changes} == set(PIPELINES)
    assert {event.during for event in changes} == {None, Kind.TRIGGERER, Kind.SCHEDULER}


def test_each_round_kills_everything_once() -> None:
    killed = [(event.kind, event.target) for event in plan(2, 8 * HOUR) if event.kind in KILLS]
    rounds = [killed[start : start + 11] for start in range(0, len(killed) - 11, 11)]
    assert len(rounds) > 20
    for of_round in rounds:
        assert len(set(of_round)) == 11
        assert {kind for kind, _ in of_round} == set(KILLS)


def test_some_are_frozen_and_what_is_killed_comes_back() -> None:
    events = [event for event in plan(3, 8 * HOUR) if event.kind in KILLS]
    frozen = Counter(event.kind for event in events if event.is_frozen)
    assert set(frozen) == {Kind.DRIVER, Kind.BROKER, Kind.DATABASE, Kind.STORE}
    for event in events:
        comes_back_by_itself = not event.is_frozen and event.kind in (Kind.DRIVER, Kind.WORKER)
        assert (event.seconds == 0) == comes_back_by_itself
        assert event.seconds <= 30


def test_six_minutes_have_some_of_each() -> None:
    found = kinds(plan(1, 0.1 * HOUR))
    assert found[Kind.SAVEPOINT] == 4
    assert (found[Kind.UPGRADE], found[Kind.ROLLBACK]) == (1, 1)
    assert set(found) >= set(KILLS)
    assert sum(found[kind] for kind in KILLS) >= 10


def test_after_each_round_there_is_calm() -> None:
    at = [event.at for event in plan(4, 8 * HOUR) if event.kind in KILLS]
    pauses = [later - earlier for earlier, later in pairwise(at)]
    assert sum(pause > 600 for pause in pauses) == len(at) // 11 - (len(at) % 11 == 0)


def test_facts_are_json() -> None:
    event = Event(number=1, at=2.0, kind=Kind.BROKER, target="leader", is_frozen=True, seconds=3.0)
    facts = json.loads(json.dumps(event.facts()))
    assert (facts["what"], facts["target"], facts["during"]) == ("SIGSTOP, broker", "leader", None)
