"""A pipeline's asset, as far as it goes without a cluster."""

from __future__ import annotations

import importlib
import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.serialization.encoders import encode_trigger

from airflow_provider_exactlyonce.assets.pipeline import committed_ranges, pipeline_asset
from airflow_provider_exactlyonce.ledger.ranges import CommittedRange
from airflow_provider_exactlyonce.triggers.committed_ranges import CommittedRangesTrigger


def made(number: int, key: str | None = None) -> CommittedRange:
    return CommittedRange(
        key=key or f"shop.T.commit.{number}",
        pipeline="shop",
        first=number,
        last=number,
        source={},
        sink={"out": {0: (number, number)}},
        rows=1,
        watermark=0,
    )


def event(committed: CommittedRange, minute: int = 0) -> Any:
    payload = json.loads(json.dumps(committed.to_json()))
    at = datetime(2026, 1, 1, 0, minute, tzinfo=UTC)
    return SimpleNamespace(extra={"from_trigger": True, "payload": payload}, timestamp=at)


class Events(list[Any]):
    """An asset's events, as far as Airflow's accessor is asked for them."""

    def after(self, since: str) -> list[Any]:
        return [event for event in self if event.timestamp >= datetime.fromisoformat(since)]


def test_a_pipeline_has_an_asset_of_its_own_per_partition() -> None:
    plain, hours = pipeline_asset("shop-totals"), pipeline_asset("shop-totals", partition="hour", kafka_conn_id="other")
    assert (plain.name, plain.uri) == ("exactlyonce://kafka_default/shop-totals",) * 2
    assert hours.uri == "exactlyonce://other/shop-totals/hour"
    assert hours.normalized_uri == hours.uri
    assert pipeline_asset("shop-totals") == plain


def test_an_event_of_another_trigger_is_no_range() -> None:
    asset, foreign = (
        pipeline_asset("shop"),
        SimpleNamespace(
            extra={"from_trigger": True, "payload": {"deadline": 1.0}}, timestamp=datetime(2026, 1, 1, tzinfo=UTC)
        ),
    )
    context = {
        "triggering_asset_events": {},
        "inlet_events": {asset: Events([event(made(1)), foreign, event(made(2))])},
    }
    assert committed_ranges(asset, context) == [made(1), made(2)]


@pytest.mark.parametrize("uri", ["exactlyonce://kafka_default", "exactlyonce:///shop", "exactlyonce://c/shop/week"])
def test_a_uri_that_is_no_pipelines_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="is not exactlyonce://<connection>/<pipeline>"):
        Asset(uri=uri)


def test_the_watcher_survives_the_metadata_database() -> None:
    [watcher] = pipeline_asset("shop", partition="day", start="oldest", poll_interval=2).watchers
    stored = json.loads(json.dumps(encode_trigger(watcher.trigger)))
    module, _, name = str(stored["classpath"]).rpartition(".")
    restored = getattr(importlib.import_module(module), name)(**stored["kwargs"])
    assert isinstance(restored, CommittedRangesTrigger)
    assert restored.serialize() == watcher.trigger.serialize()
    assert restored.shared_stream_key() == watcher.trigger.shared_stream_key()
    other = pipeline_asset("shop", partition="hour").watchers[0].trigger
    assert isinstance(other, CommittedRangesTrigger)
    assert other.shared_stream_key() != restored.shared_stream_key()


def test_ranges_come_in_their_order_and_once_from_the_runs_first_event_on() -> None:
    asset = pipeline_asset("shop")
    by_hand = SimpleNamespace(extra={"by": "hand"}, timestamp=datetime(2026, 1, 2, tzinfo=UTC))
    before, first, other = event(made(1)), event(made(3), 5), event(made(2), 5)
    again, kept_back = event(made(3), 6), event(made(4), 7)
    events = Events([before, first, other, by_hand, again, kept_back])
    context = {"triggering_asset_events": {asset: [other, first]}, "inlet_events": {asset: events}}
    assert committed_ranges(asset, context) == [made(2), made(3), made(4)]
    started_by_hand = {**context, "triggering_asset_events": {}}
    assert committed_ranges(asset, started_by_hand) == [made(1), made(2), made(3), made(4)]
