"""The example jobs that keep state, killed and started again, against plain Python."""

from __future__ import annotations

import json
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_exactlyonce.audit.check import AuditOptions, audit
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from tests import shop
from tests.integration.streaming.harness import World, read_committed

JOBS = Path(__file__).parents[3] / "dags" / "jobs"
SOURCE = "shop.events"
SWITCHES = "shop.switches"
NUMBERS = "shop.numbers"


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
    producer = Producer({**config, "enable.idempotence": True, "queue.buffering.max.messages": 1_000_000})
    for event in events:
        producer.produce(SOURCE, key=event.uuid, value=json.dumps(event.json()))
    assert producer.flush(60) == 0


def found(config: Mapping[str, str], topic: str, key: Sequence[str]) -> shop.Rows:
    """Return what a job has written, each key's rows in the order of the topic."""
    rows: shop.Rows = defaultdict(list)
    for record in sorted(read_committed(config, topic), key=lambda one: (one.partition, one.offset)):
        value = json.loads(record.value or b"", parse_float=Decimal)
        rows[tuple(value[name] for name in key)].append(tuple(value.values()))
    return rows


def check(world: World, job: str, events: Sequence[shop.Event]) -> None:
    assert found(world.config, world.sink, shop.JOBS[job][1]) == plain(shop.EXPECTED[job](events))
    report = audit(world.config, world.pipeline, AuditOptions(patience_seconds=10))
    assert report.is_clean, [str(violation) for violation in report.found]


def plain(rows: shop.Rows) -> Any:
    return {key: [tuple(row) for row in ofkey] for key, ofkey in rows.items()}


def world_of(job: str, config: Mapping[str, str], folder: Path) -> World:
    name = job.replace("_", "-")
    return World(
        config=config,
        pipeline=name,
        source=SOURCE,
        sink=job.replace("_", "."),
        home=folder / name,
        job=str(JOBS / f"{job}.py"),
    )


