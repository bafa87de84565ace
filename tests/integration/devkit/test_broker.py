"""The embedded broker against a real client, real kills and the real command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_exactlyonce.cli.broker import DEFAULT_DATA, EXIT_FAILED, EXIT_NOT_RUNNING
from airflow_provider_exactlyonce.cli.main import main, program
from airflow_provider_exactlyonce.devkit import topics
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.devkit.errors import DevkitError
from airflow_provider_exactlyonce.devkit.metadata_log import METADATA_FOLDER
from airflow_provider_exactlyonce.devkit.process import ProcessIdentity
from airflow_provider_exactlyonce.devkit.state import STATE_NAME, BrokerState
from airflow_provider_exactlyonce.devkit.storage import is_taken_for_alive
from airflow_provider_exactlyonce.devkit.topics import ReadyTopic
from tests.waiting import HANG_SECONDS, eventually

Run = Callable[..., tuple[int, dict[str, object]]]


def create_topic(bootstrap_servers: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(name, num_partitions=2, replication_factor=1)])[name].result(30)


def produce(bootstrap_servers: str, topic: str, values: list[bytes], *, commit: bool = True) -> None:
    """Send the values in one transaction."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": f"producer-of-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.flush(30)
        producer.abort_transaction(30)


def committed_with(bootstrap_servers: str, topic: str, values: set[bytes]) -> set[bytes]:
    """Read all that is committed, once these are: a commit is acknowledged before its markers are written."""
    seen: set[bytes] = set()

    def is_readable() -> bool:
        seen.update(read_committed(bootstrap_servers, topic))
        return values <= seen

    eventually(is_readable, lambda: f"{sorted(values - seen)} can be read")
    return seen


def read_committed(bootstrap_servers: str, topic: str) -> set[bytes]:
    """Read all that is committed, up to the last stable offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # the end is told after an empty fetch
        }
    )
    values: set[bytes] = set()
    unfinished = {0, 1}
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in unfinished])
        while unfinished:
            message = consumer.poll(30)
            assert message is not None, f"partitions {unfinished} of {topic} did not end"
            if (error := message.error()) is None:
                value = message.value()
                assert value is not None
                values.add(value)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                unfinished.discard(message.partition())
    finally:
        consumer.close()
    return values


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Run]:
    """Run ``exactlyonce broker … --json`` on one data directory; end what it started."""
    data = tmp_path / "data"

    def call(*words: str) -> tuple[int, dict[str, object]]:
        capsys.readouterr()
        code = main(["broker", *words, "--json", "--data", str(data)])
        (line,) = capsys.readouterr().out.splitlines()
        return code, json.loads(line)

    yield call
    if state := BrokerState.load_living(data):
        state.process.send(signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_broker_comes_back_on_the_same_port_with_what_was_committed(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        servers = broker.bootstrap_servers
        create_topic(servers, "events")
        committed = {b"%d" % number for number in range(100)}
        produce(servers, "events", sorted(committed))
        produce(servers, "events", [b"aborted"] * 2, commit=False)
        first_pid = broker.pid
        broker.kill()  # most often before the abort's markers are written
        assert not broker.is_running
        assert (tmp_path / STATE_NAME).exists()

        broker.start()
        assert broker.bootstrap_servers == servers
        assert broker.pid != first_pid
        assert committed_with(servers, "events", committed) == committed
        # Without its marker, the aborted transaction would become visible with the producer's next commit.
        produce(servers, "events", [b"one more", b"and another"])
        committed |= {b"one more", b"and another"}
        assert committed_with(servers, "events", committed) == committed
        last_pid = broker.pid
    assert ProcessIdentity.of(last_pid) is None
    assert not (tmp_path / STATE_NAME).exists()


@pytest.mark.slow
def test_the_metadata_log_tells_a_killed_broker_from_a_stopped_one(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, properties={"metadata.log.max.record.bytes.between.snapshots": "1"}) as broker:
        create_topic(broker.bootstrap_servers, "events")
        snapshots = eventually(
            lambda: list((tmp_path / "kafka" / METADATA_FOLDER).glob("*.checkpoint")), "the broker takes a snapshot"
        )
        broker.kill()
        assert snapshots
        assert is_taken_for_alive(tmp_path)
        broker.start()
        assert is_taken_for_alive(tmp_path)
    assert not is_taken_for_alive(tmp_path)


@pytest.mark.slow
def test_records_with_old_timestamps_stay(tmp_path: Path) -> None:
    often = {"log.initial.task.delay.ms": "0", "log.retention.check.interval.ms": "100"}
    with EmbeddedBroker(tmp_path, properties=often) as broker:
        config: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers}
        admin, producer, consumer = AdminClient(config), Producer(config), Consumer({**config, "group.id": "reader"})

        def write(name: str, settings: dict[str, str]) -> None:
            admin.create_topics([NewTopic(name, num_partitions=1, config=settings)])[name].result(30)
            producer.produce(name, b"", partition=0, timestamp=1)
            producer.flush(30)

        def beginning(name: str) -> int:
            return consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=30)[0]

        write("events", {})
        for name in ("first-round", "second-round"):  # two whole rounds of retention passed "events" by
            write(name, {"retention.ms": "1"})
            eventually(partial(beginning, name), "retention removes the record")
        assert beginning("events") == 0
        consumer.close()


def test_the_broker_does_not_create_topics_by_itself(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.list_topics("never-created", timeout=30)
    assert "never-created" not in admin.list_topics(timeout=30).topics


def test_a_second_broker_on_the_same_data_is_refused_and_the_first_goes_on(broker: EmbeddedBroker) -> None:
    with pytest.raises(DevkitError, match=rf"runs on .* already: pid {broker.pid}, {broker.bootstrap_servers}"):
        EmbeddedBroker(broker.data_directory).start()
    assert broker.is_running


def test_a_broker_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, properties={"num.io.threads": "none"})
    with pytest.raises(DevkitError, match=r"(?s)can't be formatted.*num\.io\.threads"):
        broker.start()
    assert not broker.is_running
    assert not (tmp_path / STATE_NAME).exists()


def test_a_broker_that_is_not_ready_in_time_is_ended_with_the_reason(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path)
    with pytest.raises(DevkitError, match=r"not ready within 0\.1 s: .* does not answer"):
        broker.start(timeout_seconds=0.1)
    assert not broker.is_running
    assert not (tmp_path / STATE_NAME).exists()


def test_a_broker_does_not_outlive_a_test_run_that_is_killed(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import pathlib, sys, time
        from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
        EmbeddedBroker(pathlib.Path(sys.argv[1])).start()
        print("ready", flush=True)
        time.sleep(60)
        """
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        state = BrokerState.load_living(tmp_path)
        assert state is not None
        owner.kill()
    assert state.process.wait_until_gone(HANG_SECONDS)


