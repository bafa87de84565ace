"""The plan of an upgrade or a rollback: ``<home>/control/upgrade.json``.

Each step is on disk before it is taken, and the next step after that. So a process that follows a killed one knows the
step that may have been taken, and every step may be taken twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.codec import Rewritten
from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import ChangedError, HeldError


class UpgradeStep(StrEnum):
    """The current step. Up to ``stop`` nothing has been touched."""

    CHECK = "check"  # the new version is compared with a savepoint
    COMPARE = "compare"  # the shadow run
    STOP = "stop"  # the old driver stops, with a savepoint
    START = "start"  # the new version's driver starts
    WATCH = "watch"  # until it is stable
    STOP_NEW = "stop-new"  # the way back: what runs stops
    RESTORE = "restore"  # a lineage is made of the savepoint
    START_OLD = "start-old"  # the driver of the version that is gone back to starts
    WATCH_OLD = "watch-old"  # until it has caught up
    REST = "rest"  # the new driver is stopped, because nothing ran before
    DONE = "done"  # the new version is in use
    ROLLED_BACK = "rolled-back"  # the old version is in use again
    CHECKED = "checked"  # the end of a dry run: nothing was touched, and nothing speaks against it
    UNSTABLE = "unstable"  # the new version is in use, as it was asked for, and not stable
    REFUSED = "refused"  # nothing was touched
    FAILED = "failed"  # a person is needed


_PLAN: Final = "upgrade.json"
#: After these nothing follows.
ENDS: Final = frozenset(
    {
        UpgradeStep.DONE,
        UpgradeStep.CHECKED,
        UpgradeStep.ROLLED_BACK,
        UpgradeStep.UNSTABLE,
        UpgradeStep.REFUSED,
        UpgradeStep.FAILED,
    }
)
#: Of whatever takes the steps: its next try, after a task's own delay and in a queue, comes within so long.
_NEXT_TRY_SECONDS: Final = 600.0
#: During these steps no other process may start a driver.
_HOLDING: Final = frozenset(UpgradeStep) - ENDS - {UpgradeStep.CHECK, UpgradeStep.COMPARE}


@dataclass(frozen=True, kw_only=True)
class Options(Rewritten):
    """The options of an upgrade.

    :param savepoint: the stop takes a savepoint: True, or its label
    :param shadow_commits: how many commits the shadow run repeats, 0 for none
    :param compare: columns that the shadow run compares, empty for those that both versions have
    :param function: ``file.py:name`` of the function that the shadow run applies to each row, None for none
    :param allow: {kind of difference: how many are intended, None for any number}
    :param stable_after: how many commits the new version has to make
    :param stable_timeout: within how many seconds
    :param on_unstable: ``rollback`` or ``fail``
    :param stop_timeout: how long a driver may take to end its batch, seconds
    :param accept_nondeterminism: a rollback may replay commits that give other rows
    """

    savepoint: bool | str = True
    shadow_commits: int = 0
    compare: tuple[str, ...] = ()
    function: str | None = None
    allow: dict[str, int | None] = field(default_factory=dict)
    stable_after: int = 3
    stable_timeout: float = 600.0
    on_unstable: str = "rollback"
    stop_timeout: float = 300.0
    accept_nondeterminism: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan(Rewritten):
    """One upgrade, or one rollback by hand.

    :param id: hexadecimal digits; part of the names of requests to drivers
    :param application: the new version's file, None for a rollback by hand
    :param job_hash: SHA-256 of it
    :param new: its version, None before the check
    :param old: the version in use at the start, or that a rollback goes back to; None before the check
    :param savepoint: what a rollback goes back to
    :param pinned: whether this plan has pinned it
    :param unpin: savepoints of earlier upgrades that are pinned until this one has ended well
    :param was_stopped: nothing ran when the plan, or the one that it replaced, was begun, so nothing does in the end
    :param token: start token of the driver that this plan starts
    :param log: that driver's output
    :param entered: when the step was begun, seconds since the epoch
    :param lag_peak: the most source records that were not committed, up to the new version's first commit
    :param check: the answer of the compatibility check
    :param shadow: the report of the shadow run
    :param reason: why it was refused, was not stable or failed; or why nothing was to be done
    :param error: class name of the error that the reason is the message of
    """

    id: str
    pipeline: str
    step: UpgradeStep
    options: Options
    application: str | None = None
    job_hash: str | None = None
    new: str | None = None
    old: str | None = None
    savepoint: str | None = None
    pinned: bool = False
    unpin: tuple[str, ...] = ()
    was_stopped: bool = False
    token: str | None = None
    log: str | None = None
    started: float = field(default_factory=time.time)
    entered: float = field(default_factory=time.time)
    lag_peak: int = 0
    check: dict[str, Any] | None = None
    shadow: dict[str, Any] | None = None
    reason: str | None = None
    error: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing follows."""
        return self.step in ENDS

    @property
    def holds_starts(self) -> bool:
        """Whether only its own driver may start."""
        return self.step in _HOLDING

    @property
    def sentence(self) -> str:
        """A sentence with the plan's aim and its current step."""
        aim = f"an upgrade to {self.application}" if self.application else f"a rollback to version {self.old}"
        return f"{aim} of pipeline {self.pipeline} is under way, at step {self.step}"

    @property
    def step_seconds(self) -> float:
        """How long its step may take while no process works on it: it waits for a driver then, or for its next try."""
        options = self.options
        timeouts = {
            UpgradeStep.STOP: options.stop_timeout,
            UpgradeStep.WATCH: options.stable_timeout,
            UpgradeStep.STOP_NEW: options.stop_timeout,
            UpgradeStep.WATCH_OLD: options.stable_timeout,
            UpgradeStep.REST: options.stop_timeout,
        }
        return timeouts.get(self.step, 0.0) + _NEXT_TRY_SECONDS

    def document(self) -> dict[str, Any]:
        """Return its JSON form."""
        return {"schema": 1, **codec.dump(self)}


