"""Classifies a driver's end: success, or an error of the kind that the driver itself would have raised.

Evidence in this order: the driver's status document, if this driver wrote it; its exit code; a lease that another
driver holds. No evidence is a failure, never a success.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from airflow_provider_exactlyonce import exceptions
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import requests
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.driver_output import DriverOutput
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.lease import Liveness
from airflow_provider_exactlyonce.control.processes import SIGNALLED, Ended
from airflow_provider_exactlyonce.control.status import DriverError, DriverState, Status
from airflow_provider_exactlyonce.exceptions import (
    AlreadyRunningError,
    BatchFailedError,
    BatchTimedOutError,
    CommitUnknownError,
    DataError,
    DataLostError,
    DriverFailedError,
    ExactlyOnceError,
    FencedError,
    InvariantError,
    RefusedError,
)
from airflow_provider_exactlyonce.policies.restart_strategy import RESTARTABLE

_LOG_LINES: Final = 40
_CHATTER: Final = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d INFO ")
_LOGGED_ERROR: Final = re.compile(r" ERROR (\w+: .+)")

#: What an exit code alone tells. Any other is a failure of the infrastructure.
_BY_EXIT_CODE: Final[Mapping[int, type[ExactlyOnceError]]] = {
    error.exit_code: error
    for error in (
        RefusedError,
        AlreadyRunningError,
        FencedError,
        DataError,
        BatchTimedOutError,
        DataLostError,
        InvariantError,
    )
}
_BY_DECISION: Final[Mapping[str, type[ExactlyOnceError]]] = {
    error.decision.value: error
    for error in (DriverFailedError, BatchFailedError, CommitUnknownError, FencedError, RefusedError, DataError)
}


def status_of(home: Home, token: str) -> Status | None:
    """Return the status of the driver with this start token, or the last words that it has left."""
    status = statuses.read(home.status)
    return status if status is not None and status.token == token else statuses.read(home.final_status_path(token))


def failure(home: Home, token: str, ended: Ended, output: DriverOutput | None) -> ExactlyOnceError | None:
    """Judge an ended driver; returns None for one that finished or stopped on request.

    :param output: if it is known, for the words of a driver that was refused before it could write a status
    :returns: an error whose message starts with the driver's own
    """
    status = status_of(home, token)
    if status is not None and status.state is DriverState.FINISHED:
        return None
    if status is not None and status.state is DriverState.STOPPED:
        if requests.stop_requested(home, token) is not None:
            return None
        return DriverFailedError("the driver was stopped by a signal, and nobody had asked for a stop")
    if status is not None and status.error is not None:
        return _from_status(status.error)
    error_class = _BY_EXIT_CODE.get(ended.exit_code) if ended.exit_code is not None else None
    if error_class is not None:
        return error_class(_logged_error(output) or _exit_sentence(ended.exit_code))
    held, life = leases.look(home.lease)
    if held is not None and held.token != token and life is Liveness.ALIVE:
        return FencedError(
            f"the driver ended without an account; pid {held.pid} on {held.host} has taken over (run {held.run})"
        )
    if ended.exit_code == 0:
        return RefusedError(
            "the driver ended with exit code 0 and never reported that it finished; "
            "the application must call the pipeline's main(), as in: if __name__ == '__main__': shop_totals.main()"
        )
    message = _logged_error(output) if ended.exit_code is not None and 0 < ended.exit_code < SIGNALLED else None
    if ended.exit_code is None and ended.account:
        message = f"the driver ended without an account of its own: {ended.account}"
    return DriverFailedError(message or _exit_sentence(ended.exit_code))


def log_tail(output: DriverOutput) -> str:
    """Return the last lines of a driver's output, with a heading; empty when it can't be read here."""
    lines = [line for line in output.last_lines() if not _CHATTER.match(line)][-_LOG_LINES:]
    return "\n".join([f"Last {len(lines)} lines of {output.log}, without Spark's INFO:", *lines]) if lines else ""


def _from_status(error: DriverError) -> ExactlyOnceError:
    kind = getattr(exceptions, error.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, ExactlyOnceError)):
        kind = _BY_EXIT_CODE.get(error.exit_code) or _BY_DECISION.get(error.decision, DriverFailedError)
    return kind.__new__(kind, f"{error.kind}: {error.message}")  # some take more than a message when they are raised


def _logged_error(output: DriverOutput | None) -> str | None:
    """Return the text of the error that the driver logged last; its kind is in the exit code."""
    for line in reversed(output.last_lines() if output is not None else []):
        if match := _LOGGED_ERROR.search(line):
            return match[1]
    return None


def _exit_sentence(code: int | None) -> str:
    if code is None:
        return "the driver ended without an account; its exit code could not be seen"
    if code < 0:
        return f"the driver was killed by signal {-code}"
    if code > SIGNALLED:
        return f"the driver ended with exit code {code} (killed by signal {code - SIGNALLED})"
    return f"the driver ended with exit code {code}"


def is_final(error: ExactlyOnceError) -> bool:
    """Whether a retry needs a person's help first: refused, fenced, or wrong data."""
    return error.decision not in RESTARTABLE
