"""The steps of an upgrade as a table: the next step by step and event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, Final

from airflow_provider_exactlyonce.control.upgrade_plan import Plan, UpgradeStep
from airflow_provider_exactlyonce.exceptions import InvariantError


class Event(Enum):
    """The outcome of a step."""

    REFUSED = "refused"
    IN_USE = "the version is in use already"
    COMPATIBLE = "compatible"
    AS_INTENDED = "the rows are as intended"
    AS_INTENDED_DRY = "the rows are as intended, in a dry run"
    STOPPED = "stopped"
    STARTED = "started"
    UNSTABLE = "not stable, and on_unstable is rollback"
    UNSTABLE_TO_LEAVE = "not stable, and on_unstable is fail"
    SETTLED = "what was started runs well"
    SETTLED_TO_REST = "what was started runs well, and nothing ran before"
    RESTORED = "restored"
    FAILED = "failed"
    UPGRADE_AT_REST = "stopped after an upgrade"
    ROLLBACK_AT_REST = "stopped after a rollback"


TRANSITIONS: Final[Mapping[tuple[UpgradeStep, Event], UpgradeStep]] = {
    (UpgradeStep.CHECK, Event.REFUSED): UpgradeStep.REFUSED,
    (UpgradeStep.CHECK, Event.IN_USE): UpgradeStep.DONE,
    (UpgradeStep.CHECK, Event.COMPATIBLE): UpgradeStep.COMPARE,
    (UpgradeStep.COMPARE, Event.REFUSED): UpgradeStep.REFUSED,
    (UpgradeStep.COMPARE, Event.AS_INTENDED_DRY): UpgradeStep.CHECKED,
    (UpgradeStep.COMPARE, Event.AS_INTENDED): UpgradeStep.STOP,
    (UpgradeStep.STOP, Event.STOPPED): UpgradeStep.START,
    (UpgradeStep.START, Event.STARTED): UpgradeStep.WATCH,
    (UpgradeStep.START, Event.UNSTABLE): UpgradeStep.STOP_NEW,
    (UpgradeStep.START, Event.UNSTABLE_TO_LEAVE): UpgradeStep.UNSTABLE,
    (UpgradeStep.WATCH, Event.SETTLED): UpgradeStep.DONE,
    (UpgradeStep.WATCH, Event.SETTLED_TO_REST): UpgradeStep.REST,
    (UpgradeStep.WATCH, Event.UNSTABLE): UpgradeStep.STOP_NEW,
    (UpgradeStep.WATCH, Event.UNSTABLE_TO_LEAVE): UpgradeStep.UNSTABLE,
    (UpgradeStep.STOP_NEW, Event.STOPPED): UpgradeStep.RESTORE,
    (UpgradeStep.RESTORE, Event.RESTORED): UpgradeStep.START_OLD,
    (UpgradeStep.RESTORE, Event.FAILED): UpgradeStep.FAILED,
    (UpgradeStep.START_OLD, Event.STARTED): UpgradeStep.WATCH_OLD,
    (UpgradeStep.START_OLD, Event.FAILED): UpgradeStep.FAILED,
    (UpgradeStep.WATCH_OLD, Event.SETTLED): UpgradeStep.ROLLED_BACK,
    (UpgradeStep.WATCH_OLD, Event.SETTLED_TO_REST): UpgradeStep.REST,
    (UpgradeStep.WATCH_OLD, Event.FAILED): UpgradeStep.FAILED,
    (UpgradeStep.REST, Event.UPGRADE_AT_REST): UpgradeStep.DONE,
    (UpgradeStep.REST, Event.ROLLBACK_AT_REST): UpgradeStep.ROLLED_BACK,
}


def moved(plan: Plan, event: Event, **changes: Any) -> Plan:
    """Return the plan at the step that follows.

    :param event: what its step has ended with
    :param changes: of its other fields
    :raises InvariantError: when nothing follows from that
    """
    following = TRANSITIONS.get((plan.step, event))
    if following is None:
        raise InvariantError(f"{event.value!r} at step {plan.step} of {plan.id}")
    return replace(plan, step=following, **changes)
