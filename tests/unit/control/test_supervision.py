"""The table of a supervisor's states, asked for what must hold of every path through it."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.supervision import TRANSITIONS, Supervision, SupervisorEvent, SupervisorState
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy


def before(state: SupervisorState) -> set[SupervisorState]:
    return {old for (old, _), new in TRANSITIONS.items() if new is state} - {state}


def test_every_state_is_reached_and_every_event_moves_something() -> None:
    reached = {SupervisorState.RETURNING}
    while more := {new for (old, _), new in TRANSITIONS.items() if old in reached} - reached:
        reached |= more
    assert reached == set(SupervisorState)
    assert {event for _, event in TRANSITIONS} == set(SupervisorEvent)


def test_only_the_end_has_no_way_on() -> None:
    assert set(SupervisorState) - {old for old, _ in TRANSITIONS} == {SupervisorState.DONE}


def test_nothing_is_started_before_it_was_asked_whether_a_driver_lives() -> None:
    assert before(SupervisorState.STARTING) == {SupervisorState.FINDING}


def test_the_work_is_done_only_by_a_judgement_of_our_own_driver() -> None:
    assert before(SupervisorState.DONE) == {SupervisorState.JUDGING}
    assert before(SupervisorState.JUDGING) == {SupervisorState.WATCHING}


def test_a_supervisor_shows_what_it_does(tmp_path: Path) -> None:
    launch = Launch(command=["true"], printable="true", environment={})
    supervision = Supervision(owner="shop/stream", until="forever", strategy=RestartStrategy.none())
    shown = repr(Supervisor(Home(tmp_path), launch, supervision))
    assert shown == f"Supervisor('shop/stream', RETURNING, Home('{tmp_path}'))"
