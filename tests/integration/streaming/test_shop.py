"""The example jobs that keep state, killed and started again, against plain Python."""

from __future__ import annotations

import datetime as dt
import json
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.supervision import Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from tests import shop
from tests.integration.streaming.harness import World, clean_audit, read_committed

JOBS = Path(__file__).parents[3] / "dags" / "jobs"
SOURCE = "shop.events"
SWITCHES = "shop.switches"
NUMBERS = "shop.numbers"
#: Of the slow tests.
EVENTS = 200_000
USERS = 5_000


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """Give a broker of its own, because the jobs name their topics."""
    with EmbeddedBroker(tmp_path / "broker") as running:
        yield {"bootstrap.servers": running.bootstrap_servers}


def create(config: Mapping[str, str], topics: Sequence[str]) -> None:
    admin = AdminClient(dict(config))
    # The control topic has one partition, as its records have an order.
    new = [NewTopic(name, num_partitions=1 if name == SWITCHES else 3, replication_factor=1) for name in topics]
    for future in admin.create_topics(new).values():
        future.result(30)


def send(config: Mapping[str, str], events: Sequence[shop.Event]) -> None:
    produce(config, SOURCE, ((event.uuid, event.json()) for event in events))


def send_numbers(config: Mapping[str, str], numbers: Iterable[int]) -> None:
    produce(config, NUMBERS, ((None, {"number": number}) for number in numbers))


def turn(config: Mapping[str, str], setting: str) -> None:
    produce(config, SWITCHES, [(None, {"name": "switch", "setting": setting})])


def produce(config: Mapping[str, str], topic: str, values: Iterable[tuple[str | None, Mapping[str, Any]]]) -> None:
    producer = Producer({**config, "enable.idempotence": True, "queue.buffering.max.messages": 1_000_000})
    for key, value in values:
        producer.produce(topic, key=key, value=json.dumps(value))
    assert producer.flush(60) == 0


def rows_of(config: Mapping[str, str], topic: str, key: Sequence[str]) -> shop.Rows:
    """Return what a job has written, each key's rows in the order of the topic."""
    rows: shop.Rows = defaultdict(list)
    for record in sorted(read_committed(config, topic), key=lambda record: (record.partition, record.offset)):
        value = json.loads(record.value or b"", parse_float=Decimal)
        rows[tuple(value[name] for name in key)].append(tuple(value.values()))
    return rows


def check(world: World, job: str, events: Sequence[shop.Event]) -> None:
    assert rows_of(world.config, world.sink, shop.JOBS[job][1]) == plain(shop.EXPECTED[job](events))
    clean_audit(world.config, world.pipeline)


def check_switched(world: World, settings: set[str | None]) -> None:
    """Each event was answered once, with the last setting of its own batch or of an earlier one.

    :param settings: those that were seen
    """
    source = {
        (record.partition, record.offset): json.loads(record.value or b"")
        for record in read_committed(world.config, SOURCE)
    }
    switches = {
        (record.partition, record.offset): json.loads(record.value or b"")["setting"]
        for record in read_committed(world.config, SWITCHES)
    }
    expected = []
    latest: str | None = None
    for commit in world.ledger()[0]:
        for partition, (start, end) in commit.source[SWITCHES].items():
            if end > start:
                latest = switches[partition, end - 1]
        for partition, (start, end) in commit.source[SOURCE].items():
            for offset in range(start, end):
                event = source[partition, offset]
                expected.append((event["uuid"], event["event_id"], latest))
    assert len(expected) == len(source)
    assert {setting for *_, setting in expected} == settings
    written = [json.loads(record.value or b"") for record in read_committed(world.config, world.sink)]
    assert sorted(map(str, expected)) == sorted(
        str((row["uuid"], row["event_id"], row.get("switch"))) for row in written
    )


def counted(world: World) -> int:
    records = read_committed(world.config, world.sink)
    latest = {record.key: json.loads(record.value or b"")["count"] for record in records}
    return sum(latest.values())


def check_parcels(world: World, events: Sequence[shop.Event]) -> None:
    parcels = [json.loads(record.value or b"")["event_ids"] for record in read_committed(world.config, world.sink)]
    paid = Counter(event.event_id for event in events if event.behavior == "pay")
    given = Counter(number for parcel in parcels for number in parcel)
    assert {len(parcel) for parcel in parcels} == {10}
    assert given <= paid
    assert (paid - given).total() < 2 * 10, "less than a parcel waits in each of the two copies"


def plain(rows: shop.Rows) -> Any:
    return {key: [tuple(row) for row in ofkey] for key, ofkey in rows.items()}


def world_of(job: str, config: Mapping[str, str], folder: Path) -> World:
    name = job.replace("_", "-")
    return World(
        config=config,
        pipeline=name,
        source=SOURCE,
        sink="shop.switched" if job == "shop_switch" else job.replace("_", "."),
        home=folder / name,
        job=str(JOBS / f"{job}.py"),
    )


