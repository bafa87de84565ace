"""One connection for both clients on a broker with TLS, SASL and ACLs, and exactly the rights that the docs list."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka import OffsetAndMetadata, TopicPartition

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.hooks.kafka import driver_config
from airflow_provider_exactlyonce.kafka.cluster_transactions import Transactions
from airflow_provider_exactlyonce.kafka.config import parse
from airflow_provider_exactlyonce.kafka.preflight import check_cluster, check_group, check_topics
from airflow_provider_exactlyonce.kafka.reach import unreachable
from airflow_provider_exactlyonce.kafka.wire import WireClient
from airflow_provider_exactlyonce.ledger.records import ledger_topic, transactional_id
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from tests.integration.kafka.secured import PLAIN_USER, Right, SecuredBroker, documented_rights, secured_broker
from tests.integration.streaming.harness import CONN_ID, World, check_counts, read_committed
from tests.shared_jvm import SharedJvm
from tests.waiting import eventually

PASSWORD = "hush: \"quoted\" \\ and 'back'"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


def names(secured: SecuredBroker) -> dict[str, str]:
    return {
        "SOURCE": secured.make_topic(),
        "SINK": secured.make_topic(),
        "PIPELINE": f"p-{uuid.uuid4().hex[:8]}",
    }


def check_start(config: Mapping[str, str], of: Mapping[str, str]) -> None:
    user = config["sasl.username"]
    with WireClient(config) as client:
        check_cluster(
            client,
            transactional_id=transactional_id(of["PIPELINE"]),
            transaction_timeout_milliseconds=60_000,
            user=user,
        )
        ledger = ledger_topic(of["PIPELINE"])
        check_topics(client, sources=[of["SOURCE"]], sinks=[of["SINK"]], ledger=ledger, user=user)


def refusal(config: Mapping[str, str], of: Mapping[str, str]) -> str | None:
    try:
        check_start(config, of)
    except RefusedError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("mechanism", "protocol"),
    [
        ("PLAIN", "SASL_PLAINTEXT"),
        ("SCRAM-SHA-512", "SASL_SSL"),
        pytest.param("PLAIN", "SASL_SSL", marks=pytest.mark.slow),
        pytest.param("SCRAM-SHA-512", "SASL_PLAINTEXT", marks=pytest.mark.slow),
    ],
)
def test_a_run_starts_and_commits_with_one_connection_and_no_more_rights_than_the_docs_list(
    secured: SecuredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, mechanism: str
) -> None:
    if mechanism == "PLAIN":
        user, password = PLAIN_USER, secured.plain_password
    else:
        user, password = secured.make_user(PASSWORD), PASSWORD
    of = names(secured)
    secured.grant(user, [right.of(of) for right in documented_rights()])
    extra = secured.config(user, password, protocol=protocol, mechanism=mechanism)
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SECURED", json.dumps({"conn_type": "kafka", "extra": extra}))
    config = parse(driver_config("kafka_secured"))

    eventually(lambda: refusal(config, of) is None, "the rights have arrived")
    options = RunOptions(config=config, token="t", version="v", transaction_timeout_milliseconds=60_000)
    run = Run(Home(tmp_path / "home"), of["PIPELINE"], options)
    try:
        run.check()
        run.start()
        assert run.number == 1
        run.session.begin()
        run.session.write(of["SINK"], 0, b"k", b"v")
        run.session.commit()
        run.check_superseded()
    finally:
        run.close()
    eventually(lambda: read_committed(secured.open_config, of["SINK"]), "the record is committed")
    assert [record.value for record in read_committed(secured.open_config, of["SINK"])] == [b"v"]


@pytest.mark.parametrize("missing", documented_rights(), ids=lambda right: f"{right.operation} on {right.name}")
def test_without_one_of_the_rights_the_start_names_it(secured: SecuredBroker, missing: Right) -> None:
    user, of = secured.make_user(PASSWORD), names(secured)
    secured.grant(user, [right.of(of) for right in documented_rights() if right != missing])
    config = secured.config(user, PASSWORD)
    lacking = missing.of(of)
    expected = (
        f"the Kafka user {user} lacks the right {lacking.in_capitals} on {lacking.resource} {lacking.name}; grant"
    )
    eventually(lambda: (refusal(config, of) or "").startswith(expected), expected)
    secured.grant(user, [lacking])
    eventually(lambda: refusal(config, of) is None, "with it the start passes")


def test_a_group_that_may_not_be_written_is_named(secured: SecuredBroker) -> None:
    user, group = secured.make_user(PASSWORD), f"group-{uuid.uuid4().hex[:8]}"
    with WireClient(secured.config(user, PASSWORD)) as client:

        def refused() -> bool:
            try:
                check_group(client, group, user=user)
            except RefusedError as error:
                return str(error).startswith(f"the Kafka user {user} lacks the right READ on group {group}; grant")
            return False

        eventually(refused, "without any right")
        with WireClient(secured.open_config) as administrator:
            check_group(administrator, group)  # waits for the group's coordinator
            offsets = {TopicPartition(secured.make_topic(), 0): OffsetAndMetadata(0, "", -1)}
            administrator.admin.alter_group_offsets(group, offsets)
        secured.grant(user, [Right("group", group, "Describe")])
        eventually(refused, "with Describe alone")
        secured.grant(user, [Right("group", group, "Read")])
        eventually(lambda: not refused(), "with Read")


def test_a_transaction_whose_id_may_not_be_described_is_not_called_hanging(secured: SecuredBroker) -> None:
    user, topic, name = secured.make_user(PASSWORD), secured.make_topic(), f"living-{uuid.uuid4().hex[:8]}"
    secured.grant(user, [Right("topic", topic, "Read"), Right("transactional id", "p-mine", "Describe")])
    living = Producer({**secured.open_config, "transactional.id": name, "log_level": 2})
    living.init_transactions(30)
    living.begin_transaction()
    living.produce(topic, b"v", partition=1)
    assert living.flush(30) == 0
    said: list[str] = []

    def refused() -> bool:
        try:
            assert transactions.hanging([topic], silent_seconds=0) == []
        except RefusedError as error:
            said.append(str(error))
            return True
        return False

    with WireClient(secured.config(user, PASSWORD)) as client:
        transactions = Transactions(client)
        eventually(lambda: refused() and "DESCRIBE on all transactional ids" in said[-1], "the right is named")
        assert f"open in {topic}-1 from offset 0 hangs or" in said[-1]
        secured.grant(user, [Right("transactional id", "*", "Describe")])
        eventually(lambda: not refused(), "with the right it is known that it lives")
    living.abort_transaction(30)


def test_wrong_credentials_and_an_unknown_authority_are_refused_with_the_reason(secured: SecuredBroker) -> None:
    user = secured.make_user(PASSWORD)
    wrong = unreachable(secured.config(user, "wrong"))
    assert isinstance(wrong, RefusedError)
    assert "Authentication failed" in str(wrong)
    assert secured.broker.secure_servers("SASL_SSL") in str(wrong)
    distrusted = {name: value for name, value in secured.config(user, PASSWORD).items() if name != "ssl.ca.location"}
    untrusted = unreachable(distrusted)
    assert isinstance(untrusted, RefusedError)
    assert "certificate verify failed" in str(untrusted)
    assert PASSWORD not in f"{wrong}{untrusted}"


@pytest.mark.slow
def test_a_driver_without_rights_or_with_a_wrong_password_touches_nothing_and_says_why(
    secured: SecuredBroker, tmp_path: Path
) -> None:
    user, of = secured.make_user(PASSWORD), names(secured)
    right, wrong = (secured.config(user, password) for password in (PASSWORD, "wrong"))
    world = World(config=right, pipeline=of["PIPELINE"], source=of["SOURCE"], sink=of["SINK"], home=tmp_path / "home")
    for config, said in (
        (right, f"{user} lacks the right READ on topic {of['SOURCE']}, WRITE, DESCRIBE_CONFIGS on topic {of['SINK']}"),
        (wrong, "can't be reached: sasl_ssl://"),
    ):
        driver = replace(world, config=config, drivers=world.drivers).start()
        try:
            assert driver.wait() == RefusedError.exit_code, driver.output()[-3000:]
        finally:
            world.end()
        assert said in driver.output()
        assert json.dumps(PASSWORD) not in driver.output()
    assert secured.admin.list_topics(timeout=30).topics.keys().isdisjoint({ledger_topic(of["PIPELINE"])})
    assert not (tmp_path / "home" / "current").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("mechanism", "protocol"), [("PLAIN", "SASL_PLAINTEXT"), ("SCRAM-SHA-512", "SASL_SSL")])
def test_a_source_on_a_secured_cluster_needs_one_right_there_and_the_open_sinks_cluster_none(
    secured: SecuredBroker,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
    shared_jvm: SharedJvm,
    tmp_path: Path,
    mechanism: str,
    protocol: str,
) -> None:
    if mechanism == "PLAIN":
        user, password = PLAIN_USER, secured.plain_password
    else:
        user, password = secured.make_user(PASSWORD), PASSWORD
    source, sink, home = secured.make_topic(), make_topic(partitions=2), tmp_path / "home"
    world = World(kafka_config, f"p-{source}", source, sink, home, jvm=shared_jvm, elsewhere=secured.open_config)
    world.send(500)
    right, wrong = (
        secured.config(user, told, protocol=protocol, mechanism=mechanism) for told in (password, "hush, wrong")
    )

    def ended(config: Mapping[str, str], expected: int) -> str:
        driver = world.start(environment={"EXACTLYONCE_SOURCES": json.dumps({CONN_ID: config})})
        assert driver.wait() == expected, driver.output()[-3000:]
        return driver.output()

    try:
        away = (
            f"the cluster of connection {CONN_ID}, which sources are read from: Kafka at {wrong['bootstrap.servers']}"
        )
        assert away in ended(wrong, RefusedError.exit_code)
        assert f"the Kafka user {user} lacks the right READ on topic {source}" in ended(right, RefusedError.exit_code)
        assert not (home / "current").exists(), "nothing was touched"
        [reads] = [granted for granted in documented_rights() if granted.name == "SOURCE"]
        secured.grant(user, [reads.of({"SOURCE": source})])
        ended(right, 0)
        check_counts(world)
    finally:
        world.end()
    written = [driver.log for driver in world.drivers] + [path for path in home.rglob("*") if path.is_file()]
    shown = [path for path in written if any(part in path.read_bytes() for part in (b"hush", password.encode()))]
    assert shown == []
