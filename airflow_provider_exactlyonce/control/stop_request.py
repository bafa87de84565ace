"""A stop that is asked for from outside: asked again under the same name, it is asked once.

What is stopped is decided at the first call and recorded in the home: ``commands/stop-<request>.json``. A repetition,
by whoever comes after a lost worker, waits for that same driver and leaves one alone that was started since.

A driver may die before it sees the stop, and its supervisor start the next one meanwhile. Each side writes first and
reads then: the request asks the dead driver and looks for another intent; the supervisor writes that intent and looks
whether the dead driver was asked. So at least one of them sees the other, and nobody waits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Final

from airflow_provider_exactlyonce.control import commands, drivers, json_store
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control.home import Home

#: A task instance is hardly tried again after so long.
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
        """Return the start token of the driver that is to stop, None when none ran; decided at the first call.

        It moves on when that driver has died and the same supervisor has started another one.
        """
        return self._target().token

    def advance(self) -> bool:
        """Ask the driver if that is to be done, and return whether it has ended. Never waits for it."""
        token = self._target().token
        if token is None:
            return True
        if drivers.is_there(self._home, token) or drivers.is_announced(self._home, token):
            self._ask(token)
            return False
        dead = drivers.awaiting_restart(self._home)
        if dead is not None and dead.token == token:
            self._ask(token)
        return self._target().token == token

    def _target(self) -> _Target:
        target = json_store.load(self._file, _Target) or self._decide()
        if target.token is None or drivers.is_there(self._home, target.token):
            return target
        intent = intents.read(self._home.intent)
        if intent is None or intent.series != target.series or intent.token == target.token:
            return target
        return self._record(replace(target, token=intent.token))

    def _decide(self) -> _Target:
        while True:
            before = intents.read(self._home.intent)
            found = drivers.find(self._home)
            if found is not None:
                return self._record(_Target(token=found.token, series=found.series))
            dead = drivers.awaiting_restart(self._home)
            if dead is not None:
                return self._record(_Target(token=dead.token, series=dead.series))
            intent = intents.read(self._home.intent)
            if intent is None or intent == before:
                return self._record(_Target(token=None))

    def _ask(self, token: str) -> None:
        if commands.stop_requested(self._home, token) is None:
            commands.request_stop(self._home, token, reason=self._reason)

    def _record(self, target: _Target) -> _Target:
        commands.forget_older(self._home, "stop-*.json", _FORGOTTEN_SECONDS)
        json_store.write(self._file, asdict(target))
        return target
