"""What a gate accepts as a target, and how it says what is missing."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pendulum
import pytest

from airflow_provider_exactlyonce.ledger.gate_target import GateTarget
from tests.ledger_records import commit_record

NEW_YEAR = 1_767_225_600_000  # 2026-01-01T00:00:00Z


@pytest.mark.parametrize("given", [{}, {"commit": 1, "watermark": NEW_YEAR}, {"commit": 1, "offsets": {"t": {0: 1}}}])
def test_a_gate_has_exactly_one_target(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exactly one of commit, watermark, offsets, timestamp, up_to_now"):
        GateTarget.parse(**given)


@pytest.mark.parametrize("value", [12, "12", " 12 "])
def test_a_commit_is_a_number_or_a_rendered_one(value: int | str) -> None:
    assert GateTarget.parse(commit=value).commit == 12


@pytest.mark.parametrize("value", ["", "None", "12.0", "-1", -1, True, 1.0])
def test_what_a_template_renders_from_nothing_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="commit="):
        GateTarget.parse(commit=value)


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, 5, tzinfo=timezone(timedelta(hours=5))),
        datetime(2026, 1, 1),
        pendulum.datetime(2026, 1, 1),
        "2026-01-01",
        "2026-01-01T00:00:00Z",
        "2026-01-01 00:00:00+00:00",
        "2025-12-31T19:00:00-05:00",
        NEW_YEAR,
        str(NEW_YEAR),
    ],
)
@pytest.mark.parametrize("name", ["watermark", "timestamp"])
def test_a_moment_is_read_in_every_form_that_templates_render(name: str, value: Any) -> None:
    assert GateTarget.parse(**{name: value}).to_json() == {name: NEW_YEAR}


@pytest.mark.parametrize("value", ["", "None", "yesterday", NEW_YEAR // 1000, str(NEW_YEAR // 1000)])
def test_a_moment_that_is_none_or_in_seconds_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="watermark="):
        GateTarget.parse(watermark=value)


@pytest.mark.parametrize("value", [{"t": {0: 5, "1": "7"}}, '{"t": {"0": 5, "1": 7}}'])
def test_offsets_are_a_mapping_or_json(value: Any) -> None:
    assert GateTarget.parse(offsets=value).offsets == {"t": {0: 5, 1: 7}}


@pytest.mark.parametrize("value", [{}, {"t": {}}, "", "[]", "None", {"t": 5}, {"t": {"x": 5}}, {"t": {0: -2}}])
def test_offsets_of_another_shape_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"offset|partition"):
        GateTarget.parse(offsets=value)


@pytest.mark.parametrize(
    "target",
    [
        GateTarget(commit=3),
        GateTarget(watermark=NEW_YEAR),
        GateTarget(timestamp=NEW_YEAR),
        GateTarget(up_to_now=True),
        GateTarget(offsets={"a": {0: 1, 11: 2}, "b": {3: 4}}),
    ],
)
def test_a_target_survives_json(target: GateTarget) -> None:
    assert GateTarget.parse(**json.loads(json.dumps(target.to_json()))) == target


def test_a_commit_says_how_many_are_missing() -> None:
    assert GateTarget(commit=20).missing(commit_record(12)) == ["commit 12 of 20: 8 missing"]
    assert GateTarget(commit=20).missing(commit_record(20)) == []
    assert GateTarget(commit=20).missing(commit_record(21)) == []


def test_a_watermark_says_by_how_much_it_is_short() -> None:
    target = GateTarget(watermark=NEW_YEAR + 35 * 60_000)
    assert target.missing(commit_record(1, watermark=NEW_YEAR)) == [
        "watermark 2026-01-01T00:00:00Z is 35 min short of 2026-01-01T00:35:00Z"
    ]
    assert target.missing(commit_record(1, watermark=NEW_YEAR + 35 * 60_000)) == []
    assert GateTarget(watermark=10**15).missing(commit_record(1, watermark=10**15 - 5000)) == [
        "watermark 999999999995000 is 5 s short of 1000000000000000"
    ]
    [no_watermark] = target.missing(commit_record(1))
    assert no_watermark.startswith("commit 1 has no watermark")


def test_offsets_are_named_by_partition_unless_there_is_nothing_before_them() -> None:
    record = commit_record(4, source={"shop.events": {0: (0, 500), 2: (100, 120)}})
    target = GateTarget(offsets={"shop.events": {0: 500, 2: 500, 3: 1, 4: 0}})
    assert target.missing(record) == [
        "shop.events-2: committed up to 120 of 500",
        "shop.events-3: commit 4 does not read it, 1 wanted",
    ]


@pytest.mark.parametrize(
    ("target", "is_empty"),
    [
        (GateTarget(commit=0), True),
        (GateTarget(commit=1), False),
        (GateTarget(offsets={"t": {0: 0, 1: 0}}), True),
        (GateTarget(offsets={"t": {0: 0, 1: 5}}), False),
        (GateTarget(watermark=0), False),
        (GateTarget(up_to_now=True), False),
    ],
)
def test_of_an_empty_source_there_is_nothing_to_wait_for(target: GateTarget, *, is_empty: bool) -> None:
    assert target.is_empty is is_empty
