"""Stops a pipeline from outside, with a savepoint if that is wanted. Asked twice under one name, it is done once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
from airflow_provider_exactlyonce.checkpoint.request import SavepointTaker
from airflow_provider_exactlyonce.control import drivers
from airflow_provider_exactlyonce.control.drivers import FailureDetector
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.requests import WaitCondition
from airflow_provider_exactlyonce.control.stopping import StopRequest
from airflow_provider_exactlyonce.exceptions import NotAnsweredError
from airflow_provider_exactlyonce.polling import poll_until

_POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """A pipeline that has stopped.

    :param token: start token of the driver that was stopped, None when none ran
    :param savepoint: the one that was asked for
    """

    token: str | None
    savepoint: Savepoint | None


class Stop:
    """One stop that is asked for.

    :param config: returns client configuration in librdkafka's names, for a savepoint of a pipeline that is stopped
    :param request: hexadecimal digits; the same request is made once
    :param reason: for the driver's log and its supervisor
    :param savepoint: True, or a label, takes a savepoint when the last batch is committed; the driver ends after it
    :param detector: kept by a caller that polls
    """

    def __init__(
        self,
        home: Home,
        pipeline: str,
        config: Callable[[], Mapping[str, Any]],
        *,
        request: str,
        reason: str,
        savepoint: bool | str = False,
        detector: FailureDetector | None = None,
    ) -> None:
        detector = detector or FailureDetector(home)
        self._stop: Final = StopRequest(home, request, reason=reason, detector=detector)
        self._takes_savepoint: Final = savepoint is not False
        self._taker: Final = SavepointTaker(
            home,
            pipeline,
            config,
            request=request,
            label=savepoint if isinstance(savepoint, str) else None,
            stops=lambda token: token == self._stop.target(),
            detector=detector,
        )

    def advance(self) -> Stopped | WaitCondition:
        """Take the next step; returns the result, or the condition to wait for. Never waits.

        :raises ExactlyOnceError: when the savepoint can't be taken
        """
        target = self._stop.target()
        # Asked for before the stop, so that the driver saves before it ends.
        taken = self._taker.advance() if self._takes_savepoint else None
        ended = self._stop.advance()
        if isinstance(taken, WaitCondition):
            return taken
        return Stopped(token=target, savepoint=taken) if ended else WaitCondition(token=self._stop.target())


def stop(
    home: Home, pipeline: str, config: Mapping[str, Any], *, savepoint: bool | str, timeout_seconds: float
) -> Stopped:
    """Stop a pipeline and wait for it; one that is stopped already is a success.

    :param config: client configuration in librdkafka's names
    :param savepoint: True, or a label, takes a savepoint
    :raises NotAnsweredError: when the driver does not end in time; the request stays
    :raises ExactlyOnceError: when the savepoint can't be taken
    """
    stopping = Stop(
        home, pipeline, lambda: config, request=uuid.uuid4().hex[:16], reason="exactlyonce stop", savepoint=savepoint
    )
    outcome = poll_until(
        stopping.advance,
        done=lambda outcome: isinstance(outcome, Stopped),
        seconds=timeout_seconds,
        poll_seconds=home.look_every(_POLL_SECONDS),
    )
    if isinstance(outcome, WaitCondition):
        raise not_stopped(home, pipeline, outcome.token, timeout_seconds)
    return outcome


def not_stopped(home: Home, pipeline: str, token: str | None, timeout_seconds: float) -> NotAnsweredError:
    """Return the error of a driver that has not ended in time."""
    return NotAnsweredError(
        f"{drivers.describe(home, token)} of {pipeline} has not stopped within {timeout_seconds:g} s. It stops when "
        f"its batch has ended: the request stays, so look at its status and output in {home.control}, then stop it "
        "again (in Airflow, clear this task) to wait longer. If it hangs, end its process; no data is lost, and the "
        "next run goes on from the last commit"
    )
