"""What is required of a ledger's topic."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import confluent_kafka.admin
import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_provider_exactlyonce import polling
from airflow_provider_exactlyonce.exceptions import SettingRefusedError
from airflow_provider_exactlyonce.kafka.topic_settings import check_settings
from airflow_provider_exactlyonce.ledger.topic import REQUIREMENTS, check, ensure
from tests.clocks import StandingClock

GOOD = {
    "cleanup.policy": "compact",
    "max.message.bytes": "8388608",
    "min.compaction.lag.ms": "600000",
    "max.compaction.lag.ms": "9223372036854775807",
    "unclean.leader.election.enable": "false",
    "min.insync.replicas": "1",
}


def test_the_settings_of_a_ledger_that_was_created_here_are_accepted() -> None:
    check_settings("topic ledger", GOOD, 1, REQUIREMENTS)
    check_settings("topic ledger", GOOD | {"min.insync.replicas": "2"}, 3, REQUIREMENTS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "delete"),
        ("cleanup.policy", "compact,delete"),
        ("max.message.bytes", "1048588"),
        ("min.compaction.lag.ms", "0"),
        ("unclean.leader.election.enable", "true"),
        ("min.insync.replicas", "1"),
    ],
)
def test_a_setting_that_would_lose_records_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingRefusedError, match=f"{name} of topic ledger is '{value}'; it must be "):
        check_settings("topic ledger", GOOD | {name: value}, 3, REQUIREMENTS)


class LateBrokers:
    """Answers what a new topic is asked for, but first as a broker that has not heard of the topic."""

    changed: list[Any]

    def __init__(self, config: object) -> None:
        self._asked = set[str]()
        type(self).changed = []

    def _answer(self, question: str, value: object) -> Future[Any]:
        future = Future[Any]()
        if question in self._asked:
            future.set_result(value)
        else:
            future.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        self._asked.add(question)
        return future

    def create_topics(self, topics: list[Any], **_: object) -> dict[str, Future[None]]:
        done = Future[None]()
        done.set_result(None)
        return {topic.topic: done for topic in topics}

    def describe_topics(self, topics: object, **_: object) -> Any:
        partition = type("Partition", (), {"replicas": [1, 2, 3]})
        return _AnyKey(self._answer("topics", type("Described", (), {"partitions": [partition]})))

    def describe_configs(self, resources: list[Any], **_: object) -> Any:
        entry = type("Entry", (), {"value": "1"})
        return {resource: self._answer("configs", {"min.insync.replicas": entry}) for resource in resources}

    def incremental_alter_configs(self, resources: list[Any], **_: object) -> dict[Any, Future[None]]:
        done = Future[None]()
        done.set_result(None)
        self.changed.extend(resources)
        return dict.fromkeys(resources, done)


class LostBrokers(LateBrokers):
    """Have the topic, and answer the change of a setting with an error as often as there is one."""

    settings: dict[str, str] = GOOD
    errors: list[int]

    def _answer(self, question: str, value: object) -> Future[Any]:
        self._asked.add(question)
        return super()._answer(question, value)

    def create_topics(self, topics: list[Any], **_: object) -> dict[str, Future[None]]:
        exists = Future[None]()
        exists.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)))
        return {topic.topic: exists for topic in topics}

    def describe_configs(self, resources: list[Any], **_: object) -> Any:
        entries = {name: type("Entry", (), {"value": value}) for name, value in self.settings.items()}
        return {resource: self._answer("configs", entries) for resource in resources}

    def incremental_alter_configs(self, resources: list[Any], **_: object) -> dict[Any, Future[None]]:
        if not self.errors:
            return super().incremental_alter_configs(resources)
        failed = Future[None]()
        failed.set_exception(KafkaException(KafkaError(self.errors.pop())))
        return dict.fromkeys(resources, failed)


class _AnyKey:
    def __init__(self, value: object) -> None:
        self._value = value

    def __getitem__(self, key: object) -> object:
        return self._value


def test_a_new_ledger_waits_for_each_broker_that_has_not_heard_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_kafka.admin, "AdminClient", LateBrokers)
    monkeypatch.setattr(polling, "time", StandingClock())
    ensure({"bootstrap.servers": "late:9092"}, "orders")
    assert [resource.name for resource in LateBrokers.changed] == ["exactlyonce.ledger.orders"]


def test_a_ledger_that_a_start_has_created_and_left_so_is_completed_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confluent_kafka.admin, "AdminClient", LostBrokers)
    monkeypatch.setattr(LostBrokers, "errors", [KafkaError._TIMED_OUT], raising=False)
    config = {"bootstrap.servers": "lost:9092"}
    check(config, "orders", is_new=True)
    with pytest.raises(KafkaException):
        ensure(config, "orders", is_new=True)
    ensure(config, "orders", is_new=True)
    assert [resource.name for resource in LostBrokers.changed] == ["exactlyonce.ledger.orders"]


@pytest.mark.parametrize(
    ("is_new", "settings"), [(False, GOOD), (True, GOOD | {"cleanup.policy": "delete"}), (True, GOOD)]
)
def test_what_a_start_can_not_set_is_refused(
    monkeypatch: pytest.MonkeyPatch, *, is_new: bool, settings: dict[str, str]
) -> None:
    monkeypatch.setattr(confluent_kafka.admin, "AdminClient", LostBrokers)
    monkeypatch.setattr(LostBrokers, "errors", [KafkaError.TOPIC_AUTHORIZATION_FAILED], raising=False)
    monkeypatch.setattr(LostBrokers, "settings", settings)
    with pytest.raises(SettingRefusedError):
        ensure({"bootstrap.servers": "lost:9092"}, "orders", is_new=is_new)
