"""Which task may write to which topic-partition now, and with which sequence numbers. No I/O.

Kafka numbers a producer's records per topic-partition, and all tasks of a batch attempt share one producer. So tasks
take turns: a task registers, asks for any of the partitions that it has records ready for, gets a grant of one or some
of them with the base sequences, and releases each with the acknowledged offset. There is one grant a partition at a
time, first come first served; many partitions at once. Whatever would let a task's records be written twice, or leave
it unknown whether they were, fails the attempt: from then on there are no more grants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from airflow_provider_exactlyonce.kafka.record_batch import advance_sequence
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition

_TASKS_NAMED: Final = 10


class Grant(NamedTuple):
    """The right to append to one topic-partition.

    ``sequence`` is the base sequence; ``add`` tells to add the partition to the transaction first, if the task has not.
    """

    task: int
    topic: str
    partition: int
    sequence: int
    add: bool


@dataclass
class GrantedRange:
    """The range that the attempt has written to one topic-partition."""

    first: int
    last: int
    rows: int


class AttemptFailedError(Exception):
    """The batch attempt has failed; the text says why. Nothing more may be written in it."""


class Sequencer:
    """The state of one batch attempt. Not thread-safe: its server calls it under one lock."""

    def __init__(self) -> None:
        self.failure: str | None = None
        self._registered: set[int] = set()
        self._done: set[int] = set()
        self._written: dict[TopicPartition, GrantedRange] = {}
        self._holders: dict[str, dict[int, int]] = {}  # {topic: {partition: task}}, quick to look many partitions up in
        self._waiting: dict[int, tuple[str, frozenset[int]]] = {}  # what each wants, in the order in which they asked

    def __repr__(self) -> str:
        held = {
            f"{topic}-{partition}": task
            for topic, holders in self._holders.items()
            for partition, task in holders.items()
        }
        return (
            f"Sequencer(registered={len(self._registered)}, done={len(self._done)}, holders={held}, {self.failure!r})"
        )

    def register(self, task: int, attempt: int) -> None:
        """A task starts.

        :param task: the task's partition in the stage
        :param attempt: Spark's attempt number
        :raises AttemptFailedError: at a second invocation of a task, and when the attempt has failed
        """
        self._check()
        if attempt > 0 or task in self._registered:
            raise self._fail(f"task {task} was invoked a second time (attempt {attempt})")
        self._registered.add(task)

    def ask(self, task: int, topic: str, partitions: Sequence[int], most: int = 1) -> list[Grant]:
        """A task wants to append to some of these; empty when it has to wait until any of them is free.

        :param partitions: the first of them that are free are granted
        :param most: how many; a task that had to wait is granted one
        :raises AttemptFailedError: when the attempt has failed, the task may not write, or it holds or waits for one of
            the partitions already
        """
        self._check()
        if task not in self._registered or task in self._done:
            raise self._fail(f"task {task} asked for {topic}-{partitions[0]} and is not registered, or done")
        if task in self._waiting:
            raise self._fail(f"task {task} asked for {topic}-{partitions[0]} before it was given what it waits for")
        holders = self._holders.setdefault(topic, {})
        grants: list[Grant] = []
        for partition in partitions:
            if partition not in holders:
                grants.append(self._grant(task, topic, partition))
                if len(grants) == most:
                    break
            elif holders[partition] == task:
                raise self._fail(f"task {task} asked twice for {topic}-{partition}")
        if not grants:
            self._waiting[task] = topic, frozenset(partitions)
        return grants

    def release(self, task: int, released: TopicPartition, rows: int, first_offset: int) -> Grant | None:
        """Release a task's grant after its records were acknowledged; returns the grant of the longest waiting task.

        :param rows: records appended
        :param first_offset: offset of the first of them
        :raises AttemptFailedError: when the attempt has failed, or the task does not hold the grant
        """
        self._check()
        topic, partition = released
        if self._holders.get(topic, {}).get(partition) != task:
            raise self._fail(f"task {task} released {topic}-{partition} and does not hold it")
        del self._holders[topic][partition]
        if rows < 1:
            raise self._fail(f"task {task} released {topic}-{partition} with {rows} rows")
        last = first_offset + rows - 1
        written = self._written.get(released)
        if written is None:
            self._written[released] = GrantedRange(first_offset, last, rows)
        elif first_offset <= written.last:
            raise self._fail(f"offset {first_offset} of {topic}-{partition} was given twice")
        else:
            self._written[released] = GrantedRange(written.first, last, written.rows + rows)
        for waiting_task, (topic_wanted, partitions) in self._waiting.items():
            if partition in partitions and topic == topic_wanted:
                del self._waiting[waiting_task]
                return self._grant(waiting_task, topic, partition)
        return None

    def done(self, task: int) -> None:
        """A task has written everything.

        :raises AttemptFailedError: when the attempt has failed, the task still holds or wants a grant, or is none that
            may still write
        """
        self._check()
        if task not in self._registered or task in self._done:
            raise self._fail(f"task {task} says that it is done and is not registered, or was done before")
        if task in self._waiting or any(task in holders.values() for holders in self._holders.values()):
            raise self._fail(f"task {task} says that it is done and still has a turn")
        self._done.add(task)

    def closed(self, task: int) -> None:
        """Handle the end of a task's connection; without its ``done`` the writes are unknown, and the attempt fails."""
        if task not in self._done and self.failure is None:
            self._fail(f"the connection of task {task} ended before the task was done")

    def fail(self, reason: str) -> None:
        """End the attempt; the first reason stays."""
        if self.failure is None:
            self._fail(reason)

    def unfinished(self) -> str:
        """Say which tasks are not done, for a message."""
        tasks = sorted(self._registered - self._done)
        more = f" and {len(tasks) - _TASKS_NAMED} more" if len(tasks) > _TASKS_NAMED else ""
        task_list = ", ".join(map(str, tasks[:_TASKS_NAMED]))
        return f"of the {len(self._registered)} tasks that have begun, not done are: {task_list or 'none'}{more}"

    def result(self, tasks: int) -> dict[TopicPartition, GrantedRange]:
        """Return the written ranges.

        :param tasks: how many tasks have answered to Spark
        :raises AttemptFailedError: when the attempt has failed, or others than these have taken part
        """
        self._check()
        if not len(self._registered) == len(self._done) == tasks:
            raise self._fail(
                f"{tasks} tasks answered, {len(self._registered)} had registered and {len(self._done)} were done"
            )
        return self._written

    def _grant(self, task: int, topic: str, partition: int) -> Grant:
        self._holders[topic][partition] = task
        written = self._written.get((topic, partition))
        return Grant(task, topic, partition, advance_sequence(0, written.rows) if written else 0, written is None)

    def _check(self) -> None:
        if self.failure is not None:
            raise AttemptFailedError(self.failure)

    def _fail(self, reason: str) -> AttemptFailedError:
        self.failure = reason
        return AttemptFailedError(reason)
