"""A stop that is asked for from outside: asked again under the same name, it is asked once.

What is stopped is decided at the first call and recorded in the home: ``commands/stop-<request>.json``. A repetition,
by whoever comes after a lost worker, waits for that same driver and leaves one alone that was started since.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from airflow_provider_exactlyonce.control import commands, documents, drivers
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control.home import Home

#: A supervisor that is about to start a driver looks for a stop more often than this, or has started it by then.
_RESTART_SETTLES_SECONDS: Final = 1.0
_FORGOTTEN_SECONDS: Final = 30 * 24 * 60 * 60.0


@dataclass(frozen=True, kw_only=True)
class _Target:
    """Whom a request is for.

    :param token: start token of the driver, None when the pipeline was stopped already
    :param series: start token of the first driver of its supervisor's restarts, None without a supervisor
    """

    token: str | None
    series: str | None = None


class StopRequest:
    """One request for a stop.

    :param request: hexadecimal digits; who they belong to asks once
    :param reason: for the driver's log and its supervisor
    """

    def __init__(self, home: Home, request: str, *, reason: str) -> None:
        self._home: Final = home
        self._file: Final = home.commands / f"stop-{request}.json"
        self._reason: Final = reason

    def target(self) -> str | None:
        """Return the start token of the driver that is to stop, None when none ran; decided at the first call."""
        return self._target().token

    def advance(self) -> bool:
        """Ask the driver if that is to be done, and return whether it has ended. Never waits for it."""
        target = self._target()
        if target.token is None:
            return True
        if not drivers.is_there(self._home, target.token):
            successor = self._successor(target)
            if successor is None:
                return True
            target = self._record(successor)
        self._ask(target)
        return False

    def _target(self) -> _Target:
        body: dict[str, Any] | None = documents.read(self._file)
        return _Target(**body) if body else self._decide()

    def _decide(self) -> _Target:
        found = drivers.find(self._home)
        if found is not None:
            return self._record(_Target(token=found.token, series=found.series))
        dead = drivers.awaiting_restart(self._home)
        if dead is None:
            return self._record(_Target(token=None))
        target = self._record(_Target(token=dead.token, series=dead.series))
        self._ask(target)
        time.sleep(_RESTART_SETTLES_SECONDS)
        return target

    def _successor(self, target: _Target) -> _Target | None:
        """Return the driver that the same supervisor has started after the target died before it was stopped."""
        intent = intents.read(self._home.intent)
        if intent is None or intent.series != target.series or intent.token == target.token:
            return None
        return replace(target, token=intent.token)

    def _ask(self, target: _Target) -> None:
        if target.token is not None and commands.stop_requested(self._home, target.token) is None:
            commands.request_stop(self._home, target.token, reason=self._reason)

    def _record(self, target: _Target) -> _Target:
        for file in self._home.commands.glob("stop-*.json"):
            if file.stat().st_mtime < time.time() - _FORGOTTEN_SECONDS:
                file.unlink(missing_ok=True)
        documents.write(self._file, asdict(target))
        return target
