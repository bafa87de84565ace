"""Waits in the triggerer for a state of a pipeline."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError, UnknownPipelineError
from airflow_provider_exactlyonce.triggers.polling import PollingTrigger
from airflow_provider_exactlyonce.triggers.shared_poller import HOME_THREADS, Checker, CheckResult, Subject

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.control.home import Home
    from airflow_provider_exactlyonce.control.pipeline_state import PipelineState
    from airflow_provider_exactlyonce.control.status import Status
    from airflow_provider_exactlyonce.hooks.metrics import Reporter

#: Of documents, in one look at a state.
_READS: Final = 2
#: For so long it is not looked up again where a pipeline's home is.
_HOME_SECONDS: Final = 30.0


@dataclass(frozen=True)
class _CachedHome:
    """Where a pipeline's home is, for a while.

    :param expires: by the monotonic clock
    """

    home: Home
    pipeline: str
    reporter: Reporter
    expires: float


class StateChecker(Checker):
    """Reads one pipeline's home, however many wait for it."""

    threads = HOME_THREADS

    def __init__(self, conn_id: str) -> None:
        super().__init__(conn_id)
        self._cached: _CachedHome | None = None
        self._state: tuple[PipelineState, Status | None] | None = None
        self._state_until = 0.0

    @classmethod
    @override
    def group_of(cls, subject: Subject) -> str:
        return json.dumps([subject["pipeline"], subject["checkpoint"]])

    def _check(self, subjects: Mapping[str, Subject], *, diagnose: bool) -> Mapping[str, CheckResult | Exception]:
        first = next(iter(subjects.values()))
        answer = self._look(first["pipeline"], first["checkpoint"])
        return {name: _result(*answer, subject["states"]) for name, subject in subjects.items()}

    @override
    def _result(self, answer: CheckResult | Exception) -> CheckResult | Exception:
        if isinstance(answer, OSError):  # of a home, and no matter of the connection
            return CheckResult(missing=f"home: {answer}")
        return super()._result(answer)

    def _close(self) -> None:
        self._cached = self._state = None

    def _look(self, pipeline: str | None, checkpoint: str | None) -> tuple[str, PipelineState, Status | None]:
        from airflow_provider_exactlyonce.control import json_store
        from airflow_provider_exactlyonce.control.pipeline_state import PipelineState, state_of
        from airflow_provider_exactlyonce.hooks import home as homes
        from airflow_provider_exactlyonce.hooks.metrics import Reporter

        cached = self._cached
        if cached is None or time.monotonic() >= cached.expires:
            try:
                home, name = homes.find(self.conn_id, pipeline=pipeline, checkpoint=checkpoint)
            except UnknownPipelineError:
                return pipeline or str(checkpoint), PipelineState.ABSENT, None
            expires = time.monotonic() + _HOME_SECONDS
            if cached is not None and cached.home.location == home.location:
                cached = replace(cached, pipeline=name, expires=expires)
            else:
                cached, self._state = _CachedHome(home, name, Reporter(home), expires), None
            self._cached = cached
        cached.reporter.report()
        if self._state is None or time.monotonic() >= self._state_until:
            with json_store.one_look():
                self._state = state_of(cached.home)
            self._state_until = time.monotonic() + cached.home.look_every(0.0, reads=_READS)
        return cached.pipeline, *self._state


class PipelineStateTrigger(PollingTrigger):
    """Fire when a pipeline is in one of the states, or the deadline has passed; the triggerer must see its home.

    :param pipeline: name of the pipeline, None when ``checkpoint`` is given
    :param checkpoint: its home, None when ``pipeline`` is given
    :param states: values of :class:`~airflow_provider_exactlyonce.control.pipeline_state.PipelineState`
    :param kafka_conn_id: connection of type ``kafka``
    :param poll_interval: seconds between two checks
    :param deadline: seconds since the epoch
    """

    checker = StateChecker


def states_of(given: object) -> list[str]:
    """Read the states that are waited for.

    :raises RefusedError: when one is none, or none is given
    """
    from airflow_provider_exactlyonce.control.pipeline_state import PipelineState

    given_states = [given] if isinstance(given, str) else given if isinstance(given, Iterable) else ()
    states = [str(state) for state in given_states]
    all_states = [state.value for state in PipelineState]
    if not states or not set(states) <= set(all_states):
        raise RefusedError(f"states={given!r}: one or more of {', '.join(all_states)}")
    return states


def _result(pipeline: str, state: PipelineState, status: Status | None, wanted: object) -> CheckResult | Exception:
    try:
        states = states_of(wanted)
    except RefusedError as error:
        return error
    if state.value in states:
        run, commit = (status.run, status.commit) if status else (0, 0)
        return CheckResult(found={"pipeline": pipeline, "state": state.value, "run": run, "commit": commit})
    cause = f" ({status.error.kind}: {status.error.message})" if status is not None and status.error else ""
    return CheckResult(missing=f"pipeline {pipeline} is {state.value}{cause}, waiting for {' or '.join(states)}")
