"""Drivers that end at a target, and one whose source has lost what it was about to read."""

from __future__ import annotations

import signal

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import DataLostError
from tests.integration.streaming.harness import World, check_counts, end_offsets

pytestmark = [pytest.mark.slow]


def test_a_number_of_commits_is_made_once_over_a_crash_and_a_repetition(world: World) -> None:
    world.send(3000)
    goal = ("--goal", "abc")
    killed = world.start(*goal, until="commits:3", failpoints="after-commit:run=1:batch=1")
    assert killed.wait() == -signal.SIGKILL
    assert world.commits() == 2
    assert world.start(*goal, until="commits:3").wait() == 0
    assert world.commits() == 3
    repeated = world.start(*goal, until="commits:3")
    assert repeated.wait() == 0, "what is reached is not made again"
    assert world.commits() == 3
    last_status = status.read(Home(world.home).status)
    assert last_status is not None
    assert (last_status.state, last_status.commit) == (status.DriverState.FINISHED, 3)
    assert world.start(until="duration:0.1").wait() == 0
    assert world.commits() <= 4
    check_counts(world, complete=False)


def test_records_that_are_gone_before_they_were_read_end_the_driver_for_good(world: World) -> None:
    world.send(300)
    assert world.start().wait() == 0
    world.send(300)
    ends = end_offsets(world.config, world.source, IsolationLevel.READ_COMMITTED)
    admin = AdminClient(dict(world.config))
    gone = [TopicPartition(world.source, int(partition), end) for partition, end in ends.items()]
    for future in admin.delete_records(gone).values():
        future.result(30)
    world.send(300)
    lost = world.start()
    assert lost.wait() == DataLostError.exit_code, lost.output()[-3000:]
    last_status = status.read(Home(world.home).status)
    assert last_status is not None
    assert last_status.error is not None
    assert last_status.error.kind == "DataLostError"
    assert "Could not read records in offset" in last_status.error.message
