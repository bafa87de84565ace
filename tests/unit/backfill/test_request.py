"""What can be asked of a backfill, and what is refused by its name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_exactlyonce.backfill.request import BackfillRequest, BackfillState, Output
from airflow_provider_exactlyonce.exceptions import RefusedError

HOUR = 3_600_000


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"commits": "17..25"}, {"commits": (17, 25)}),
        ({"commits": (17, 17)}, {"commits": (17, 17)}),
        ({"offsets": '{"in": {"0": [3, 9]}}'}, {"offsets": {"in": {0: (3, 9)}}}),
        ({"offsets": {"in": {1: [3, 3]}}}, {"offsets": {"in": {1: (3, 3)}}}),
        ({"watermark": "1970-01-01T00:00:00..1970-01-01T01:00:00+00:00"}, {"watermark": (0, HOUR)}),
        ({"start": "1970-01-01 01:00:00+01:00", "end": datetime(1970, 1, 1, 1, tzinfo=UTC)}, {"time": (0, HOUR)}),
    ],
)
def test_a_range_is_read_as_people_and_templates_write_it(given: dict[str, Any], expected: dict[str, Any]) -> None:
    request = BackfillRequest.parse(**given)
    assert {name: getattr(request, name) for name in expected} == expected
    assert BackfillRequest.from_json(request.to_json()) == request


def test_what_differs_in_anything_has_another_name() -> None:
    given: list[dict[str, Any]] = [
        {"commits": "1..2"},
        {"commits": "1..3"},
        {"commits": "1..2", "output": "reemit"},
        {"commits": "1..2", "output": "topic=a"},
        {"commits": "1..2", "state": "empty"},
        {"commits": "1..2", "state": "empty", "warm_up": 2},
        {"start": "2026-01-01", "end": "2026-01-02", "state": "empty", "warm_up": "2h"},
        {"start": "2026-01-01", "end": "2026-01-02", "state": "empty", "warm_up": timedelta(hours=3)},
    ]
    assert len({BackfillRequest.parse(**arguments).name for arguments in given}) == len(given)
    assert BackfillRequest.parse(commits=" 1 .. 2 ").name == BackfillRequest.parse(commits=(1, 2)).name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one range: commits, offsets, watermark or time; given: none"),
        ({"commits": "1..2", "watermark": "2026-01-01..2026-01-02"}, "given: commits, watermark"),
        ({"commits": "0..2"}, "the first is at least 1"),
        ({"commits": "3..2"}, "not above the last"),
        ({"commits": "3-4"}, "is not FIRST..LAST"),
        ({"offsets": "[]"}, "is not {topic: {partition: [start, end]}}"),
        ({"offsets": {"in": {}}}, "names at least one partition"),
        ({"offsets": {"in": {0: [9, 3]}}}, "offsets 9 to 3 of in-0 are no range"),
        ({"watermark": "2026-01-02..2026-01-02"}, "is empty: its end must be later"),
        ({"watermark": "yesterday..2026-01-02"}, "watermark='yesterday' is no time as"),
        ({"start": "2026-01-01"}, "a range of time has a start and an end"),
        ({"commits": "1..2", "state": "full"}, "state 'full' of a backfill: savepoint or empty"),
        ({"commits": "1..2", "output": "sink"}, "reemit, compare or topic=NAME"),
        ({"commits": "1..2", "output": "topic="}, "reemit, compare or topic=NAME"),
        ({"commits": "1..2", "warm_up": 3}, "warm_up goes with state 'empty'"),
        ({"commits": "1..2", "state": "empty", "warm_up": "2h"}, "give a number of commits"),
        ({"commits": "1..2", "state": "empty", "warm_up": 0}, "warm_up 0: above 0"),
        ({"commits": "1..2", "state": "empty", "warm_up": "soon"}, "neither a number of commits nor a duration"),
    ],
)
def test_what_can_not_be_is_refused_by_its_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError) as refused:
        BackfillRequest.parse(**given)
    assert message in str(refused.value)


def test_the_output_says_where_rows_go() -> None:
    other = BackfillRequest.parse(commits="1..2", output="topic=shop.fixed")
    assert (other.kind, other.topic) == (Output.TOPIC, "shop.fixed")
    same = BackfillRequest.parse(commits="1..2")
    assert (same.kind, same.topic, same.state) == (Output.COMPARE, None, BackfillState.SAVEPOINT)
