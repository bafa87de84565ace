"""Pipeline B reads what pipeline A commits, and both are killed at random."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from airflow_provider_exactlyonce.failpoints import NAMES
from airflow_provider_exactlyonce.ledger.records import ledger_topic
from tests.integration.streaming.harness import Driver, World, check_ledger, open_transactions
from tests.waiting import HANG_SECONDS

KILLS = 4


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("records", [20_000, 1_000_000])
def test_a_chain_of_two_pipelines_that_are_killed_at_random_passes_every_record_on_exactly_once(
    records: int, tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    first, between, last = make_topic(partitions=3), make_topic(partitions=4), make_topic(partitions=3)
    worlds = [
        World(kafka_config, f"{name}-{first}", source, sink, tmp_path / name / "home", job="chain.py")
        for name, source, sink in (("a", first, between), ("b", between, last))
    ]
    feed(kafka_config, first, records)
    kill_and_finish(worlds, records)
    for world in worlds:
        check_ledger(world)
        assert [run.run for run in world.ledger()[1]] == list(range(1, KILLS + 2))
        for topic in (world.sink, ledger_topic(world.pipeline)):
            assert open_transactions(kafka_config, topic) == {}
    written = sum(1 for _ in values(kafka_config, between, "read_uncommitted"))
    assert written > records, "A's aborted attempts are in the topic between, for B to stumble over"
    for topic in (between, last):
        assert not_once(kafka_config, topic, records) == [], f"{topic}: these records are not there exactly once"


def not_once(config: Mapping[str, str], topic: str, records: int) -> list[int]:
    """Return some of the records that a read_committed reader does not see exactly once."""
    seen = Counter(int(value) for value in values(config, topic, "read_committed"))
    return [number for number in {*range(records), *seen} if seen[number] != 1][:10]


def kill_and_finish(worlds: list[World], records: int) -> None:
    """Take both pipelines through their kills at the same time, and to their end."""
    first_has_ended = threading.Event()
    errors: list[BaseException] = []

    def live(world: World) -> None:
        try:
            chance = random.Random(f"{records}/{worlds.index(world)}")
            for _ in range(KILLS):
                die(world, chance, records)
            if world is not worlds[0]:
                assert first_has_ended.wait(HANG_SECONDS), "A ends"
            finish(world, records)
        except BaseException as error:
            errors.append(error)
        finally:
            if world is worlds[0]:
                first_has_ended.set()

    threads = [threading.Thread(target=live, args=(world,)) for world in worlds]
    try:
        for world in worlds:
            world.home.parent.mkdir()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for world in worlds:
            world.end()
    if errors:
        raise errors[0]


def die(world: World, chance: random.Random, records: int) -> None:
    """Let a driver live until it is killed at a random step of one of its next batches."""
    commits = world.ledger()[0]
    batch = (commits[-1].batch if commits else -1) + chance.randint(1, 2)
    point = chance.choice([name for name in NAMES if name != "after-claim"])
    if world.pipeline.startswith("a-") and not commits:
        point = "after-pre-commit"  # at least one whole attempt of A is aborted
    driver = start(world, records, until="forever", failpoints=f"{point}:batch={batch}")
    assert driver.wait() == -signal.SIGKILL, driver.output()[-3000:]


def finish(world: World, records: int) -> None:
    """Let a driver live until everything that is there now is committed."""
    driver = start(world, records, until="available")
    assert driver.wait() == 0, driver.output()[-3000:]


def start(world: World, records: int, *, until: str, failpoints: str | None = None) -> Driver:
    environment = {"TEST_RECORDS_A_BATCH_MAXIMUM": str(records // 20)}
    return world.start(until=until, failpoints=failpoints, environment=environment)


def feed(config: Mapping[str, str], topic: str, records: int) -> None:
    producer = Producer({**config, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000})
    for number in range(records):
        producer.produce(topic, key=b"k%d" % (number % 997), value=b"%d" % number)
    assert producer.flush(60) == 0


def values(config: Mapping[str, str], topic: str, isolation: str) -> Iterator[bytes]:
    """Read a whole topic."""
    consumer = Consumer(
        {
            **config,
            "group.id": "independent-reader",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # the end is told after an empty fetch
        }
    )
    left = set(consumer.list_topics(topic).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
    deadline = time.monotonic() + HANG_SECONDS
    while left:
        assert time.monotonic() < deadline, f"no end of {topic} in sight"
        for message in consumer.consume(10_000, timeout=0.2):
            if (error := message.error()) is None:
                yield message.value() or b""
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
    consumer.close()
