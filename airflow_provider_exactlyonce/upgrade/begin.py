"""Begins an upgrade, a dry run of one, or a rollback by hand: writes its plan, and takes no step."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_exactlyonce.checkpoint.restore import RestoreRequest
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import drivers, releases, requests, status, upgrade_plan
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.stopping import StopRequest
from airflow_provider_exactlyonce.control.upgrade_plan import Options, Plan, UpgradeStep
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError
from airflow_provider_exactlyonce.upgrade import shadow_run

_ON_UNSTABLE = ("rollback", "fail")


def begin_upgrade(
    home: Home, pipeline: str, application: str, options: Options, *, request: str, dry_run: bool = False
) -> Plan:
    """Return the plan of an upgrade: a new one, or the one that this request, or another one to the same file, has.

    :param application: the new version's file, a local path
    :param request: hexadecimal digits; the same request upgrades once
    :param dry_run: take only the steps that touch nothing
    :raises RefusedError: when an option can't be, or there is no such file
    :raises AlreadyRunningError: when an upgrade to another file is under way
    """
    _check(options)
    file = Path(application)
    job_hash = releases.hash_of(file)
    with upgrade_plan.working_on(home, pipeline, dry_run=dry_run):
        earlier = upgrade_plan.read(home, dry_run=dry_run)
        if earlier is not None and earlier.id == request:
            return earlier
        if job_hash is None:
            raise RefusedError(f"there is no job file {application!r}")
        if earlier is not None and not earlier.is_over and not dry_run:
            if earlier.job_hash == job_hash:
                return earlier  # of a process that was lost
            raise AlreadyRunningError(
                f"{earlier.sentence}; repeat that one to its end, or go back: exactlyonce rollback {pipeline}"
            )
        plan = Plan(
            id=request,
            pipeline=pipeline,
            step=UpgradeStep.CHECK,
            options=options,
            application=str(file.resolve()),
            job_hash=job_hash,
            unpin=_left_pinned(earlier),
        )
        upgrade_plan.write(home, plan, before=earlier, dry_run=dry_run)
        return plan


def begin_rollback(
    home: Home,
    pipeline: str,
    options: Options,
    *,
    request: str,
    check: Callable[[RestoreRequest], None],
    version: str | None = None,
    savepoint: str | None = None,
) -> Plan:
    """Return the plan of a rollback: of the last upgrade, finished or not, or to a version and savepoint.

    :param request: hexadecimal digits; a rollback with the same request is done once
    :param check: raises when the savepoint could not be restored
    :param version: the version to go back to, None for the savepoint's, or the version before the last upgrade
    :param savepoint: the savepoint to go back to, None for the one that the last upgrade has kept, or the version's
        newest
    :raises RefusedError: when there is nothing to go back to, or no way there; nothing was touched
    """
    with upgrade_plan.working_on(home, pipeline):
        earlier = upgrade_plan.read(home)
        if earlier is not None and earlier.id == request:
            return earlier
        version, savepoint = _target(home, pipeline, earlier, version, savepoint)
        is_ours = earlier is not None and (earlier.application, earlier.old, earlier.savepoint) == (
            None,
            version,
            savepoint,
        )
        if earlier is not None and is_ours and not earlier.is_over:
            return earlier  # of a process that was lost
        if releases.application(home, version) is None:
            raise RefusedError(
                f"{home} has no copy of the job's file of version {version}: only versions that have run there "
                "can be gone back to"
            )
        accepted = options.accept_nondeterminism
        check(RestoreRequest(savepoint=savepoint, version=version, accept_nondeterminism=accepted))
        plan = Plan(
            id=request,
            pipeline=pipeline,
            step=UpgradeStep.STOP_NEW,
            options=options,
            old=version,
            savepoint=savepoint,
            unpin=_pinned_by(home, earlier),
            was_stopped=_was_stopped(home, earlier),
        )
        upgrade_plan.write(home, plan, before=earlier)
        shadow_run.forget(home)
        return plan


def what_to_compare(asked: Sequence[str] | str | Callable[..., Any]) -> tuple[tuple[str, ...], str | None]:
    """Return the columns that a shadow run compares, and the place of the function that it applies to rows.

    :param asked: columns, also in one text with commas; or a function of a module, also as ``FILE.py:NAME``
    :raises RefusedError: when another process could not import the function
    """
    if callable(asked):
        file, name = inspect.getsourcefile(asked), getattr(asked, "__qualname__", "")
        if file is None or not name.isidentifier():
            raise RefusedError(f"compare={asked!r}: a function of a module, which another process can import")
        return (), f"{os.path.abspath(file)}:{name}"
    if isinstance(asked, str):
        if ".py:" in asked:
            return (), os.path.abspath(asked)
        asked = asked.split(",")
    return tuple(name.strip() for name in asked if name.strip()), None


def _target(
    home: Home, pipeline: str, earlier: Plan | None, version: str | None, savepoint: str | None
) -> tuple[str, str]:
    savepoints = Savepoints(home.savepoints)
    if savepoint is not None:
        return version or savepoints.get(savepoint).version, savepoint
    if version is None:
        if earlier is not None and not earlier.is_over and earlier.old and earlier.savepoint:
            return earlier.old, earlier.savepoint
        release = releases.read(home)
        if release is not None and release.previous and release.savepoint:
            return release.previous, release.savepoint
        raise RefusedError(
            f"pipeline {pipeline} has no upgrade to roll back; name a version, or a savepoint: exactlyonce savepoint "
            f"list {pipeline}"
        )
    savepoint_ids = [candidate.id for candidate in savepoints.list() if candidate.version == version]
    if not savepoint_ids:
        versions = ", ".join(sorted({candidate.version for candidate in savepoints.list()})) or "none"
        raise RefusedError(
            f"there is no savepoint of version {version} in {savepoints.directory}; of these: {versions}"
        )
    return version, savepoint_ids[-1]


def _was_stopped(home: Home, earlier: Plan | None) -> bool:
    """Return whether nothing runs; or ran before the earlier plan, where nothing runs now because of that plan."""
    if earlier is not None and earlier.step is UpgradeStep.STOP:  # the stop itself knows
        return _stopped_by(home, earlier) is None
    if earlier is not None and (earlier.holds_starts or _has_left_nothing_running(home, earlier)):
        return earlier.was_stopped
    return drivers.find_or_awaited(home) is None


def _has_left_nothing_running(home: Home, earlier: Plan) -> bool:
    """Whether a plan that did not end well is the reason why no driver runs, and not a person's stop."""
    if earlier.step not in (UpgradeStep.UNSTABLE, UpgradeStep.FAILED) or drivers.find_or_awaited(home) is not None:
        return False
    newest = status.read(home.status)
    if newest is None or newest.token != earlier.token:
        return earlier.application is not None and newest is not None and newest.token == _stopped_by(home, earlier)
    # After a failure nothing of the plan runs that a person could stop: that stop was the plan's own.
    return earlier.step is UpgradeStep.FAILED or requests.stop_requested(home, newest.token) is None