def test_the_command_line_starts_finds_and_stops_a_broker_in_the_background(run: Run, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    assert run("status") == (
        EXIT_NOT_RUNNING,
        {"bootstrap_servers": None, "pid": None, "data": data, "state": "stopped"},
    )

    code, refused = run("create-topic", "events")
    assert (code, refused["error"]) == (
        EXIT_FAILED,
        f"no broker runs on {data}: start it with exactlyonce broker start --data {data}",
    )

    code, started = run("start")
    assert code == 0
    assert started["state"] == "running"
    assert started["data"] == data
    pid = started["pid"]
    assert isinstance(pid, int)
    assert os.getsid(pid) == pid != os.getsid(0)
    for created in (True, False):
        made = {"topic": "events", "partitions": 2, "created": created}
        assert run("create-topic", "events", "--partitions", "2") == (0, made)

    assert run("status") == (0, started)
    assert run("start") == (0, started)
    code, refused = run("start", "--port", "9")
    assert (code, refused["state"]) == (EXIT_FAILED, "failed")
    assert "already, on port" in str(refused["error"])

    assert run("stop") == (0, {"bootstrap_servers": None, "pid": None, "data": data, "state": "stopped"})
    assert ProcessIdentity.of(pid) is None
    assert run("status")[0] == EXIT_NOT_RUNNING
    assert run("stop")[0] == 0

    code, restarted = run("start")
    assert (code, restarted["bootstrap_servers"]) == (0, started["bootstrap_servers"])
    assert run("stop")[0] == 0


def test_a_topic_is_made_once_and_one_with_other_partitions_is_not_taken_for_it(
    kafka_config: Mapping[str, str],
) -> None:
    servers, name = kafka_config["bootstrap.servers"], f"made-{uuid.uuid4().hex[:8]}"
    assert topics.create_topic(servers, name, 3) == ReadyTopic(partitions=3, created=True)
    assert topics.create_topic(servers, name, 3) == ReadyTopic(partitions=3, created=False)
    assert topics.create_topic(servers, name) == ReadyTopic(partitions=3, created=False)
    with pytest.raises(DevkitError, match=f"topic {name} is there with 3 partitions, not 4: leave out --partitions"):
        topics.create_topic(servers, name, 4)
    assert topics.create_topic(servers, f"{name}-one") == ReadyTopic(partitions=1, created=True)


@pytest.mark.parametrize(("name", "partitions"), [("a b", 1), ("none", 0), ("less", -5), ("", 1)])
def test_a_topic_that_can_not_be_is_refused_in_the_brokers_words(
    kafka_config: Mapping[str, str], name: str, partitions: int
) -> None:
    with pytest.raises(DevkitError, match=f"topic {name!r} could not be created: .+"):
        topics.create_topic(kafka_config["bootstrap.servers"], name, partitions)


def test_a_port_that_is_taken_is_an_error_with_an_exit_code(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code, answer = run("start", "--port", str(port))
    assert code == EXIT_FAILED
    assert f"port {port} on 127.0.0.1 is taken" in str(answer["error"])


def test_without_options_the_data_lie_in_the_working_directory() -> None:
    assert program().parse_args(["broker", "status"]).data == DEFAULT_DATA == Path(".exactlyonce/broker")
