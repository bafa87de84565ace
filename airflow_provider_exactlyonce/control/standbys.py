"""Standbys: a driver that is ready, and waits for the end of the one that runs the pipeline.

It holds nothing of the pipeline. What it writes is a lease of its own, ``control/standby.json``, so that there is one
of them, and others see it. When its turn comes it makes the ordinary start of a driver, with each of its checks.

Alone it takes its turn when the driver is lost. Under a supervisor it is the next driver that is started: the
supervisor writes the intent, as before every start, and the standby goes on where a process would have been made.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import exit_classification, requests
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.lease import HeartbeatMonitor, Lease, Liveness
from airflow_provider_exactlyonce.control.processes import Ended
from airflow_provider_exactlyonce.control.status import ENDED
from airflow_provider_exactlyonce.exceptions import (
    AlreadyRunningError,
    FencedError,
    StopRequestedError,
)
from airflow_provider_exactlyonce.storage.store import is_no_answer

#: What a driver that takes the option ``--standby`` gets: it makes itself ready to run before it waits.
WARM: Final = "warm"
#: Environment variable with pid and start time of the supervisor that a standby belongs to.
SUPERVISOR_VARIABLE: Final = "EXACTLYONCE_SUPERVISOR"
#: How often a standby looks whether it is its turn, where a look costs nothing.
_LOOK_SECONDS: Final = 0.2

_log = logging.getLogger(__name__)


def waiting(home: Home) -> Lease | None:
    """Return the lease of the standby that is ready, None when there is none. Never waits."""
    held, life = leases.look(home.standby)
    return held if life is Liveness.ALIVE else None


def check_only(home: Home, pipeline: str) -> Lease | None:
    """Check that no other standby waits; returns the lease of one that is gone.

    :raises AlreadyRunningError: when one does
    """
    held, life = leases.observe(home.standby)
    if held is not None and life is Liveness.ALIVE:
        raise AlreadyRunningError(
            f"a standby of pipeline {pipeline} waits already: pid {held.pid} on {held.host}. A pipeline has one; end it"
        )
    return held


class StandbyTurn(ABC):
    """Whether it is a standby's turn to start."""

    #: The lease of the driver that was lost, as it was seen last; None where nobody stood by for one.
    left: Lease | None = None

    @abstractmethod
    def has_come(self) -> bool:
        """Tell whether it is; cheap, and never waits.

        :raises StopRequestedError: when the standby is not wanted any more
        :raises ExactlyOnceError: the error of the driver that it stands by for, where a start would fail again
        :raises OSError: when the home does not tell
        """


def turn_of(home: Home, token: str, supervisor: str | None) -> StandbyTurn:
    """Return the turn that a standby waits for.

    :param supervisor: the value of :data:`SUPERVISOR_VARIABLE`, None without a supervisor
    """
    if supervisor is None:
        return LeaseTurn(home)
    pid, started = map(int, supervisor.split())
    return SupervisedTurn(home, token, pid, started)


class SupervisedTurn(StandbyTurn):
    """The turn of a standby that a supervisor of this machine has started: the intent names it.

    :param pid: the supervisor
    :param started: its start time, see :func:`~airflow_provider_exactlyonce.process_identity.process_start`
    """

    def __init__(self, home: Home, token: str, pid: int, started: int) -> None:
        self._home: Final = home
        self._token: Final = token
        self._pid: Final = pid
        self._started: Final = started

    def has_come(self) -> bool:
        """Read the intent. An intent without a pid may be withdrawn: a stop may be requested."""
        intent = intents.read(self._home.intent)
        if intent is not None and intent.token == self._token and intent.pid:
            return True
        if process_identity.process_start(self._pid) != self._started:
            raise StopRequestedError(f"the supervisor of this standby (pid {self._pid}) has ended")
        return False


class LeaseTurn(StandbyTurn):
    """The turn of a standby without a supervisor: the driver that held the lease is lost.

    On this machine its process tells: one that is frozen lives, however long it is silent. On another machine only its
    heartbeat can, and :func:`~airflow_provider_exactlyonce.control.lease.stale_seconds` without one count as a loss.
    """

    def __init__(self, home: Home) -> None:
        self._home: Final = home
        self._held: Lease | None = None
        self._heartbeats: HeartbeatMonitor | None = None
        self._lived = False
        self._warned = False

    def has_come(self) -> bool:
        """Read the lease, and once its holder is lost its last words."""
        held = leases.read(self._home.lease)
        if held is not None and (self._held is None or held.token != self._held.token):
            self._follow(held)
        self._held = held or self._held
        if self._held is None or self._heartbeats is None:
            return True
        life = self._heartbeats.look()
        self._lived = self._lived or life is Liveness.ALIVE
        if life is Liveness.ALIVE or self._is_here(self._held):
            self._warn(life)
            return False
        if not self._lived:  # its end was none while somebody stood by
            return True
        if not self._is_restartable(self._held.token):
            return False
        self.left = self._held
        return True

    def _follow(self, held: Lease) -> None:
        intent = intents.read(self._home.intent)
        if intent is not None and intent.token == held.token:
            raise AlreadyRunningError(
                f"pipeline {held.pipeline} is supervised by {intent.owner}, which starts the next driver itself; give "
                "the operator standby='warm' instead"
            )
        self._heartbeats, self._lived = HeartbeatMonitor(held.token, self._home.lease), False

    def _is_here(self, held: Lease) -> bool:
        """Whether a driver's process is on this machine, and its status is no end."""
        if held.machine != process_identity.this_machine() or leases.is_dead(held):
            return False
        status = exit_classification.status_of(self._home, held.token)
        return status is None or status.state not in ENDED

    def _warn(self, life: Liveness) -> None:
        if life is Liveness.STALE and not self._warned and self._held is not None:
            _log.warning("the driver (pid %d) gives no sign of life and has not ended; waiting", self._held.pid)
        self._warned = life is Liveness.STALE

    def _is_restartable(self, token: str) -> bool:
        """Whether the end of a driver is one that another start follows; false when another has followed already."""
        if (reason := requests.stop_requested(self._home, token)) is not None:
            raise StopRequestedError(f"the driver that it stood by for was asked to stop: {reason}")
        error = exit_classification.failure(self._home, token, Ended(exit_code=None), None)
        if error is None:
            raise StopRequestedError("the driver that it stood by for has done its work")
        if isinstance(error, FencedError):
            self._held = None
            return False
        if exit_classification.is_final(error):
            raise error
        _log.warning("%s; this standby takes over", error)
        return True


def keeps_waiting(turn: StandbyTurn) -> bool:
    """Tell whether a standby's turn has not come, or the home does not tell.

    :raises ExactlyOnceError: as :meth:`StandbyTurn.has_come` does
    """
    try:
        return not turn.has_come()
    except OSError as error:
        if not is_no_answer(error):
            raise
        _log.warning("whether the driver lives can't be read: %s", error)
        return True


def await_turn(home: Home, turn: StandbyTurn, check_wanted: Callable[[], None]) -> None:
    """Wait for a standby's turn.

    :param check_wanted: called between two looks; raises when the standby is not wanted any more
    :raises ExactlyOnceError: as :meth:`StandbyTurn.has_come` does
    """
    while keeps_waiting(turn):
        check_wanted()
        time.sleep(home.look_every(_LOOK_SECONDS, reads=2))