def _stopped_by(home: Home, plan: Plan) -> str | None:
    """Return the start token of the driver that an upgrade has stopped, None when none ran."""
    return StopRequest(home, plan.id, reason=plan.sentence).target()


def _pinned_by(home: Home, earlier: Plan | None) -> tuple[str, ...]:
    """Return the savepoints that an upgrade has pinned and that are unneeded once this rollback is done."""
    release = releases.read(home)
    pinned = [release.savepoint] if release is not None and release.pinned and release.savepoint else []
    return tuple(dict.fromkeys([*pinned, *_left_pinned(earlier)]))


def _left_pinned(earlier: Plan | None) -> tuple[str, ...]:
    """Return the savepoints that a plan which has not ended well leaves to the next one to unpin."""
    if earlier is None or earlier.step in (UpgradeStep.DONE, UpgradeStep.ROLLED_BACK):
        return ()
    return (*earlier.unpin, *([earlier.savepoint] if earlier.pinned and earlier.savepoint else []))


def _check(options: Options) -> None:
    if options.on_unstable not in _ON_UNSTABLE:
        raise RefusedError(f"on_unstable={options.on_unstable!r}: one of {', '.join(_ON_UNSTABLE)}")
    for kind, number in options.allow.items():
        if kind not in ("missing", "extra", "changed") and not kind.startswith("changed."):
            raise RefusedError(f"allowed difference {kind!r}: missing, extra, changed or changed.COLUMN")
        if number is not None and (not isinstance(number, int) or number < 0):
            raise RefusedError(f"allowed difference {kind!r}: {number!r} is no number of rows")
    for name in ("shadow_commits", "stable_after", "stable_timeout", "stop_timeout"):
        if getattr(options, name) < 0:
            raise RefusedError(f"{name}={getattr(options, name)}: not negative")
