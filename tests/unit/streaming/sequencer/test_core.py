from __future__ import annotations

import random

import pytest

from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.streaming.sequencer.core import AttemptFailedError, Grant, Sequencer

A, B = ("t", 0), ("t", 1)


def registered(*tasks: int) -> Sequencer:
    sequencer = Sequencer()
    for task in tasks:
        sequencer.register(task, 0)
    return sequencer


def test_the_first_grant_of_a_partition_starts_at_zero_and_adds_it() -> None:
    assert registered(0).ask(0, "t", [0]) == [Grant(0, *A, 0, add=True)]


def test_tasks_take_turns_in_the_order_in_which_they_asked() -> None:
    sequencer = registered(0, 1, 2)
    assert sequencer.ask(2, "t", [0]) != []
    assert sequencer.ask(0, "t", [0]) == []
    assert sequencer.ask(1, "t", [0]) == []
    assert sequencer.release(2, A, rows=5, first_offset=100) == Grant(0, *A, 5, add=False)
    assert sequencer.release(0, A, rows=3, first_offset=105) == Grant(1, *A, 8, add=False)
    assert sequencer.release(1, A, rows=1, first_offset=108) is None


def test_partitions_do_not_wait_for_each_other() -> None:
    sequencer = registered(0, 1)
    assert sequencer.ask(0, "t", [0]) != []
    assert sequencer.ask(1, "t", [1]) != []


def test_the_result_has_first_and_last_offset_and_rows() -> None:
    sequencer = registered(0)
    for first in (10, 13):
        sequencer.ask(0, "t", [0])
        sequencer.release(0, A, rows=3, first_offset=first)
    sequencer.done(0)
    written = sequencer.result(tasks=1)[A]
    assert (written.first, written.last, written.rows) == (10, 15, 6)


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_second_invocation_of_a_task_fails_the_attempt(attempt: int) -> None:
    sequencer = registered(0)
    with pytest.raises(AttemptFailedError, match="task 0 was invoked a second time"):
        sequencer.register(0, attempt)
    with pytest.raises(AttemptFailedError, match="second time"):
        sequencer.ask(0, "t", [0])


def test_a_first_invocation_that_spark_calls_a_retry_fails_the_attempt() -> None:
    with pytest.raises(AttemptFailedError, match="attempt 1"):
        Sequencer().register(3, 1)


def test_a_task_that_ends_without_its_done_fails_the_attempt_with_or_without_a_grant() -> None:
    for ask in (True, False):
        sequencer = registered(0, 1)
        if ask:
            sequencer.ask(0, "t", [0])
        sequencer.closed(0)
        assert sequencer.failure == "the connection of task 0 ended before the task was done"
        with pytest.raises(AttemptFailedError):
            sequencer.ask(1, "t", [0])


def test_a_task_that_ends_after_its_done_harms_nothing() -> None:
    sequencer = registered(0)
    sequencer.done(0)
    sequencer.closed(0)
    assert sequencer.result(tasks=1) == {}


@pytest.mark.parametrize("tasks", [0, 1, 3])
def test_a_result_with_more_or_fewer_tasks_than_took_part_is_refused(tasks: int) -> None:
    sequencer = registered(0, 1)
    sequencer.done(0)
    sequencer.done(1)
    with pytest.raises(AttemptFailedError, match="2 had registered"):
        sequencer.result(tasks)


def test_misbehaviour_of_a_task_fails_the_attempt() -> None:
    for act in (
        lambda s: s.ask(9, "t", [0]),
        lambda s: (s.ask(0, "t", [0]), s.ask(0, "t", [0])),
        lambda s: s.release(0, A, rows=1, first_offset=0),
        lambda s: (s.ask(0, "t", [0]), s.done(0)),
        lambda s: (s.ask(0, "t", [0]), s.release(0, A, 5, 10), s.ask(0, "t", [0]), s.release(0, A, 5, 12)),
    ):
        sequencer = registered(0)
        with pytest.raises(AttemptFailedError):
            act(sequencer)
        assert sequencer.failure


def test_who_waits_for_several_partitions_gets_the_first_one_that_is_free() -> None:
    sequencer = registered(0, 1, 2, 3)
    assert sequencer.ask(0, "t", [0, 1]) == [Grant(0, *A, 0, add=True)]
    assert sequencer.ask(1, "t", [0, 1]) == [Grant(1, *B, 0, add=True)], "the first of them that is free"
    assert sequencer.ask(2, "t", [0, 1]) == []
    assert sequencer.ask(3, "t", [0, 1]) == []
    assert sequencer.release(1, B, rows=4, first_offset=0) == Grant(2, *B, 4, add=False)
    assert sequencer.release(0, A, rows=7, first_offset=0) == Grant(3, *A, 7, add=False), "the other one is served"
    assert sequencer.release(2, B, rows=1, first_offset=4) is None, "nobody waits any longer"


