"""A supervisor's task, the requests to stop it, and its states as a table, which a page shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from airflow_provider_exactlyonce.control.clusters import Cluster
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.policies import termination as untils
from airflow_provider_exactlyonce.policies.health_rules import HealthRules
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy


class IfRunning(Enum):
    """The treatment of a living driver that another task, or a person, has started."""

    ADOPT = "adopt"  # watch it, or wait for its end; refuse where neither makes sense
    FAIL = "fail"
    REPLACE = "replace"  # stop it at its next batch boundary


@dataclass(frozen=True, kw_only=True)
class Supervision:
    """The task of a supervisor.

    :param owner: the driver's owner; a later supervisor with the same owner takes over our driver as its own
    :param until: when our driver ends
    :param strategy: when a driver that died is started again
    :param cluster: the manager that runs the driver; None when it is a process of this host
    :param if_running: what to do about a driver that another one than the owner has started
    :param health: when to give up on a driver
    :param clears: how often the owner's DAG run was cleared; the unseen end of a driver counts only while this is the
        same
    :param poll_seconds: how often the status is read
    :param standby: whether a second driver stands by, ready to be the next one; only for drivers of this host
    :param stop_timeout_seconds: how long a driver may take to end its batch when it is asked to stop
    :param on_poll: called every tenth of a second or so; may stop the supervisor, and may leave by raising
    :param on_delay: called with the driver that died and the time of the next start, seconds since the epoch, before a
        delay is waited for; may leave by raising
    """

    owner: str
    until: str
    strategy: RestartStrategy
    cluster: Cluster | None = None
    if_running: IfRunning = IfRunning.ADOPT
    health: HealthRules = field(default_factory=HealthRules)
    clears: int = 0
    poll_seconds: float = 1.0
    stop_timeout_seconds: float = 60.0
    standby: bool = False
    on_poll: Callable[[], None] = lambda: None
    on_delay: Callable[[Intent, float], None] = lambda dead, due: None

    def is_ours(self, intent: Intent) -> bool:
        """Whether a driver's end is the end of our work."""
        # A driver that another task started for what was available *then* does not cover what is available now.
        return intent.until == self.until and (intent.owner == self.owner or self.until == untils.FOREVER)

    def takes_over(self, intent: Intent) -> bool:
        """Whether a driver is ours, and is not to be left alone or replaced because another task has started it."""
        return self.is_ours(intent) and (intent.owner == self.owner or self.if_running is IfRunning.ADOPT)


@dataclass
class StopSignal:
    """Why a supervisor is to stop, None while it is not; a signal handler may set it between any two steps."""

    reason: str | None = None


class SupervisorState(Enum):
    """The states of a supervisor."""

    RETURNING = "returning"  # it asks what became of the driver that an earlier stay has left
    FINDING = "finding"  # it asks whether a driver lives
    STARTING = "starting"
    WATCHING = "watching"  # our driver, until its end
    WAITING = "waiting"  # for the end of another owner's driver
    JUDGING = "judging"  # the meaning of our driver's end
    DELAYING = "delaying"  # the next start
    DONE = "done"


class SupervisorEvent(Enum):
    """The events that change a supervisor's state. An error ends it in any state."""

    NOTHING_LEFT = "nothing left"
    FOUND_OURS = "found ours"  # alive, or ended and not judged yet
    FOUND_ANOTHERS = "found another's"
    NONE_LIVES = "none lives"
    STARTED = "started"
    ENDED = "ended"
    WORK_DONE = "work done"
    STOPPED_BEFORE = "stopped before"  # its end was the wish of an earlier try, which was cleared since
    PREDECESSOR_LIVES = "predecessor lives"  # one of ours that was silent has come back, and ours was refused
    RESTART_RECORDED = "restart recorded"
    RESTART_DUE = "restart due"
    ANOTHER_STARTS = "another starts one"  # it was announced since none was found
    NO_ANSWER = "no answer"  # the home's file system says nothing; the driver goes on, and is asked for later


TRANSITIONS: Final[Mapping[tuple[SupervisorState, SupervisorEvent], SupervisorState]] = {
    (SupervisorState.RETURNING, SupervisorEvent.NOTHING_LEFT): SupervisorState.FINDING,
    (SupervisorState.RETURNING, SupervisorEvent.FOUND_OURS): SupervisorState.WATCHING,
    (SupervisorState.RETURNING, SupervisorEvent.RESTART_RECORDED): SupervisorState.DELAYING,
    (SupervisorState.FINDING, SupervisorEvent.FOUND_OURS): SupervisorState.WATCHING,
    (SupervisorState.FINDING, SupervisorEvent.FOUND_ANOTHERS): SupervisorState.WAITING,
    (SupervisorState.FINDING, SupervisorEvent.NONE_LIVES): SupervisorState.STARTING,
    (SupervisorState.STARTING, SupervisorEvent.STARTED): SupervisorState.WATCHING,
    (SupervisorState.STARTING, SupervisorEvent.ANOTHER_STARTS): SupervisorState.FINDING,
    (SupervisorState.WATCHING, SupervisorEvent.ENDED): SupervisorState.JUDGING,
    (SupervisorState.WAITING, SupervisorEvent.ENDED): SupervisorState.FINDING,
    (SupervisorState.JUDGING, SupervisorEvent.WORK_DONE): SupervisorState.DONE,
    (SupervisorState.JUDGING, SupervisorEvent.STOPPED_BEFORE): SupervisorState.FINDING,
    (SupervisorState.JUDGING, SupervisorEvent.PREDECESSOR_LIVES): SupervisorState.FINDING,
    (SupervisorState.JUDGING, SupervisorEvent.RESTART_RECORDED): SupervisorState.DELAYING,
    (SupervisorState.DELAYING, SupervisorEvent.RESTART_DUE): SupervisorState.FINDING,
    (SupervisorState.RETURNING, SupervisorEvent.NO_ANSWER): SupervisorState.RETURNING,
    (SupervisorState.FINDING, SupervisorEvent.NO_ANSWER): SupervisorState.FINDING,
    (SupervisorState.STARTING, SupervisorEvent.NO_ANSWER): SupervisorState.FINDING,
    (SupervisorState.JUDGING, SupervisorEvent.NO_ANSWER): SupervisorState.JUDGING,
    (SupervisorState.DELAYING, SupervisorEvent.NO_ANSWER): SupervisorState.DELAYING,
}
