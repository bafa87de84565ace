"""What a driver's measure of its lag hands on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_exactlyonce.kafka.wire import UnansweredError
from airflow_provider_exactlyonce.streaming.driver.heartbeat import Heartbeat


def test_an_answer_without_partitions_is_another_one_than_none() -> None:
    topics, told = list[str](), list[Any]()

    def stable(topic: str) -> dict[int, int]:
        if topic == "away":
            raise UnansweredError("no answer")
        return {0: 7}

    run: Any = SimpleNamespace(sources=SimpleNamespace(of=lambda topic: SimpleNamespace(stable=stable)))
    report: Any = SimpleNamespace(available=told.append)
    others: Any = None
    heartbeat = Heartbeat(run, report, lambda: topics, others)
    heartbeat._measure_lag()
    topics.append("in")
    heartbeat._measure_lag()
    topics.append("away")
    with pytest.raises(UnansweredError):
        heartbeat._measure_lag()
    assert told == [{}, {("in", 0): 7}, None]
