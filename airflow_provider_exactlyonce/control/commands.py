"""Commands to a driver: documents that are bound to the driver they are meant for.

A stop is one document. A savepoint is one a request, ``savepoint-<request>.json``; the driver removes it when it has
answered in ``savepoint-<request>.done.json``, which the one who asked removes.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control.home import Home


def request_stop(home: Home, token: str, *, reason: str) -> None:
    """Ask the driver with this start token to stop before its next batch. May be repeated."""
    json_store.write(home.commands / "stop.json", {"token": token, "reason": reason})


def stop_requested(home: Home, token: str) -> str | None:
    """Return the reason when a stop was asked of the driver with this start token."""
    body = json_store.read(home.commands / "stop.json")
    return str(body["reason"]) if body and body["token"] == token else None


def note_killed(home: Home, token: str, owner: str) -> None:
    """Note that a task's end, and nobody's wish to stop the pipeline, is why its driver is asked to stop.

    :param owner: the task
    """
    forget_older(home, "killed-*.json", _TASK_FORGOTTEN_SECONDS)
    json_store.write(_killed(home, token), {"owner": owner})


def killed_by(home: Home, token: str) -> str | None:
    """Return the task whose end the driver with this start token was stopped with."""
    body = json_store.read(_killed(home, token))
    return str(body["owner"]) if body else None


def _killed(home: Home, token: str) -> Path:
    return home.commands / f"killed-{token}.json"


_SAVEPOINT: Final = re.compile(r"savepoint-([0-9a-f]+)(\.done)?\.json")
_FORGOTTEN_SECONDS: Final = 24 * 60 * 60.0
#: A task is hardly tried again after so long.
_TASK_FORGOTTEN_SECONDS: Final = 30 * 24 * 60 * 60.0


@dataclass(frozen=True, kw_only=True)
class SavepointRequest:
    """A savepoint that a driver is asked for.

    :param request: hexadecimal digits; the savepoint's id ends with them, so that a request is served once
    :param token: start token of the driver that is meant
    :param label: what people call it
    :param stop: the driver begins no further batch, takes it, and ends
    """

    request: str
    token: str
    label: str | None = None
    stop: bool = False


@dataclass(frozen=True, kw_only=True)
class SavepointAnswer:
    """What became of a request.

    :param savepoint: the savepoint's id, None when there is none
    :param error: why not
    """

    savepoint: str | None = None
    error: str | None = None


def request_savepoint(home: Home, request: SavepointRequest) -> None:
    """Ask a driver for a savepoint. May be repeated."""
    json_store.write(_savepoint(home, request.request), asdict(request))


def savepoint_request(home: Home, request: str) -> SavepointRequest | None:
    """Return a request that is not answered yet."""
    return json_store.load(_savepoint(home, request), SavepointRequest)


def savepoint_requests(home: Home, token: str) -> list[SavepointRequest]:
    """Return what is asked of the driver with this start token, and not answered yet."""
    found = []
    for file in sorted(home.commands.glob("savepoint-*.json")):
        match = _SAVEPOINT.fullmatch(file.name)
        asked = json_store.load(file, SavepointRequest) if match and not match[2] else None
        if asked is not None and asked.token == token:
            found.append(asked)
    return found


def answer_savepoint(home: Home, request: str, answer: SavepointAnswer) -> None:
    """Answer a request, so that it is asked no longer."""
    json_store.write(_savepoint(home, request, done=True), asdict(answer))
    _savepoint(home, request).unlink(missing_ok=True)


def savepoint_answer(home: Home, request: str) -> SavepointAnswer | None:
    """Return what became of a request, None while it is open."""
    return json_store.load(_savepoint(home, request, done=True), SavepointAnswer)


def forget_savepoint(home: Home, request: str) -> None:
    """Remove a request and its answer, and those that nobody has come back for in a day."""
    for done in (False, True):
        _savepoint(home, request, done=done).unlink(missing_ok=True)
    forget_older(home, "savepoint-*.json", _FORGOTTEN_SECONDS)


def forget_older(home: Home, pattern: str, seconds: float) -> None:
    """Remove documents that nobody has written for so long."""
    for file in home.commands.glob(pattern):
        with contextlib.suppress(FileNotFoundError):  # somebody else forgets it, too
            if file.stat().st_mtime < time.time() - seconds:
                file.unlink()


def _savepoint(home: Home, request: str, *, done: bool = False) -> Path:
    return home.commands / f"savepoint-{request}{'.done' if done else ''}.json"
