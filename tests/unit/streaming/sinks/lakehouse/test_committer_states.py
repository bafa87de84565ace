"""The committer of a sink that stages files does what its table of states allows, and nothing else."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql.types import LongType, StructType

from airflow_provider_exactlyonce.exceptions import InvariantError
from airflow_provider_exactlyonce.streaming.sinks.delta.sink import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.attempts import Attempts
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.committer_states import (
    TRANSITIONS,
    CommitterEvent,
    CommitterState,
)
from airflow_provider_exactlyonce.streaming.sinks.spi import Sink, SinkAttempt, SinkContext, SinkEntry

STATE, EVENT = CommitterState, CommitterEvent
#: How a committer gets into each state.
WAY: Final[dict[CommitterState, tuple[str, ...]]] = {
    STATE.UNCLAIMED: (),
    STATE.IDLE: ("claim",),
    STATE.OPEN: ("claim", "begin"),
    STATE.STAGED: ("claim", "begin", "pre_commit"),
}
#: What is called for each event that a committer may refuse.
CALL: Final = {EVENT.BEGUN: "begin", EVENT.PRE_COMMITTED: "pre_commit", EVENT.COMMITTED: "commit"}
ENTRY: Final = SinkEntry(commit=1, run=1, lineage="L", batch=0, source={}, rows=0, digest=0)


class Calls:
    """Calls a committer by the names of its steps."""

    def __init__(self, sink: Sink, folder: Path) -> None:
        self.committer: Any = sink.open(SinkContext(pipeline="p", home=folder))
        self.committer.expect_columns(StructType().add("id", LongType()))

    def __call__(self, *names: str) -> CommitterState:
        for name in names:
            getattr(self, name)()
        return self.committer._phase.state  # type: ignore[no-any-return]

    def claim(self) -> None:
        self.committer.claim(1)

    def begin(self) -> None:
        self.committer.begin(SinkAttempt(name=uuid.uuid4().hex, pipeline="p", commit=1, run=1))

    def pre_commit(self) -> None:
        self.committer.pre_commit([])

    def commit(self) -> None:
        self.committer.commit(ENTRY)

    def abort(self) -> None:
        self.committer.abort()


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(DeltaSink(path=str(tmp_path), name="s"), tmp_path)


@pytest.mark.parametrize("state", STATE)
def test_a_claim_is_possible_wherever_a_committer_stands(calls: Calls, state: CommitterState) -> None:
    assert calls(*WAY[state]) is state
    assert calls("claim") is STATE.IDLE


@pytest.mark.parametrize("event", CALL)
@pytest.mark.parametrize("state", STATE)
def test_a_step_is_taken_where_the_table_has_it_and_is_refused_elsewhere(
    calls: Calls, state: CommitterState, event: CommitterEvent
) -> None:
    calls(*WAY[state])
    following = TRANSITIONS.get((state, event))
    if following is None:
        with pytest.raises(InvariantError, match=f"sink s is {state.value}, and can't be {event.value}"):
            calls(CALL[event])
        assert calls() is state
    else:
        assert calls(CALL[event]) is following


@pytest.mark.parametrize("state", STATE)
def test_an_abort_ends_an_attempt_and_does_nothing_where_there_is_none(calls: Calls, state: CommitterState) -> None:
    calls(*WAY[state])
    assert calls("abort") is TRANSITIONS.get((state, EVENT.ABORTED), state)


def test_a_claim_that_fails_leaves_nothing_claimed(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    calls("claim", "begin")
    refuse: Callable[..., object] = lambda *_: (_ for _ in ()).throw(OSError("gone"))  # noqa: E731
    monkeypatch.setattr(Attempts, "notes", refuse)
    with pytest.raises(Exception, match="does not answer"):
        calls("claim")
    assert calls() is STATE.UNCLAIMED
