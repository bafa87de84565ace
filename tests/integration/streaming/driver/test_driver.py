"""Drivers as a user starts them: what goes through, how they stop, and what they refuse."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.control import lease, status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.exceptions import BadRecordError, RecordTooLargeError, RefusedError
from airflow_provider_exactlyonce.jars.cache import spark_connector_jars
from tests import commands
from tests.integration.streaming.harness import (
    JOBS,
    World,
    check_counts,
    check_ledger,
    open_transactions,
    read_committed,
)
from tests.shared_jvm import UMASK
from tests.waiting import HANG_SECONDS, eventually


@pytest.fixture
def raw(world: World, make_topic: Callable[..., str]) -> World:
    """Give a pipeline that passes records on, whose two topics have equally many partitions."""
    return replace(world, job="records.py", source=make_topic(partitions=4), sink=make_topic(partitions=4))


def send(config: Mapping[str, str], topic: str, records: list[tuple[bytes | None, bytes | None]]) -> None:
    producer = Producer({**config, "partitioner": "murmur2"})
    for key, value in records:
        producer.produce(topic, key=key, value=value)
    assert producer.flush(30) == 0


def checkpoint_of(world: World) -> Checkpoint:
    home = Home(world.home)
    lineage = home.current()
    assert lineage is not None
    return Checkpoint(home.checkpoint(lineage.id))


def test_plain_records_pass_unchanged_to_the_partition_that_other_clients_would_choose(raw: World) -> None:
    keyed: list[tuple[bytes | None, bytes | None]] = [
        (b"", b"empty key"),
        (b"empty value", b""),
        (b"null value", None),
        ("ключ".encode(), "значение".encode()),
        (b"\x00\xff\xfe", bytes(range(256))),
        (b"long" * 5000, b"x" * 200_000),
        *((f"k{number}".encode(), str(number).encode()) for number in range(500)),
    ]
    keyless: list[tuple[bytes | None, bytes | None]] = [(None, None), (None, b""), (None, b"keyless")]
    send(raw.config, raw.source, keyed + keyless)
    driver = raw.start()
    assert driver.wait() == 0, driver.output()[-3000:]
    modes = {stat.S_IMODE(file.stat().st_mode) for file in raw.home.rglob("offsets/*")}
    assert modes == {0o666 & ~UMASK}, "this package's class has written them, without chmod"
    source, sink = (read_committed(raw.config, topic) for topic in (raw.source, raw.sink))
    with_key = [
        sorted((r.partition, r.key, r.value or b"\x00null") for r in records if r.key is not None)
        for records in (source, sink)
    ]
    assert with_key[0] == with_key[1]
    assert len(with_key[0]) == len(keyed)
    assert sorted(str(r.value) for r in sink if r.key is None) == sorted(str(value) for _, value in keyless)

    live = raw.start(until="forever")
    eventually(lambda: _state(raw) is DriverState.RUNNING, "the driver runs")
    send(raw.config, raw.source, [(b"late", b"1")])
    eventually(lambda: len(read_committed(raw.config, raw.sink)) == len(sink) + 1, "it commits")
    assert raw.commits() >= 2
    held = lease.read(Home(raw.home).lease)
    assert held is not None
    os.kill(held.pid, signal.SIGTERM)
    assert live.wait() == 0, live.output()[-3000:]
    assert _state(raw) is DriverState.STOPPED
    assert "Traceback" not in live.output(), "the stop was asked for"
    assert lease.read(Home(raw.home).lease) is None
    assert open_transactions(raw.config, raw.sink) == {}

    checkpoint = checkpoint_of(raw)
    for batch in checkpoint.batches("commits")[-2:]:
        checkpoint.removal("commits", batch)()
        checkpoint.removal("offsets", batch)()
    refused = raw.start()
    assert refused.wait() == RefusedError.exit_code
    assert "is lost: commits is missing or empty" in refused.output()
    assert len(read_committed(raw.config, raw.sink)) == len(sink) + 1


def _state(world: World) -> DriverState | None:
    driver_status = status.read(Home(world.home).status)
    return driver_status.state if driver_status else None


@pytest.mark.slow  # test_kafka_source.py and testing/test_job.py have it without a driver
def test_a_record_that_does_not_fit_stops_the_pipeline_before_its_batch_commits(world: World) -> None:
    world.send(1000)
    send(world.config, world.source, [(b"k1", b'{"id": 1, "k": "k1", "v": "dear"}')])
    (bad,) = [record for record in read_committed(world.config, world.source) if b"dear" in (record.value or b"")]
    failed = world.start()
    assert failed.wait() == BadRecordError.exit_code, failed.output()[-3000:]
    said = f"{world.source}-{bad.partition} offset {bad.offset}: field v is not decimal(12,2): dear"
    printed = [
        line for line in failed.output().splitlines() if "dear" in line or "Traceback" in line or "\tat " in line
    ]
    assert [line.partition(" ERROR ")[2] for line in printed] == [f"BadRecordError: {said}"], "one paragraph"
    driver_status = status.read(Home(world.home).status)
    assert driver_status is not None
    assert driver_status.error is not None
    assert (driver_status.state, driver_status.error.kind, driver_status.error.decision) == (
        DriverState.FAILED,
        "BadRecordError",
        "fix_data",
    )
    commits = check_ledger(world)
    assert commits, "the batches before it are committed"
    assert commits[-1].source[world.source][bad.partition][1] <= bad.offset
    check_counts(world, complete=False)
    assert open_transactions(world.config, world.sink) == {}


@pytest.mark.slow
def test_a_record_above_the_topics_limit_is_refused_by_name(raw: World, make_topic: Callable[..., str]) -> None:
    small = replace(raw, sink=make_topic(partitions=2, **{"max.message.bytes": "2000"}))
    send(small.config, small.source, [(b"fits", b"x" * 1500), (b"too-large", b"x" * 2500)])
    driver = small.start()
    assert driver.wait() == RecordTooLargeError.exit_code, driver.output()[-3000:]
    line = next(line for line in driver.output().splitlines() if "ERROR RecordTooLargeError" in line)
    for part in (small.sink, "too-large", "2000"):
        assert part in line
    assert read_committed(small.config, small.sink) == []
    assert small.commits() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("spark.speculation=true", "spark.speculation is 'true'; it must be 'false'"),
        ("spark.task.maxFailures=4", "spark.task.maxFailures is '4'; it must be '1'"),
    ],
)
def test_spark_submit_with_a_setting_that_breaks_the_protocol_is_refused(
    world: World, setting: str, message: str
) -> None:
    """Also the contract test of the private call in ``spark/session.py`` that makes submitted settings visible.

    When it breaks: find how a SparkConf made in Python reads the submitted settings before the context is made.
    """
    done = _spark_submit(world, "--conf", setting)
    assert done.returncode == RefusedError.exit_code
    assert f"SettingRefusedError: {message}" in done.stdout
    assert world.commits() == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_a_stop_in_order_without_a_traceback_and_stdout_stays_free(
    world: World, number: signal.Signals
) -> None:
    world.send(300)
    command, environment = world.command(until="forever")
    conf = [part for part in command[: command.index("--jars")] if "=" in part]
    job = command[command.index(str(JOBS / world.job)) :]
    run = [*commands.PROGRAM, "run", "--master", "local[2]"]
    process = subprocess.Popen(
        [*run, *(part for setting in conf for part in ("--conf", setting)), *job],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        eventually(lambda: _state(world) is DriverState.RUNNING and world.commits() == 1, "it commits")
        os.killpg(process.pid, number)  # as a terminal does
        output, errors = process.communicate(timeout=HANG_SECONDS)
    finally:
        process.kill()
        held = lease.read(Home(world.home).lease)
        if held is not None:
            os.kill(held.pid, signal.SIGKILL)
    assert (process.returncode, output) == (0, ""), errors[-3000:]
    assert f"stopped: signal {number.name}" in errors
    assert "KeyboardInterrupt" not in errors
    assert "py4j" not in errors
    assert _state(world) is DriverState.STOPPED


@pytest.mark.slow
def test_spark_submit_without_any_setting_runs_the_same(world: World) -> None:
    world.send(300)
    done = _spark_submit(world, "--conf", "spark.sql.shuffle.partitions=2")
    assert done.returncode == 0, done.stdout[-3000:]
    check_counts(world)


def _spark_submit(world: World, *options: str) -> subprocess.CompletedProcess[str]:
    jars = ",".join(map(str, spark_connector_jars()))
    command = [Path(sys.executable).with_name("spark-submit"), "--master", "local[2]", "--jars", jars, *options]
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "EXACTLYONCE_KAFKA": json.dumps(dict(world.config)),
        **world.names,
    }
    arguments = [JOBS / world.job, "--home", world.home, "--until", "available"]
    return subprocess.run(
        [str(part) for part in (*command, *arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