@pytest.mark.timeout(600)
def test_an_alert_comes_once_though_its_adds_lie_on_both_sides_of_a_kill(
    kafka: Mapping[str, str], tmp_path: Path, spark_classes: None
) -> None:
    world = world_of("shop_alerts", kafka, tmp_path)
    create(kafka, [SOURCE, world.sink])
    events = list(shop.events(600, users=12, seed=3))
    send(kafka, events[:300])
    try:
        killed = world.start(failpoints="after-end-transaction:run=1:batch=0")
        assert killed.wait(200) == -signal.SIGKILL, killed.output()[-3000:]
        send(kafka, events[300:])
        last = world.start()
        assert last.wait(200) == 0, last.output()[-3000:]
    finally:
        world.end()
    check(world, "shop_alerts", events)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_batch_that_is_run_again_sees_the_switch_as_it_was(
    kafka: Mapping[str, str], tmp_path: Path, spark_classes: None
) -> None:
    world = replace(world_of("shop_switch", kafka, tmp_path), sink="shop.switched")
    create(kafka, [SOURCE, SWITCHES, world.sink])
    events = list(shop.events(900, users=12, seed=3))
    producer = Producer(dict(kafka))

    def turn(setting: str | None) -> None:
        producer.produce(SWITCHES, value=json.dumps({"name": "switch", "setting": setting}))
        assert producer.flush(30) == 0

    send(kafka, events[:300])
    try:
        killed = world.start(failpoints="after-pre-commit:run=1:batch=0")
        assert killed.wait(200) == -signal.SIGKILL, killed.output()[-3000:]
        turn("too late for the batch that is run again")
        send(kafka, events[300:600])
        killed = world.start(failpoints="after-pre-commit:run=2:batch=1")
        assert killed.wait(200) == -signal.SIGKILL, killed.output()[-3000:]
        turn("on")
        turn("off")
        send(kafka, events[600:])
        last = world.start()
        assert last.wait(200) == 0, last.output()[-3000:]
    finally:
        world.end()
    source = {(one.partition, one.offset): json.loads(one.value or b"") for one in read_committed(kafka, SOURCE)}
    switches: dict[tuple[int, int], str] = {
        (one.partition, one.offset): json.loads(one.value or b"")["setting"] for one in read_committed(kafka, SWITCHES)
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
    assert {setting for *_, setting in expected} == {None, "too late for the batch that is run again", "off"}
    written = [json.loads(one.value or b"") for one in read_committed(kafka, world.sink)]
    assert sorted(map(str, expected)) == sorted(
        str((row["uuid"], row["event_id"], row.get("switch"))) for row in written
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_poison_record_stops_the_counting_and_once_it_is_handled_the_count_goes_on(
    kafka: Mapping[str, str], tmp_path: Path, spark_classes: None
) -> None:
    world = world_of("shop_counts", kafka, tmp_path)
    create(kafka, [NUMBERS, world.sink])
    producer = Producer(dict(kafka))

    def send_numbers(*numbers: int) -> None:
        for number in numbers:
            producer.produce(NUMBERS, value=json.dumps({"number": number}))
        assert producer.flush(30) == 0

    def count() -> int:
        latest = {one.key: json.loads(one.value or b"")["count"] for one in read_committed(kafka, world.sink)}
        return sum(latest.values())

    try:
        send_numbers(*range(1, 301))
        assert world.start().wait(200) == 0
        assert count() == 300
        send_numbers(*range(1, 51), 0, *range(1, 51))
        for _ in range(2):
            failed = world.start()
            assert failed.wait(200) not in (0, -signal.SIGKILL)
            assert "ZeroDivisionError" in failed.output()
            assert (count(), world.commits()) == (300, 1)
        text = (JOBS / "shop_counts.py").read_text()
        handled = tmp_path / "shop_counts.py"
        handled.write_text(text.replace("10 / value.number", "10 / (value.number or 1)"))
        assert handled.read_text() != text
        last = replace(world, job=str(handled)).start()
        assert last.wait(200) == 0, last.output()[-3000:]
    finally:
        world.end()
    assert count() == 401


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_waits_in_a_buffer_survives_a_kill(kafka: Mapping[str, str], tmp_path: Path, spark_classes: None) -> None:
    world = world_of("shop_parcels", kafka, tmp_path)
    create(kafka, [SOURCE, world.sink])
    events = list(shop.events(600, users=12, seed=3))
    try:
        send(kafka, events[:300])
        killed = world.start(failpoints="after-end-transaction:run=1:batch=0")
        assert killed.wait(200) == -signal.SIGKILL, killed.output()[-3000:]
        send(kafka, events[300:])
        last = world.start()
        assert last.wait(200) == 0, last.output()[-3000:]
    finally:
        world.end()
    parcels = [json.loads(one.value or b"")["event_ids"] for one in read_committed(kafka, world.sink)]
    paid = Counter(event.event_id for event in events if event.behavior == "pay")
    given = Counter(number for parcel in parcels for number in parcel)
    assert {len(parcel) for parcel in parcels} == {10}
    assert given <= paid
    assert (paid - given).total() < 2 * 10, "less than a parcel waits in each of the two copies"


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("job", shop.JOBS)
def test_a_shop_job_of_200_000_events_survives_two_kills(
    job: str, kafka: Mapping[str, str], tmp_path: Path, spark_classes: None
) -> None:
    world = world_of(job, kafka, tmp_path)
    create(kafka, [SOURCE, world.sink])
    events = list(shop.events(200_000, users=5000, seed=20260301))
    send(kafka, events)
    try:
        for failpoint in ("after-pre-commit:run=1:batch=3", "after-end-transaction:run=2:batch=6"):
            driver = world.start(failpoints=failpoint)
            assert driver.wait(400) == -signal.SIGKILL, driver.output()[-3000:]
        driver = world.start()
        assert driver.wait(400) == 0, driver.output()[-3000:]
    finally:
        world.end()
    check(world, job, events)
