"""A driver that a cluster's manager runs: YARN or Kubernetes in cluster mode.

It is no process of ours. Its lease tells that it lives; when the lease is silent, the manager is asked for what carries
the driver's start token. A manager that can't be asked says nothing about the driver: unknown is never taken for gone.
"""

from __future__ import annotations

import logging
import signal
import time
from abc import ABC, abstractmethod
from enum import Enum
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.control.processes import ChildDriver, Ended, RemoteDriver

#: Stands in a command line for the start token, which is made when the driver is started.
TOKEN_PLACEHOLDER: Final = "@exactlyonce-token@"

_ASK_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


class ClusterState(Enum):
    """A driver's state in its cluster's manager."""

    ACTIVE = "active"  # accepted, waiting for room, or running
    GONE = "gone"  # ended, or never submitted
    UNKNOWN = "unknown"  # it can't be asked, or does not know


class Cluster(ABC):
    """A cluster's manager.

    :param name: what stands for the host of its drivers: which manager it is, and where
    :param earlier_name: what earlier versions kept of it, which tells less
    """

    def __init__(self, name: str, earlier_name: str = "") -> None:
        self.name: Final = name
        self._earlier_name: Final = earlier_name

    def has(self, host: str) -> bool:
        """Whether it is what stands for the host of a driver in its intent."""
        return host in (self.name, self._earlier_name)

    def check_access(self) -> None:  # noqa: B027 - a manager that has no such question refuses nothing
        """Look before a driver is submitted whether the manager would answer for it.

        :raises RefusedError: when it would refuse to for certain; a manager that can't be asked is no reason
        """

    @abstractmethod
    def state(self, token: str) -> ClusterState:
        """Return the manager's state of the driver with a start token; never raises."""

    @abstractmethod
    def account(self, token: str) -> str:
        """Return the manager's text on the driver with a start token, and where its output is; never raises.

        Empty when there is none.
        """

    def page(self, application_id: str) -> str | None:
        """Return the address of the manager's page of an application, None where it has none."""
        return None

    @abstractmethod
    def kill(self, token: str) -> None:
        """Ask the manager to end the driver with a start token; never raises."""


class ClusterDriver(RemoteDriver):
    """A driver on a cluster.

    :param submission: the process that submits it, None when another process has started that
    """

    def __init__(self, token: str, lease: Path, cluster: Cluster, submission: ChildDriver | None = None) -> None:
        super().__init__(token, lease)
        self._cluster: Final = cluster
        self._submission: Final = submission
        self._asked_at = float("-inf")
        self._state = ClusterState.UNKNOWN
        self._is_announced = False
        self._last_account = ""

    def ended(self) -> Ended | None:
        """Ask the submission, the lease and at last the manager."""
        code = None
        if self._submission is not None:
            exit_code = self._submission.process.poll()  # and no sweep of this host: the driver may run on it, too
            if exit_code is None:
                return None
            code = exit_code or None  # 0: it was submitted, and how it ends only the driver tells
            if code is None and not self._is_announced:
                self._is_announced = True  # also if nothing is said: the manager is asked once, not at each look
                self._tell("submitted")
        if super().ended() is None:
            self._asked_at = float("-inf")
            return None
        if time.monotonic() - self._asked_at >= _ASK_SECONDS:
            self._asked_at, self._state = time.monotonic(), self._cluster.state(self.token)
            if self._state is ClusterState.ACTIVE:
                self._tell("no sign of life")
        if self._state is not ClusterState.GONE:
            return None
        return Ended(exit_code=code, account=self._cluster.account(self.token))

    def _tell(self, words: str) -> None:
        """Log the manager's text whenever it changes: a driver may wait for resources or for an image."""
        account = self._cluster.account(self.token)
        if account and account != self._last_account:
            self._last_account = account
            _log.info("%s: %s", words, account)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the submission; the driver itself can only be killed."""
        super().signal(number)
        if number is signal.SIGKILL:
            self._cluster.kill(self.token)
