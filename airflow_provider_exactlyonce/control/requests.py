"""Requests to a pipeline's driver: documents in its home, each bound to one driver.

A stop is one document. Each request for a savepoint is a ``savepoint-<request>.json``; the driver removes it when it
has answered in ``savepoint-<request>.done.json``, which the requester removes. A task's requests have its own name.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.storage.opening import store_of

_SAVEPOINT: Final = re.compile(r"savepoint-([0-9a-f]+)(\.done)?\.json")
#: A task is hardly tried again, or cleared, after so long.
_TASK_SECONDS: Final = 30 * 24 * 60 * 60.0
#: Nobody comes back for a savepoint after so long.
_SAVEPOINT_SECONDS: Final = 24 * 60 * 60.0


def request_stop(home: Home, token: str, *, reason: str) -> None:
    """Ask the driver with this start token to stop before its next batch. May be repeated."""
    json_store.write(home.commands / "stop.json", {"token": token, "reason": reason})


def stop_requested(home: Home, token: str) -> str | None:
    """Return the reason when a stop was asked of the driver with this start token."""
    body = json_store.read(home.commands / "stop.json")
    return str(body["reason"]) if body and body["token"] == token else None


def note_killed(home: Home, token: str, owner: str) -> None:
    """Note that the driver is asked to stop because a task ended, not because the pipeline is to stop."""
    forget_older(home.commands, "killed-*.json")
    json_store.write(_killed_path(home, token), {"owner": owner})


def killed_by(home: Home, token: str) -> str | None:
    """Return the owner whose task's end has stopped the driver with this start token, None for none."""
    body = json_store.read(_killed_path(home, token))
    return str(body["owner"]) if body else None


def _killed_path(home: Home, token: str) -> Path:
    return home.commands / f"killed-{token}.json"


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
    """The answer to a request.

    :param savepoint: the savepoint's id, None when there is none
    :param error: why not
    """

    savepoint: str | None = None
    error: str | None = None


def request_savepoint(home: Home, request: SavepointRequest) -> None:
    """Ask a driver for a savepoint. May be repeated."""
    json_store.write(_savepoint_path(home, request.request), asdict(request))


def savepoint_request(home: Home, request: str) -> SavepointRequest | None:
    """Return a request that is not answered yet."""
    return json_store.load(_savepoint_path(home, request), SavepointRequest)


def savepoint_requests(home: Home, token: str) -> list[SavepointRequest]:
    """Return the unanswered requests to the driver with this start token."""
    unanswered = []
    for name in store_of(home.commands).names(home.commands):
        match = _SAVEPOINT.fullmatch(name)
        request = json_store.load(home.commands / name, SavepointRequest) if match and not match[2] else None
        if request is not None and request.token == token:
            unanswered.append(request)
    return unanswered


def answer_savepoint(home: Home, request: str, answer: SavepointAnswer) -> None:
    """Answer a request, so that it is asked no longer."""
    json_store.write(_savepoint_path(home, request, done=True), asdict(answer))
    store_of(home.commands).delete(_savepoint_path(home, request))


def savepoint_answer(home: Home, request: str) -> SavepointAnswer | None:
    """Return the answer to a request, None while it is open."""
    return json_store.load(_savepoint_path(home, request, done=True), SavepointAnswer)


def forget_savepoint(home: Home, request: str) -> None:
    """Remove a request and its answer, and others that were not fetched within a day."""
    for done in (False, True):
        store_of(home.commands).delete(_savepoint_path(home, request, done=done))
    forget_older(home.commands, "savepoint-*.json", _SAVEPOINT_SECONDS)


def forget_older(directory: Path, pattern: str, seconds: float = _TASK_SECONDS) -> None:
    """Remove files that were not written for so long; the default suits files that a task may still need."""
    store = store_of(directory)
    for name in fnmatch.filter(store.names(directory), pattern):
        facts = store.facts(directory / name)
        if facts is not None and facts.modified < time.time() - seconds:
            store.delete(directory / name)


def _savepoint_path(home: Home, request: str, *, done: bool = False) -> Path:
    return home.commands / f"savepoint-{request}{'.done' if done else ''}.json"


class TaskRequest:
    """A request of one task instance: it keeps its name over all tries, and gets another once the task is cleared.

    Airflow counts the clears of a DAG run, of any of its tasks. So a higher count alone proves nothing: it makes a new
    request after one that is done, never after one that is still waited for. A clear that leaves its DAG run as it is
    does not count there, and changes the task's last try. A DAG run that was deleted and made again under the same id
    begins to count anew: its start, which a retry keeps, distinguishes it from the run before.

    :param task_instance: the names that identify it
    :param clears: how often its DAG run was cleared
    :param started: when its DAG run has started, as text; None where Airflow does not say
    :param max_tries: the number of its last try, which each clear of the task changes; None where Airflow does not say
    """

    def __init__(
        self,
        home: Home,
        task_instance: Sequence[str],
        *,
        clears: int,
        started: str | None = None,
        max_tries: int | None = None,
    ) -> None:
        self._home: Final = home
        self.clears: Final = clears
        self._file: Final = home.commands / f"task-{_digits(*task_instance)}.json"
        self._noted: dict[str, Any] | None = json_store.read(self._file)
        self._now: Final = {"clears": clears, "started": started, "max_tries": max_tries}
        self._number: Final[int] = 0 if self._noted is None else self._noted["number"] + self._is_another(self._noted)
        self.name: Final = _digits(*task_instance, str(self._number))

    def _is_another(self, noted: dict[str, Any]) -> bool:
        """Whether a stored note belongs to another request: a request that is done, or of a deleted DAG run."""
        cleared = self.clears > noted["clears"]
        started_anew, tried_anew = (self._differs_from(noted, name) for name in ("started", "max_tries"))
        if noted.get("done", True):  # release 0.1.0 has noted nothing before
            return cleared or started_anew or tried_anew
        return started_anew and not cleared

    def _differs_from(self, noted: dict[str, Any], name: str) -> bool:
        then, now = noted.get(name), self._now[name]
        return then is not None and now is not None and then != now

    def begin(self) -> None:
        """Record the request before acting, so that a later request of the same name can be distinguished."""
        noted, now = self._noted, self._note(done=False)
        is_answered = noted is not None and noted["number"] == self._number and noted.get("done", True)
        if not is_answered and noted != now:
            self._write(now)

    def done(self) -> None:
        """Record that the request is fulfilled."""
        self._write(self._note(done=True))

    def _note(self, *, done: bool) -> dict[str, Any]:
        return {"number": self._number, **self._now, "done": done}

    def _write(self, note: dict[str, Any]) -> None:
        forget_older(self._home.commands, "task-*.json")
        json_store.write(self._file, note)
        self._noted = note


def _digits(*names: str) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class WaitCondition:
    """The condition to wait for before the next step.

    :param token: start token of the driver that is asked; None between a driver's death and its restart: the next
        driver has no token yet
    :param request: the request for a savepoint to be answered, None to wait for the driver's end
    :param commits: wait also until the driver runs and has made so many commits, None for its end alone
    :param seconds: after so many the next step is taken in any case
    """

    token: str | None
    request: str | None = None
    commits: int | None = None
    seconds: float = 60.0
