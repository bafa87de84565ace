"""Waits in the triggerer for a state of a pipeline."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError, UnknownPipelineError
from airflow_provider_exactlyonce.triggers.polling import PollingTrigger
from airflow_provider_exactlyonce.triggers.shared_poller import Checker, CheckResult, Subject

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.control.home import Home
    from airflow_provider_exactlyonce.control.pipeline_state import PipelineState
    from airflow_provider_exactlyonce.control.status import Status
    from airflow_provider_exactlyonce.hooks.metrics import Reporter

#: Of documents, in one look at a state.
_READS: Final = 2
#: For so long it is not looked up again where a pipeline's home is.
_HOME_SECONDS: Final = 30.0

_Place = tuple[str | None, str | None]


class StateChecker(Checker):
    """Reads each home once, however many wait for it."""

    def __init__(self, conn_id: str) -> None:
        super().__init__(conn_id)
        self._homes: dict[_Place, tuple[Home, str, float]] = {}
        self._states: dict[str, tuple[PipelineState, Status | None, float]] = {}  # by home, and until when they count
        self._reporters: dict[str, Reporter] = {}  # by home

    def _check(self, subjects: Mapping[str, Subject], *, diagnose: bool) -> Mapping[str, CheckResult | Exception]:
        from confluent_kafka import KafkaException

        places: dict[_Place, dict[str, Subject]] = {}
        for name, subject in subjects.items():
            places.setdefault((subject["pipeline"], subject["checkpoint"]), {})[name] = subject
        results: dict[str, CheckResult | Exception] = {}
        for place, waiting in places.items():
            try:
                answer = self._state(place)
                results |= {name: _said(*answer, subject["states"]) for name, subject in waiting.items()}
            except (KafkaException, ExactlyOnceError, OSError) as error:
                results.update(dict.fromkeys(waiting, error))
        return results

    @override
    def _said(self, answer: CheckResult | Exception) -> CheckResult | Exception:
        if isinstance(answer, OSError):  # of a home, and no matter of the connection
            return CheckResult(missing=f"home: {answer}")
        return super()._said(answer)

    def _close(self) -> None:
        self._homes.clear()
        self._states.clear()
        self._reporters.clear()

    def _state(self, place: _Place) -> tuple[str, PipelineState, Status | None]:
        from airflow_provider_exactlyonce.control import json_store
        from airflow_provider_exactlyonce.control.pipeline_state import PipelineState, state_of
        from airflow_provider_exactlyonce.hooks import home as homes
        from airflow_provider_exactlyonce.hooks.metrics import Reporter

        pipeline, checkpoint = place
        home, name, until = self._homes.get(place, (None, "", 0.0))
        if home is None or time.monotonic() >= until:
            try:
                home, name = homes.find(self.conn_id, pipeline=pipeline, checkpoint=checkpoint)
            except UnknownPipelineError:
                return pipeline or str(checkpoint), PipelineState.ABSENT, None
            self._homes[place] = home, name, time.monotonic() + _HOME_SECONDS
        self._reporters.setdefault(home.location, Reporter(home)).report()
        state, status, until = self._states.get(home.location, (PipelineState.ABSENT, None, 0.0))
        if time.monotonic() >= until:
            with json_store.one_look():
                state, status = state_of(home)
            pause = home.look_every(0.0, reads=_READS)
            self._states[home.location] = state, status, time.monotonic() + pause
        return name, state, status


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
    known = [state.value for state in PipelineState]
    if not states or not set(states) <= set(known):
        raise RefusedError(f"states={given!r}: one or more of {', '.join(known)}")
    return states


def _said(pipeline: str, state: PipelineState, status: Status | None, given: object) -> CheckResult | Exception:
    try:
        states = states_of(given)
    except RefusedError as error:
        return error
    if state.value in states:
        run, commit = (status.run, status.commit) if status else (0, 0)
        return CheckResult(found={"pipeline": pipeline, "state": state.value, "run": run, "commit": commit})
    why = f" ({status.error.kind}: {status.error.message})" if status is not None and status.error else ""
    return CheckResult(missing=f"pipeline {pipeline} is {state.value}{why}, waiting for {' or '.join(states)}")
