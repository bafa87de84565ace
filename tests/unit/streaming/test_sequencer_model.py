"""The sequencer against a model of it that is as simple as can be, in whatever order tasks call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_provider_exactlyonce.streaming.sequencer import AttemptFailedError, Grant, Sequencer, TopicPartition

TASKS = st.integers(0, 5)
PLACES = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 1))
#: Few of these pass 2^31, after which Kafka's sequence numbers start again.
ROWS = st.one_of(st.integers(1, 9), st.sampled_from([2**30, 2**31 - 1]))
WRAPS_AT = 2**31


class SequencerMachine(RuleBasedStateMachine):
    """The model is the list of what was asked for and not yet released: the first of a place is its holder."""

    def __init__(self) -> None:
        super().__init__()
        self.sequencer = Sequencer()
        self.failed = False
        self.registered: set[int] = set()
        self.done: set[int] = set()
        self.queue: list[tuple[int, TopicPartition]] = []
        self.released: list[tuple[TopicPartition, int]] = []

    def holder(self, place: TopicPartition) -> int | None:
        return next((task for task, wanted in self.queue if wanted == place), None)

    def grant(self, place: TopicPartition) -> Grant | None:
        """Return the grant that the holder of a place must have."""
        task = self.holder(place)
        if task is None:
            return None
        rows = sum(of for where, of in self.released if where == place)
        return Grant(task, place, rows % WRAPS_AT, add=all(where != place for where, _ in self.released))

    def offset(self, place: TopicPartition) -> int:
        return sum(of for where, of in self.released if where == place)

    def expect(self, call: Callable[[], object], allowed: bool) -> object:
        """Call; it must succeed where the model allows it, and fail the attempt where it doesn't."""
        if allowed and not self.failed:
            return call()
        with pytest.raises(AttemptFailedError):
            call()
        assert self.sequencer.failure
        self.failed = True
        return None

    @rule(task=TASKS, attempt=st.sampled_from([0, 0, 0, 0, 0, 1]))
    def register(self, task: int, attempt: int) -> None:
        allowed = attempt == 0 and task not in self.registered
        self.expect(lambda: self.sequencer.register(task, attempt), allowed)
        self.registered.add(task)

    @precondition(lambda self: self.registered - self.done)
    @rule(data=st.data(), place=PLACES)
    def a_running_task_asks(self, data: st.DataObject, place: TopicPartition) -> None:
        self.ask(data.draw(st.sampled_from(sorted(self.registered - self.done))), place)

    @rule(task=TASKS, place=PLACES)
    def any_task_asks(self, task: int, place: TopicPartition) -> None:
        self.ask(task, place)

    def ask(self, task: int, place: TopicPartition) -> None:
        allowed = task in self.registered - self.done and (task, place) not in self.queue
        answer = self.expect(lambda: self.sequencer.ask(task, place), allowed)
        if not self.failed:
            free = self.holder(place) is None
            self.queue.append((task, place))
            assert answer == (self.grant(place) if free else None)

    @precondition(lambda self: self.queue)
    @rule(data=st.data(), rows=ROWS)
    def a_holder_releases(self, data: st.DataObject, rows: int) -> None:
        place = data.draw(st.sampled_from(sorted({place for _, place in self.queue})))
        task = self.holder(place)
        assert task is not None
        self.release(task, place, rows, self.offset(place))

    @rule(task=TASKS, place=PLACES, rows=ROWS)
    def any_task_releases(self, task: int, place: TopicPartition, rows: int) -> None:
        self.release(task, place, rows, self.offset(place))

    @precondition(lambda self: self.queue and self.released)
    @rule(data=st.data())
    def an_offset_is_given_twice(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted({place for _, place in self.queue})))
        task = self.holder(place)
        assert task is not None
        if self.offset(place):
            self.release(task, place, 1, self.offset(place) - 1)

    def release(self, task: int, place: TopicPartition, rows: int, offset: int) -> None:
        allowed = self.holder(place) == task and offset == self.offset(place)
        answer = self.expect(lambda: self.sequencer.release(task, place, rows, offset), allowed)
        if not self.failed:
            self.queue.remove((task, place))
            self.released.append((place, rows))
            assert answer == self.grant(place)

    @rule(task=TASKS)
    def finish(self, task: int) -> None:
        allowed = task in self.registered - self.done and all(of != task for of, _ in self.queue)
        self.expect(lambda: self.sequencer.done(task), allowed)
        if not self.failed:
            self.done.add(task)

    @precondition(lambda self: self.done)
    @rule(data=st.data())
    def the_connection_of_a_finished_task_ends(self, data: st.DataObject) -> None:
        self.sequencer.closed(data.draw(st.sampled_from(sorted(self.done))))

    @precondition(lambda self: len(self.registered - self.done) > 2)
    @rule(data=st.data())
    def the_connection_of_a_running_task_ends(self, data: st.DataObject) -> None:
        self.sequencer.closed(data.draw(st.sampled_from(sorted(self.registered - self.done))))
        self.failed = True

    @precondition(lambda self: self.registered and self.registered == self.done)
    @rule(wrong=st.sampled_from([0, 0, 0, -1, 1]))
    def the_result(self, wrong: int) -> None:
        written = self.expect(lambda: self.sequencer.result(len(self.done) + wrong), wrong == 0)
        if not self.failed:
            places = {place for place, _ in self.released}
            assert written is not None
            assert {place: (of.first, of.last, of.rows) for place, of in written.items()} == {
                place: (0, self.offset(place) - 1, self.offset(place)) for place in places
            }

    @precondition(lambda self: self.registered != self.done)
    @rule(often=st.sampled_from([False, False, False, True]))
    def a_result_too_early(self, often: bool) -> None:
        if often:
            self.expect(lambda: self.sequencer.result(len(self.registered)), allowed=False)

    @invariant()
    def a_failure_stays(self) -> None:
        assert (self.sequencer.failure is not None) == self.failed


SequencerMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
test_the_sequencer_does_what_its_model_does = SequencerMachine.TestCase
