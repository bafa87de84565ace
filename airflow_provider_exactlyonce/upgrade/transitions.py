"""The steps of an upgrade as a table: which one follows which, and on what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, Final

from airflow_provider_exactlyonce.control.upgrade_plan import Plan, Step
from airflow_provider_exactlyonce.exceptions import InvariantError


class Event(Enum):
    """What a step ends with."""

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


TRANSITIONS: Final[Mapping[tuple[Step, Event], Step]] = {
    (Step.CHECK, Event.REFUSED): Step.REFUSED,
    (Step.CHECK, Event.IN_USE): Step.DONE,
    (Step.CHECK, Event.COMPATIBLE): Step.COMPARE,
    (Step.COMPARE, Event.REFUSED): Step.REFUSED,
    (Step.COMPARE, Event.AS_INTENDED_DRY): Step.CHECKED,
    (Step.COMPARE, Event.AS_INTENDED): Step.STOP,
    (Step.STOP, Event.STOPPED): Step.START,
    (Step.START, Event.STARTED): Step.WATCH,
    (Step.START, Event.UNSTABLE): Step.STOP_NEW,
    (Step.START, Event.UNSTABLE_TO_LEAVE): Step.UNSTABLE,
    (Step.WATCH, Event.SETTLED): Step.DONE,
    (Step.WATCH, Event.SETTLED_TO_REST): Step.REST,
    (Step.WATCH, Event.UNSTABLE): Step.STOP_NEW,
    (Step.WATCH, Event.UNSTABLE_TO_LEAVE): Step.UNSTABLE,
    (Step.STOP_NEW, Event.STOPPED): Step.RESTORE,
    (Step.RESTORE, Event.RESTORED): Step.START_OLD,
    (Step.RESTORE, Event.FAILED): Step.FAILED,
    (Step.START_OLD, Event.STARTED): Step.WATCH_OLD,
    (Step.START_OLD, Event.FAILED): Step.FAILED,
    (Step.WATCH_OLD, Event.SETTLED): Step.ROLLED_BACK,
    (Step.WATCH_OLD, Event.SETTLED_TO_REST): Step.REST,
    (Step.WATCH_OLD, Event.FAILED): Step.FAILED,
    (Step.REST, Event.UPGRADE_AT_REST): Step.DONE,
    (Step.REST, Event.ROLLBACK_AT_REST): Step.ROLLED_BACK,
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
