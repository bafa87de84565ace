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
from airflow_provider_exactlyonce.ledger.topic import REQUIREMENTS, ensure
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