def supervised(world: World, strategy: RestartStrategy) -> Supervisor:
    command, environment = world.command()
    return Supervisor(
        Home(world.home),
        Launch(command=command, printable="the driver", environment=environment),
        Supervision(owner="test", until="available", strategy=strategy),
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_alert_comes_once_though_its_adds_lie_on_both_sides_of_a_kill(
    kafka: Mapping[str, str], tmp_path: Path
) -> None:
    world = world_of("shop_alerts", kafka, tmp_path)
    create(kafka, [SOURCE, world.sink])
    events = list(shop.events(600, users=12, seed=3))
    send(kafka, events[:300])
    try:
        killed = world.start(failpoints="after-end-transaction:run=1:batch=0")
        assert killed.wait() == -signal.SIGKILL, killed.output()[-3000:]
        send(kafka, events[300:])
        last = world.start()
        assert last.wait() == 0, last.output()[-3000:]
    finally:
        world.end()
    check(world, "shop_alerts", events)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_batch_that_is_run_again_sees_the_switch_as_it_was(kafka: Mapping[str, str], tmp_path: Path) -> None:
    world = world_of("shop_switch", kafka, tmp_path)
    create(kafka, [SOURCE, SWITCHES, world.sink])
    events = list(shop.events(EVENTS, users=USERS, seed=3))
    third = EVENTS // 3
    send(kafka, events[:third])
    try:
        killed = world.start(failpoints="after-pre-commit:run=1:batch=0")
        assert killed.wait() == -signal.SIGKILL, killed.output()[-3000:]
        turn(kafka, "too late for the batch that is run again")
        send(kafka, events[third : 2 * third])
        killed = world.start(failpoints="after-pre-commit:run=2:batch=1")
        assert killed.wait() == -signal.SIGKILL, killed.output()[-3000:]
        turn(kafka, "on")
        turn(kafka, "off")
        send(kafka, events[2 * third :])
        last = world.start()
        assert last.wait() == 0, last.output()[-3000:]
    finally:
        world.end()
    check_switched(world, {None, "too late for the batch that is run again", "off"})


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_poison_record_stops_the_counting_and_once_it_is_handled_the_count_goes_on(
    kafka: Mapping[str, str], tmp_path: Path
) -> None:
    world = world_of("shop_counts", kafka, tmp_path)
    create(kafka, [NUMBERS, world.sink])
    half = EVENTS // 2
    try:
        send_numbers(kafka, range(1, half + 1))
        killed = world.start(failpoints="after-end-transaction:run=1:batch=2")
        assert killed.wait() == -signal.SIGKILL, killed.output()[-3000:]
        assert world.start().wait() == 0
        assert counted(world) == half
        before = world.commits()
        send_numbers(kafka, range(half))
        with pytest.raises(ExactlyOnceError, match="ZeroDivisionError"):
            for _ in supervised(world, RestartStrategy.fixed_delay(attempts=2, delay=dt.timedelta(0))).run():
                pass
        commits, runs = world.ledger()
        assert (counted(world), len(commits)) == (half, before), "no attempt has left anything"
        assert [run.run for run in runs] == [1, 2, 3, 4, 5], "it was started again twice, and then it failed"
        lineage = Home(world.home).current()
        assert lineage is not None
        retained = Checkpoint(Home(world.home).checkpoint(lineage.id))
        assert (retained.newest_commit(), retained.newest_offsets()) == (before - 1, before)
        text = (JOBS / "shop_counts.py").read_text()
        handled = tmp_path / "shop_counts.py"
        handled.write_text(text.replace("10 / value.number", "10 / (value.number or 1)"))
        assert handled.read_text() != text
        last = replace(world, job=str(handled)).start()
        assert last.wait() == 0, last.output()[-3000:]
    finally:
        world.end()
    assert counted(world) == EVENTS
    assert {commit.lineage for commit in world.ledger()[0]} == {lineage.id}, "it went on from the retained checkpoint"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_waits_in_a_buffer_survives_two_kills(kafka: Mapping[str, str], tmp_path: Path) -> None:
    world = world_of("shop_parcels", kafka, tmp_path)
    create(kafka, [SOURCE, world.sink])
    events = list(shop.events(EVENTS, users=USERS, seed=3))
    send(kafka, events)
    try:
        for failpoint in ("after-end-transaction:run=1:batch=1", "after-pre-commit:run=2:batch=4"):
            killed = world.start(failpoints=failpoint)
            assert killed.wait() == -signal.SIGKILL, killed.output()[-3000:]
        last = world.start()
        assert last.wait() == 0, last.output()[-3000:]
    finally:
        world.end()
    check_parcels(world, events)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("job", shop.JOBS)
def test_a_shop_job_survives_two_kills(job: str, kafka: Mapping[str, str], tmp_path: Path) -> None:
    world = world_of(job, kafka, tmp_path)
    create(kafka, [SOURCE, world.sink])
    events = list(shop.events(EVENTS, users=USERS, seed=20260301))
    send(kafka, events)
    try:
        for failpoint in ("after-pre-commit:run=1:batch=3", "after-end-transaction:run=2:batch=6"):
            driver = world.start(failpoints=failpoint)
            assert driver.wait() == -signal.SIGKILL, driver.output()[-3000:]
        driver = world.start()
        assert driver.wait() == 0, driver.output()[-3000:]
    finally:
        world.end()
    check(world, job, events)
