"""What a supervisor does next, as a table; ``docs/supervise.md`` is drawn from it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class SupervisorState(Enum):
    """What a supervisor is doing."""

    RETURNING = "returning"  # it asks what became of the driver that an earlier stay has left
    FINDING = "finding"  # it asks whether a driver lives
    STARTING = "starting"
    WATCHING = "watching"  # our driver, until its end
    WAITING = "waiting"  # for the end of somebody else's driver
    JUDGING = "judging"  # what the end of our driver means
    DELAYING = "delaying"  # the next start
    DONE = "done"


class SupervisorEvent(Enum):
    """What moves a supervisor. An error ends it in any state."""

    NOTHING_LEFT = "nothing left"
    FOUND_OURS = "found ours"  # alive, or ended and not judged yet
    FOUND_ANOTHERS = "found another's"
    NONE_LIVES = "none lives"
    STARTED = "started"
    ENDED = "ended"
    WORK_DONE = "work done"
    STOPPED_BEFORE = "stopped before"  # its end was the wish of an earlier try, which was cleared since
    RESTART_RECORDED = "restart recorded"
    RESTART_DUE = "restart due"


TRANSITIONS: Final[Mapping[tuple[SupervisorState, SupervisorEvent], SupervisorState]] = {
    (SupervisorState.RETURNING, SupervisorEvent.NOTHING_LEFT): SupervisorState.FINDING,
    (SupervisorState.RETURNING, SupervisorEvent.FOUND_OURS): SupervisorState.WATCHING,
    (SupervisorState.RETURNING, SupervisorEvent.RESTART_RECORDED): SupervisorState.DELAYING,
    (SupervisorState.FINDING, SupervisorEvent.FOUND_OURS): SupervisorState.WATCHING,
    (SupervisorState.FINDING, SupervisorEvent.FOUND_ANOTHERS): SupervisorState.WAITING,
    (SupervisorState.FINDING, SupervisorEvent.NONE_LIVES): SupervisorState.STARTING,
    (SupervisorState.STARTING, SupervisorEvent.STARTED): SupervisorState.WATCHING,
    (SupervisorState.WATCHING, SupervisorEvent.ENDED): SupervisorState.JUDGING,
    (SupervisorState.WAITING, SupervisorEvent.ENDED): SupervisorState.FINDING,
    (SupervisorState.JUDGING, SupervisorEvent.WORK_DONE): SupervisorState.DONE,
    (SupervisorState.JUDGING, SupervisorEvent.STOPPED_BEFORE): SupervisorState.FINDING,
    (SupervisorState.JUDGING, SupervisorEvent.RESTART_RECORDED): SupervisorState.DELAYING,
    (SupervisorState.DELAYING, SupervisorEvent.RESTART_DUE): SupervisorState.FINDING,
}
