"""The states of a committer of a sink that stages files, and the transitions.

An attempt whose commit is in doubt stays staged, and its committer is claimed anew. One that could not be aborted is
left behind by the next attempt: its marker stays, so that a later claim removes what it has written.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from airflow_provider_exactlyonce.exceptions import invariant


class CommitterState(Enum):
    """Where a committer stands between a claim and the end of an attempt."""

    UNCLAIMED = "unclaimed"
    IDLE = "idle"
    OPEN = "open"
    STAGED = "staged"


class CommitterEvent(Enum):
    """The events of a committer, after their success; ``CLAIM_BEGUN`` comes before the claim is written."""

    CLAIM_BEGUN = "claim begun"
    CLAIMED = "claimed"
    BEGUN = "begun"
    PRE_COMMITTED = "pre-committed"
    COMMITTED = "committed"
    ABORTED = "aborted"


_STATE, _EVENT = CommitterState, CommitterEvent
TRANSITIONS: Final[Mapping[tuple[CommitterState, CommitterEvent], CommitterState]] = {
    **{(state, _EVENT.CLAIM_BEGUN): _STATE.UNCLAIMED for state in _STATE},
    (_STATE.UNCLAIMED, _EVENT.CLAIMED): _STATE.IDLE,
    (_STATE.IDLE, _EVENT.BEGUN): _STATE.OPEN,
    (_STATE.OPEN, _EVENT.BEGUN): _STATE.OPEN,
    (_STATE.STAGED, _EVENT.BEGUN): _STATE.OPEN,
    (_STATE.OPEN, _EVENT.PRE_COMMITTED): _STATE.STAGED,
    (_STATE.STAGED, _EVENT.COMMITTED): _STATE.IDLE,
    (_STATE.OPEN, _EVENT.ABORTED): _STATE.IDLE,
    (_STATE.STAGED, _EVENT.ABORTED): _STATE.IDLE,
}


class CommitterPhase:
    """Where one committer stands, by the table above.

    :param sink: the sink's name, for the error
    """

    def __init__(self, sink: str) -> None:
        self._sink: Final = sink
        self.state = CommitterState.UNCLAIMED

    def check(self, event: CommitterEvent) -> None:
        """Check that an event may come next, before anything is done for it.

        :raises InvariantError: if the table does not have it
        """
        allowed = (self.state, event) in TRANSITIONS
        invariant(allowed, f"sink {self._sink} is {self.state.value}, and can't be {event.value}")

    def move(self, event: CommitterEvent) -> None:
        """Note that an event has happened; raises as :meth:`check` does."""
        self.check(event)
        self.state = TRANSITIONS[self.state, event]
