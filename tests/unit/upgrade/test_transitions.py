"""The table of an upgrade's steps: it leads everywhere, and everywhere to an end."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control.upgrade_plan import ENDS, Options, Plan, UpgradeStep
from airflow_provider_exactlyonce.exceptions import InvariantError
from airflow_provider_exactlyonce.upgrade import machine
from airflow_provider_exactlyonce.upgrade.transitions import TRANSITIONS, Event, moved

#: An upgrade begins with the first, a rollback by hand with the second.
BEGINNINGS = frozenset({UpgradeStep.CHECK, UpgradeStep.STOP_NEW})


def reached(start: frozenset[UpgradeStep]) -> set[UpgradeStep]:
    """Return the steps that can follow some, those included."""
    steps: set[UpgradeStep] = set()
    left = set(start)
    while left:
        step = left.pop()
        steps.add(step)
        left |= {to for (of, _), to in TRANSITIONS.items() if of is step} - steps
    return steps


def plan(step: UpgradeStep) -> Plan:
    return Plan(id="1", pipeline="p", step=step, options=Options())


def test_every_step_can_be_reached_and_leads_to_an_end() -> None:
    assert reached(BEGINNINGS) == set(UpgradeStep)
    for step in UpgradeStep:
        assert reached(frozenset({step})) & ENDS, step


def test_nothing_follows_an_end() -> None:
    assert {step for step, _ in TRANSITIONS} == set(UpgradeStep) - ENDS


def test_from_the_way_back_no_step_leads_to_the_new_version() -> None:
    assert not reached(frozenset({UpgradeStep.STOP_NEW})) & {UpgradeStep.START, UpgradeStep.WATCH, UpgradeStep.UNSTABLE}


def test_what_the_table_lacks_is_an_error_that_names_step_and_event() -> None:
    assert moved(plan(UpgradeStep.STOP), Event.STOPPED, savepoint="1-a").step is UpgradeStep.START
    with pytest.raises(InvariantError, match="'restored' at step stop"):
        moved(plan(UpgradeStep.STOP), Event.RESTORED)


def test_each_event_of_the_table_is_the_end_of_a_step() -> None:
    text = Path(machine.__file__).read_text()
    used = {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Event"
    }
    assert used == {event.name for event in Event} == {event.name for _, event in TRANSITIONS}
    assert "step=" not in text, "only the table says what follows"
