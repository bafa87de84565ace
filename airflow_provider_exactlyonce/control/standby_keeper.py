"""Keeps a standby beside a driver that is supervised; see :mod:`airflow_provider_exactlyonce.control.standbys`."""

from __future__ import annotations

import logging
import os
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import launching, processes, standbys
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.processes import ChildDriver
from airflow_provider_exactlyonce.control.status import DriverState, Status
from airflow_provider_exactlyonce.polling import poll_until

#: A standby that dies again and again is started no more often.
_AGAIN_SECONDS: Final = 60.0
_TERM_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Standby:
    """A standby that a supervisor has started.

    :param launch: its launch, without the argument that makes it wait
    """

    driver: ChildDriver
    launch: Launch
    log: Path


class StandbyKeeper:
    """Keeps a standby beside the driver that a supervisor watches.

    :param launch: tells how a driver is started now
    """

    def __init__(self, home: Home, launch: Callable[[], Launch]) -> None:
        self._home: Final = home
        self._launch: Final = launch
        self._standby: Standby | None = None
        self._due = 0.0

    def keep(self, driver: Status) -> None:
        """Start a standby if there is none; a failed start is tried again later, and does not disturb the driver.

        :param driver: the driver's status; until it has committed what it found, it needs the cores for itself
        """
        if driver.state is not DriverState.RUNNING or not (driver.commits_of_run or driver.lag == 0):
            return
        if self._standby is not None and self._standby.driver.ended() is None:
            return
        if self._standby is not None:
            _log.warning("the standby has ended, output in %s", self._standby.log)
            self._standby = None
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _AGAIN_SECONDS
        try:
            self._standby = self._start()
        except Exception as error:  # whatever it is, the driver goes on
            _log.warning("no standby could be started: %s", error)
        else:
            _log.info("started a standby, pid %s, output in %s", self._standby.driver.process.pid, self._standby.log)

    def ready(self, launch: Launch) -> Standby | None:
        """Return the standby, which may be the next driver; None when there is none that lives.

        :param launch: how the next driver is to be started; a standby that was started otherwise is ended
        """
        standby = self._standby
        if standby is None or standby.driver.ended() is not None or standby.launch != launch:
            self.end()
            return None
        return standby

    def handed_over(self) -> None:
        """Forget the standby, which is the driver now; the next one may be started at once."""
        self._standby, self._due = None, 0.0

    def end(self) -> None:
        """End the standby: there is nothing that it could lose."""
        standby, self._standby, self._due = self._standby, None, 0.0
        if standby is None or standby.driver.ended() is not None:
            return
        standby.driver.signal(signal.SIGTERM)  # so that Spark removes what it has on disk
        if poll_until(standby.driver.ended, seconds=_TERM_SECONDS, poll_seconds=0.1) is None:
            processes.kill_leftovers(standby.driver.token)

    def _start(self) -> Standby:
        launch, log, token = self._launch(), launching.next_log(self._home), str(uuid.uuid4())
        pid = os.getpid()
        supervisor = f"{pid} {process_identity.process_start(pid) or 0}"
        waiting_launch = replace(
            launch,
            command=[*launch.command, "--standby", standbys.WARM],
            environment={**launch.environment, standbys.SUPERVISOR_VARIABLE: supervisor},
        )
        return Standby(driver=launching.start_process(self._home, waiting_launch, token, log), launch=launch, log=log)
