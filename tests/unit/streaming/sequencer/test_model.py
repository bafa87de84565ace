"""The sequencer against a model of it that is as simple as can be, in whatever order tasks call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.streaming.sequencer.core import AttemptFailedError, Grant, Sequencer

TASKS = st.integers(0, 5)
TOPICS = st.sampled_from(["a", "b"])
PARTITIONS_OF_TOPICS = st.tuples(TOPICS, st.integers(0, 2))
OFFERS = st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True)
MOST = st.integers(1, 3)
#: Few of these pass 2^31, after which Kafka's sequence numbers start again.
ROWS = st.one_of(st.integers(1, 9), st.sampled_from([2**30, 2**31 - 1]))
WRAPS_AT = 2**31

Answer = TypeVar("Answer")


class SequencerMachine(RuleBasedStateMachine):
    """The model is the list of who holds what, and the list of who waits for what in the order of the questions."""

    def __init__(self) -> None:
        super().__init__()
        self.sequencer = Sequencer()
        self.failed = False
        self.registered: set[int] = set()
        self.done: set[int] = set()
        self.held: list[tuple[int, TopicPartition]] = []
        self.waiting: list[tuple[int, list[TopicPartition]]] = []
        self.released: list[tuple[TopicPartition, int]] = []

    def holder(self, partition: TopicPartition) -> int | None:
        return next((task for task, held in self.held if held == partition), None)

    def grant(self, task: int, partition: TopicPartition) -> Grant:
        """Enter a new holder; return the grant that it must have."""
        assert self.holder(partition) is None
        self.held.append((task, partition))
        rows = sum(of for where, of in self.released if where == partition)
        return Grant(task, *partition, rows % WRAPS_AT, add=all(where != partition for where, _ in self.released))

    def offset(self, partition: TopicPartition) -> int:
        return sum(of for where, of in self.released if where == partition)

    def expect(self, call: Callable[[], Answer], allowed: bool) -> Answer | None:
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
    @rule(data=st.data(), topic=TOPICS, partitions=OFFERS, most=MOST)
    def a_running_task_asks(self, data: st.DataObject, topic: str, partitions: list[int], most: int) -> None:
        self.ask(data.draw(st.sampled_from(sorted(self.registered - self.done))), topic, partitions, most)

    @rule(task=TASKS, topic=TOPICS, partitions=OFFERS, most=MOST)
    def any_task_asks(self, task: int, topic: str, partitions: list[int], most: int) -> None:
        self.ask(task, topic, partitions, most)

    def ask(self, task: int, topic: str, partitions: list[int], most: int) -> None:
        wanted = [(topic, partition) for partition in partitions]
        free = [partition for partition in wanted if self.holder(partition) is None][:most]
        looked_at = wanted[: wanted.index(free[-1])] if len(free) == most else wanted
        allowed = (
            task in self.registered - self.done
            and all(of != task for of, _ in self.waiting)
            and all(self.holder(partition) != task for partition in looked_at)
        )
        answer = self.expect(lambda: self.sequencer.ask(task, topic, partitions, most), allowed)
        if not self.failed:
            assert answer == [self.grant(task, partition) for partition in free]
            if not free:
                self.waiting.append((task, wanted))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), rows=ROWS)
    def a_holder_releases(self, data: st.DataObject, rows: int) -> None:
        task, partition = data.draw(st.sampled_from(sorted(self.held)))
        self.release(task, partition, rows, self.offset(partition))

    @rule(task=TASKS, partition=PARTITIONS_OF_TOPICS, rows=ROWS)
    def any_task_releases(self, task: int, partition: TopicPartition, rows: int) -> None:
        self.release(task, partition, rows, self.offset(partition))

    @precondition(lambda self: self.held and self.released)
    @rule(data=st.data())
    def an_offset_is_given_twice(self, data: st.DataObject) -> None:
        task, partition = data.draw(st.sampled_from(sorted(self.held)))
        if self.offset(partition):
            self.release(task, partition, 1, self.offset(partition) - 1)

    def release(self, task: int, partition: TopicPartition, rows: int, offset: int) -> None:
        allowed = self.holder(partition) == task and offset == self.offset(partition)
        answer = self.expect(lambda: self.sequencer.release(task, partition, rows, offset), allowed)
        if not self.failed:
            self.held.remove((task, partition))
            self.released.append((partition, rows))
            following = next((waits for waits in self.waiting if partition in waits[1]), None)
            assert answer == (self.grant(following[0], partition) if following else None)
            if following:
                self.waiting.remove(following)

    @rule(task=TASKS)
    def finish(self, task: int) -> None:
        allowed = task in self.registered - self.done and all(of != task for of, _ in [*self.held, *self.waiting])
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
            released = {partition for partition, _ in self.released}
            assert written is not None
            assert {partition: (of.first, of.last, of.rows) for partition, of in written.items()} == {
                partition: (0, self.offset(partition) - 1, self.offset(partition)) for partition in released
            }

    @precondition(lambda self: self.registered != self.done)
    @rule(often=st.sampled_from([False, False, False, True]))
    def a_result_too_early(self, often: bool) -> None:
        if often:
            self.expect(lambda: self.sequencer.result(len(self.registered)), allowed=False)

    @invariant()
    def a_failure_stays(self) -> None:
        assert (self.sequencer.failure is not None) == self.failed


SequencerMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
test_the_sequencer_does_what_its_model_does = SequencerMachine.TestCase