def test_who_asks_for_several_at_once_gets_those_that_are_free_and_the_others_go_on() -> None:
    sequencer = registered(0, 1, 2)
    assert sequencer.ask(0, "t", [1]) == [Grant(0, *B, 0, add=True)]
    wanted = [A, ("t", 2)]
    assert sequencer.ask(1, "t", [0, 1, 2, 3], 2) == [Grant(1, *partition, 0, add=True) for partition in wanted]
    assert sequencer.ask(2, "t", [2, 0], 2) == []
    assert sequencer.release(1, A, rows=4, first_offset=0) == Grant(2, *A, 4, add=False), "one, as soon as there is one"
    assert sequencer.release(1, wanted[1], rows=4, first_offset=0) is None
    with pytest.raises(AttemptFailedError, match="task 2 says that it is done and still has a turn"):
        sequencer.done(2)


def test_who_asks_for_several_while_it_holds_one_of_them_fails_the_attempt() -> None:
    sequencer = registered(0)
    sequencer.ask(0, "t", [1])
    with pytest.raises(AttemptFailedError, match="task 0 asked twice for t-1"):
        sequencer.ask(0, "t", [0, 1, 2], 3)


def test_a_partition_that_nobody_waits_for_stays_free_for_whoever_asks() -> None:
    sequencer = registered(0, 1, 2)
    sequencer.ask(0, "t", [0])
    sequencer.ask(1, "t", [1])
    assert sequencer.ask(2, "t", [0]) == []
    assert sequencer.release(1, B, rows=1, first_offset=0) is None, "task 2 has nothing for it"
    assert sequencer.ask(1, "t", [0, 1]) == [Grant(1, *B, 1, add=False)]


def test_partitions_of_the_same_number_in_two_topics_are_two() -> None:
    sequencer = registered(0, 1)
    sequencer.ask(0, "t", [0])
    sequencer.ask(0, "u", [0])
    assert sequencer.ask(1, "u", [0]) == []
    assert sequencer.release(0, A, rows=1, first_offset=0) is None
    partition = ("u", 0)
    assert sequencer.release(0, partition, rows=2, first_offset=0) == Grant(1, *partition, 2, add=False)


def offered(bodies: list[tuple[int, int]]) -> tuple[str, list[int]]:
    """Return what a task asks for that may send its bodies in any order."""
    return "t", [partition for partition, _ in bodies]


@pytest.mark.parametrize("seed", range(20))
def test_any_interleaving_gives_each_partition_one_writer_and_gapless_sequences(seed: int) -> None:
    """Model test: random tasks write random bodies; each partition's log is what one writer would have made."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    tasks, partitions = chance.randint(1, 12), chance.randint(1, 6)
    work = {
        task: [
            (partition, chance.randint(1, 9))
            for partition in chance.sample(range(partitions), chance.randint(0, partitions))
        ]
        for task in range(tasks)
    }
    sequencer = Sequencer()
    logs: dict[TopicPartition, list[int]] = {}
    holding: dict[int, list[Grant]] = {}
    waiting: set[int] = set()
    open_tasks = set(work)
    for task in work:
        sequencer.register(task, 0)
    for _ in range(10_000):
        if not open_tasks:
            break
        able = sorted(open_tasks - waiting)
        assert able, f"deadlock: {sequencer!r}"
        task = chance.choice(able)
        if task in holding:
            grant = holding[task].pop(chance.randrange(len(holding[task])))
            if not holding[task]:
                del holding[task]
            rows = dict(work[task])[grant.partition]
            log = logs.setdefault((grant.topic, grant.partition), [])
            assert grant.sequence == len(log)
            assert grant.add == (not log)
            first = len(log)
            log.extend([task] * rows)
            work[task].remove((grant.partition, rows))
            following = sequencer.release(task, (grant.topic, grant.partition), rows, first)
            if following is not None:
                waiting.discard(following.task)
                holding[following.task] = [following]
        elif work[task]:
            granted = sequencer.ask(task, *offered(work[task]), chance.randint(1, 3))
            if granted:
                holding[task] = granted
            else:
                waiting.add(task)
        else:
            sequencer.done(task)
            open_tasks.discard(task)
        held = [(grant.topic, grant.partition) for grants in holding.values() for grant in grants]
        assert len(set(held)) == len(held), "two writers at once"
    result = sequencer.result(tasks)
    assert {partition: written.rows for partition, written in result.items()} == {
        partition: len(log) for partition, log in logs.items()
    }
