"""``exactlyonce transactions`` on a real broker: an ordinary producer's, a living pipeline's, and one that hangs."""

from __future__ import annotations

import json
import os
import pty
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError
from airflow_provider_exactlyonce.kafka import record_batch
from airflow_provider_exactlyonce.kafka.cluster_transactions import Transactions
from airflow_provider_exactlyonce.kafka.preflight import check_cluster
from airflow_provider_exactlyonce.kafka.retry import until_definite
from airflow_provider_exactlyonce.kafka.stable_offsets import StableOffsets
from airflow_provider_exactlyonce.kafka.wire import NO_PRODUCER, Code, WireClient
from airflow_provider_exactlyonce.ledger.records import transactional_id
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from tests import commands
from tests.integration.streaming.harness import open_transactions, read_committed
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def cluster(kafka_config: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXACTLYONCE_KAFKA", json.dumps(dict(kafka_config)))


class Command:
    """Runs ``exactlyonce transactions`` in this process."""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        said = commands.run("transactions", *arguments, code=code)
        return said.out + said.err

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    def listed(self, name: str) -> dict[str, Any] | None:
        transactions: list[dict[str, Any]] = self.json("list")["transactions"]
        return next((transaction for transaction in transactions if transaction["transactional_id"] == name), None)


@pytest.fixture
def command() -> Command:
    return Command()


def open_one(config: Mapping[str, str], topic: str, records: int = 3, name: str | None = None) -> tuple[str, Producer]:
    name = name or f"ordinary-{uuid.uuid4().hex[:8]}"
    producer = Producer({**config, "transactional.id": name, "transaction.timeout.ms": 60_000, "log_level": 2})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(records):
        producer.produce(topic, key=b"k", value=str(number).encode(), partition=0)
    assert producer.flush(30) == 0
    return name, producer


def test_an_open_transaction_is_listed_described_and_aborted_and_its_producer_is_fenced(
    command: Command, kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=2)
    name, producer = open_one(kafka_config, topic)
    listed = command.listed(name)
    assert listed is not None
    assert (listed["state"], listed["partitions"], listed["held_back"]) == ("Ongoing", [f"{topic}-0"], 3)
    assert 0 <= listed["age_seconds"] < 60 == listed["timeout_seconds"]
    assert name in command("list")
    assert name not in command("list", "--older-than", "3600")

    described = command.json("describe", name)
    assert described["partitions"] == [
        {"topic": topic, "partition": 0, "last_stable_offset": 0, "high_watermark": 3, "held_back": 3}
    ]
    assert {**listed, "partitions": 0, "age_seconds": 0} == {**described, "partitions": 0, "age_seconds": 0}
    assert "high watermark" in command("describe", name)

    assert "pass --yes" in command("abort", name, code=RefusedError.exit_code)
    assert open_transactions(kafka_config, topic) == {0: (0, 3)}
    done = command.json("abort", name, "--yes")
    assert (done["aborted"], done["held_back"]) == (True, 3)
    assert open_transactions(kafka_config, topic) == {}
    assert command.listed(name) is None
    assert "no open transaction" in command("abort", name, "--yes", code=RefusedError.exit_code)
    with pytest.raises(KafkaException, match="fenced"):
        producer.commit_transaction(10)
    assert read_committed(kafka_config, topic) == []


def test_a_transaction_of_which_a_topic_is_gone_is_listed_and_aborted(
    command: Command, kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    topic, gone = make_topic(partitions=1), make_topic(partitions=1)
    name, producer = open_one(kafka_config, topic)
    producer.produce(gone, b"x", partition=0)
    assert producer.flush(30) == 0
    admin = AdminClient(dict(kafka_config))
    admin.delete_topics([gone])[gone].result(30)
    eventually(lambda: gone not in StableOffsets(kafka_config).topics(), "the topic is gone")
    listed = command.listed(name)
    assert listed is not None
    assert listed["held_back"] is None
    assert name in command("list")
    described = command.json("describe", name)
    assert [partition["topic"] for partition in described["partitions"]] == [topic]
    assert command.json("abort", name, "--yes")["aborted"]
    eventually(lambda: open_transactions(kafka_config, topic) == {}, "the marker is written")
    del producer


def test_a_producer_that_took_over_while_somebody_was_asked_is_left_alone(
    kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=1)
    name, old = open_one(kafka_config, topic)
    with WireClient(kafka_config) as client:
        transactions = Transactions(client)
        seen = transactions.describe(name)
        assert seen is not None
        _, new = open_one(kafka_config, topic, name=name)
        transactions.abort(seen)
        now = transactions.describe(name)
        assert now is not None
        assert now.is_open
    new.commit_transaction(30)
    eventually(lambda: open_transactions(kafka_config, topic) == {}, "the markers are written")
    assert len(read_committed(kafka_config, topic)) == 3
    del old


def test_the_checks_of_a_start_leave_what_is_open_under_the_same_id_alone(
    kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=1)
    name, producer = open_one(kafka_config, topic)
    with WireClient(kafka_config) as client:
        check_cluster(client, transactional_id=name, transaction_timeout_milliseconds=60_000)
    producer.commit_transaction(30)
    eventually(lambda: len(read_committed(kafka_config, topic)) == 3, "its records are committed")


def test_an_abort_asks_who_sits_at_a_terminal(
    command: Command, kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=1)
    name, producer = open_one(kafka_config, topic)
    for answer, outcome in (("n", "left as it is"), ("", "left as it is"), ("y", "aborted")):
        assert outcome in _at_a_terminal(answer, "abort", name)
        assert (command.listed(name) is None) == (outcome == "aborted")
    del producer


def _at_a_terminal(answer: str, *arguments: str) -> str:
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        said = commands.run_apart("transactions", *arguments, stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    assert "Abort it, and fence its producer? [y/N]" in said.err
    return said.out


@contextmanager
def living_run(config: Mapping[str, str], home: Path, pipeline: str) -> Iterator[Run]:
    options = RunOptions(config=dict(config), token="t", version="v", transaction_timeout_milliseconds=60_000)
    run, ended = Run(Home(home), pipeline, options), threading.Event()

    def beat() -> None:
        while not ended.wait(0.3):
            run.renew_lease()

    beating = threading.Thread(target=beat)
    try:
        run.start()
        beating.start()
        yield run
    finally:
        ended.set()
        beating.join()
        run.close()


def test_a_living_pipelines_transaction_is_never_aborted_and_a_dead_ones_is(
    command: Command, kafka_config: Mapping[str, str], make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, pipeline, home = make_topic(partitions=1), f"p-{uuid.uuid4().hex[:8]}", tmp_path / "home"
    name = transactional_id(pipeline)
    with living_run(kafka_config, home, pipeline) as run:
        run.session.begin()
        run.session.write(topic, 0, b"k", b"kept")
        refused = command("abort", name, "--yes", code=AlreadyRunningError.exit_code)
        assert f"run 1 of pipeline {pipeline} lives: pid {os.getpid()}" in refused
        run.session.commit()
        run.session.begin()
        run.session.write(topic, 0, b"k", b"lost")
    moved = home.rename(tmp_path / "elsewhere")
    unknown = command("abort", name, "--yes", code=AlreadyRunningError.exit_code)
    assert f"its home is not at {home} on this machine" in unknown
    moved.rename(home)
    assert command.listed(name) is not None
    assert command.json("abort", name, "--yes")["aborted"]
    assert open_transactions(kafka_config, topic) == {}
    assert [record.value for record in read_committed(kafka_config, topic)] == [b"kept"]


def test_a_transaction_that_no_coordinator_knows_is_found_and_its_marker_written(
    command: Command, kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=2)
    with WireClient(kafka_config) as client:
        make_hanging(client, topic)
    name, producer = open_one(kafka_config, topic)  # known to its coordinator: not hanging
    assert open_transactions(kafka_config, topic)[1] == (0, 1)
    [hanging] = command.json("hanging", "--topic", topic, "--silent-for", "0")["hanging"]
    assert (hanging["topic"], hanging["partition"], hanging["first_offset"], hanging["held_back"]) == (topic, 1, 0, 1)
    assert command.json("hanging", "--topic", topic)["hanging"] == []
    assert topic in command("hanging", "--silent-for", "0")
    place = ("--topic", topic, "--partition", "1", "--first-offset", "0", "--yes")
    assert "silent for 900 s" in command("abort", *place, code=RefusedError.exit_code)
    assert command.json("abort", *place, "--silent-for", "0")["aborted"]
    assert command.json("hanging", "--topic", topic, "--silent-for", "0")["hanging"] == []
    assert set(open_transactions(kafka_config, topic)) == {0}
    command("abort", name, "--yes")
    del producer


def make_hanging(client: WireClient, topic: str) -> None:
    """Write to a partition that is not part of the transaction, as brokers without verification let a straggler do."""
    name, setting, producer = f"straggler-{uuid.uuid4()}", "transaction.partition.verification.enable", NO_PRODUCER

    def ask() -> int:
        nonlocal producer
        code, producer = client.init_producer_id(name, NO_PRODUCER, 60_000)
        return code

    def written() -> bool:
        return client.produce(name, topic, {1: b"".join(record)})[1].code == Code.NONE

    assert until_definite(ask, timeout_seconds=30) == Code.NONE
    body = record_batch.encode_few([(b"k", b"v")], int(time.time() * 1000))
    record = record_batch.with_header(body, producer_id=producer.id, epoch=producer.epoch, base_sequence=0)
    resource = ConfigResourceType.BROKER
    client.admin.alter_configs([ConfigResource(resource, "1", configs={setting: "false"})])
    try:
        eventually(written, "the broker lets the straggler write")
    finally:
        client.admin.alter_configs([ConfigResource(resource, "1", configs={setting: (AlterConfigOp.DELETE, None)})])


def test_what_is_not_there_or_not_said_is_refused(command: Command) -> None:
    assert "no coordinator knows nobody" in command("describe", "nobody", code=RefusedError.exit_code)
    assert "no coordinator knows nobody" in command("abort", "nobody", "--yes", code=RefusedError.exit_code)
    assert "--first-offset" in command("abort", "--topic", "t", "--yes", code=RefusedError.exit_code)
    assert "not both" in command("abort", "nobody", "--topic", "t", "--yes", code=RefusedError.exit_code)
