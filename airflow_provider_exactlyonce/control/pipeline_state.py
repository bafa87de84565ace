"""A pipeline's state, and the outlook after a driver that has died or fallen silent, as its home shows them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from airflow_provider_exactlyonce.control import drivers, moving, requests, restarts, standbys, upgrade_plan
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.lease import Liveness
from airflow_provider_exactlyonce.control.restarts import Restart
from airflow_provider_exactlyonce.control.status import ENDED, Status


class PipelineState(StrEnum):
    """A driver's state by its own status, as far as observations agree with it."""

    ABSENT = "absent"  # no driver has ever reported
    STARTING = "starting"
    RUNNING = "running"
    SILENT = "silent"  # it holds the pipeline, and gives no sign of life
    FINISHED = "finished"  # everything that was asked for is committed
    STOPPED = "stopped"  # on request, nothing in doubt
    FAILED = "failed"  # its supervisor may be about to start the next one
    LOST = "lost"  # it ended without an account; its supervisor may be about to start the next one


def state_of(home: Home) -> tuple[PipelineState, Status | None]:
    """Return a pipeline's state, and the last account of its last driver. Never waits."""
    (held, life), status = leases.look(home.lease), statuses.read(home.status)
    if held is not None and life is Liveness.STALE:
        return PipelineState.SILENT, status
    if held is not None and life is Liveness.ALIVE:
        is_own = status is not None and status.token == held.token
        return PipelineState(status.state) if status is not None and is_own else PipelineState.STARTING, status
    if drivers.is_starting(home):
        return PipelineState.STARTING, status
    if status is None:
        return PipelineState.ABSENT, None
    return PipelineState(status.state) if status.state in ENDED else PipelineState.LOST, status


_ENDS: Final = {
    PipelineState.SILENT: "gives no sign of life",
    PipelineState.LOST: "is gone without an account",
    PipelineState.FAILED: "has failed",
}


def outlook(home: Home) -> str | None:
    """Return a sentence on the next driver.

    None while a driver runs or starts, after an end in order, and before the first start.
    """
    if (move := moving.sealed(home.path)) is not None:
        return f"the home was moved to {move.target}, from where the next one is to be started"
    state, status = state_of(home)
    if state not in _ENDS:
        return None
    held = leases.read(home.lease)
    token = held.token if held is not None else status.token if status is not None else None
    description = drivers.describe(home, token) if held is not None else "the driver"
    return f"{description} {_ENDS[state]}, and no successor has started; {_next(home, token, status)}"


def _next(home: Home, token: str | None, status: Status | None) -> str:
    plan = upgrade_plan.read(home)
    if plan is not None and plan.holds_starts:
        is_left = upgrade_plan.is_left(home, plan, time.time())
        return upgrade_plan.left_behind(plan) if is_left else f"{plan.sentence}, which alone starts the next one"
    entry, intent = _promised_restart(home, token, status), intents.read(home.intent)
    standby = standbys.waiting(home)
    for driver_token in filter(None, (token, entry.token if entry else None, intent.token if intent else None)):
        if (reason := requests.stop_requested(home, driver_token)) is not None:
            return f"a stop was asked for ({reason}), so nobody starts the next one"
    if entry is not None:
        due = datetime.fromtimestamp(entry.due, UTC).isoformat(timespec="seconds")
        if time.time() < entry.due:
            return f"its supervisor starts the next one at {due} (restart {entry.number})"
        if time.time() < entry.due + drivers.RESTART_GRACE_SECONDS:
            return f"restart {entry.number} by its supervisor is due since {due}"
        return f"restart {entry.number} was due at {due} and has not come: its supervisor is lost, start it again"
    if intent is not None:
        return f"its supervisor ({intent.owner}) has not noted its end yet, and has to decide on a restart"
    if standby is not None:
        return f"the standby (pid {standby.pid} on {standby.host}) takes over as soon as it is certain that it is lost"
    return "no supervisor is known to start the next one"


def _promised_restart(home: Home, token: str | None, status: Status | None) -> Restart | None:
    """Return the restart that a supervisor has promised after the newest driver's death."""
    entry = next(reversed(restarts.read(home.restarts)), None)
    if entry is None or entry.relaunched is not None:
        return None
    held = leases.read(home.lease)
    heard_at = max(held.heartbeat if held is not None else 0.0, status.updated if status is not None else 0.0)
    # Else a driver was started since, by hand.
    return entry if entry.token == token or entry.died >= heard_at else None
