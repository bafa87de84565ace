"""The gate's trigger, as far as it goes without a cluster."""

from __future__ import annotations

import asyncio
import importlib
import json
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.serialization.encoders import encode_trigger
from airflow.serialization.serialized_objects import BaseSerialization

from airflow_provider_exactlyonce.ledger.gate_target import GateTarget
from airflow_provider_exactlyonce.triggers.commit_gate import CommitGateTrigger, GateChecker, gate_of
from airflow_provider_exactlyonce.triggers.polling import BACKSTOP_SECONDS
from airflow_provider_exactlyonce.triggers.shared_poller import CheckResult
from tests.clocks import StandingClock
from tests.waiting import HANG_SECONDS

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "socket.connection.setup.timeout.ms": 1000}


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SHOP", json.dumps({"conn_type": "kafka", "extra": NOBODY}))
    monkeypatch.setattr("airflow_provider_exactlyonce.ledger.gate._TIMEOUT_SECONDS", 1.0)


def trigger(**options: Any) -> CommitGateTrigger:
    defaults = {
        "pipeline": "shop",
        "offsets": {"shop.events": {"0": 5, "1": 7}},
        "kafka_conn_id": "kafka_shop",
        "poll_interval": 0.1,
        "deadline": 0.0,
    }
    return CommitGateTrigger(**{**defaults, **options})


def events(of: CommitGateTrigger) -> list[Any]:
    async def collect() -> list[Any]:
        return [event.payload async for event in of.run()]

    return asyncio.run(collect())


@pytest.mark.parametrize(
    "target",
    [
        GateTarget(commit=3),
        GateTarget.parse(watermark=datetime(2026, 1, 1, tzinfo=UTC)),
        GateTarget.parse(timestamp="2026-01-01"),
        GateTarget(offsets={"a": {0: 1, 11: 2}}),
    ],
)
def test_it_survives_the_metadata_database(target: GateTarget) -> None:
    before = CommitGateTrigger(
        pipeline="shop", **target.to_json(), kafka_conn_id="kafka_shop", poll_interval=0.1, deadline=1234.5
    )
    path, arguments = before.serialize()
    stored = json.loads(json.dumps(encode_trigger({"classpath": path, "kwargs": arguments})))
    module, _, name = str(stored["classpath"]).rpartition(".")
    kwargs = {key: BaseSerialization.deserialize(value) for key, value in stored["kwargs"].items()}
    restored = getattr(importlib.import_module(module), name)(**kwargs)
    assert restored.serialize() == before.serialize()
    assert gate_of(restored.subject).target == target


def test_a_name_that_can_be_no_pipelines_is_refused_at_once() -> None:
    [event] = events(trigger(pipeline="shop/totals", deadline=time.time() + 60))
    assert event["reason"] == "refused"
    assert "'shop/totals'" in event["missing"]


def test_a_target_that_a_template_has_spoilt_is_refused() -> None:
    [event] = events(trigger(offsets=None, commit="None", deadline=time.time() + 60))
    assert event == {"reason": "refused", "missing": "commit='None' is not a whole number from 0 on"}


def test_a_connection_that_does_not_exist_fails_the_trigger() -> None:
    with pytest.raises(AirflowNotFoundException, match="never_made"):
        events(trigger(kafka_conn_id="never_made", deadline=time.time() + 60))


@pytest.fixture
def silent_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object, **__: object) -> Mapping[str, CheckResult]:
        raise OSError("no answer")

    monkeypatch.setattr(GateChecker, "_check", ask)


@pytest.mark.usefixtures("silent_cluster")
def test_airflows_own_time_out_counts_when_it_was_started_without_a_worker(clock: StandingClock) -> None:
    began = clock.now
    started = trigger(deadline=None)
    started.timeout_after = datetime.fromtimestamp(began, UTC).replace(tzinfo=None) + timedelta(seconds=60.5)
    [event] = events(started)
    assert event["reason"] == "timeout", "a minute earlier, to say what is missing"
    assert clock.now - began < BACKSTOP_SECONDS


@pytest.mark.usefixtures("clock", "silent_cluster")
def test_a_cluster_that_does_not_answer_is_asked_until_the_deadline_and_named_then() -> None:
    [event] = events(trigger(deadline=time.time() + 1.5))
    assert event["reason"] == "timeout"
    assert event["missing"] == "connection kafka_shop: no answer"


def test_the_event_loop_is_not_blocked_while_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    loop_goes_on = threading.Event()

    def ask(*_: object, **__: object) -> Mapping[str, CheckResult]:
        assert loop_goes_on.wait(HANG_SECONDS)
        raise OSError("no answer")

    async def run() -> None:
        asking = asyncio.ensure_future(anext(trigger(deadline=time.time()).run()))
        await asyncio.sleep(0)
        loop_goes_on.set()
        await asking

    monkeypatch.setattr(GateChecker, "_check", ask)
    asyncio.run(run())