def path_of(home: Home, name: str, *, dry_run: bool = False) -> Path:
    """Return the path of an upgrade's file; a dry run has its own beside it, and blocks nobody."""
    return home.control / (f"dry-run-{name}" if dry_run else name)


def read(home: Home, *, dry_run: bool = False) -> Plan | None:
    """Return the newest plan, None when there was none."""
    return json_store.load(path_of(home, _PLAN, dry_run=dry_run), Plan)


def write(home: Home, plan: Plan, *, before: Plan | None = None, dry_run: bool = False) -> None:
    """Replace the plan unless it was changed: a process that was frozen may wake up when another has gone on with it.

    :param before: the plan to replace, None for none
    :raises AlreadyRunningError: when another one is there
    """
    path = path_of(home, _PLAN, dry_run=dry_run)
    stored = store_of(path).read(path)
    current = read(home, dry_run=dry_run)
    try:
        if _written(current) != _written(before):
            raise ChangedError(current.sentence if current is not None else "its plan is gone")
        if store_of(path).has_locks:  # it is held, and so changed by its holder alone
            json_store.write(path, plan.document())
        else:
            json_store.swap(path, stored, plan.document())
    except ChangedError as error:
        raise AlreadyRunningError(
            f"another process has gone on with the upgrade of {plan.pipeline} meanwhile: {error}"
        ) from error


def _written(plan: Plan | None) -> str | None:
    """Return a plan as the document has it, where a tuple is a list."""
    return None if plan is None else json.dumps(plan.document(), sort_keys=True)


def is_left(home: Home, plan: Plan, now: float) -> bool:
    """Whether a plan was abandoned: no process works on it, and its step should long be over.

    :param now: seconds since the epoch
    """
    if plan.is_over or now - plan.entered <= plan.step_seconds:
        return False
    try:
        with working_on(home, plan.pipeline):
            return read(home) == plan  # else another process has just taken a step
    except AlreadyRunningError:
        return False


def is_held(error: AlreadyRunningError) -> bool:
    """Whether an error says that another process works on the plan, which may end at any time."""
    return isinstance(error.__cause__, HeldError)


def left_behind(plan: Plan) -> str:
    """Return a message with the ways on from a plan that :func:`is_left`."""
    return (
        f"{plan.sentence} since {datetime.fromtimestamp(plan.entered, UTC).isoformat(timespec='seconds')}, and nobody "
        f"works on it any more. Repeat what began it, or go back: exactlyonce rollback {plan.pipeline}"
    )


@contextmanager
def working_on(home: Home, pipeline: str, *, dry_run: bool = False) -> Iterator[leases.Sure]:
    """Keep everybody else from advancing the plan; a process that dies lets go. Gives what :func:`leases.alone` does.

    :raises AlreadyRunningError: when another process has the lock, see :func:`is_held`
    """
    plan = path_of(home, _PLAN, dry_run=dry_run)
    with ExitStack() as stack:
        try:
            sure = stack.enter_context(leases.alone(plan, pipeline))
        except HeldError as error:
            raise AlreadyRunningError(
                f"another process works on the upgrade of the pipeline in {home}; it goes on without this one"
            ) from error
        yield sure
