"""Where a ledger's commits are cut into ranges."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_provider_exactlyonce.ledger.ranges import UNIT_MILLISECONDS, CommittedRange, Cut, Cutter, Unit
from airflow_provider_exactlyonce.ledger.records import CommitRecord, SinkRange
from tests.ledger_records import commit_record

MIDNIGHT = 1_767_225_600_000  # 2026-01-01T00:00:00Z
MINUTE = 60_000


def commit(number: int, minutes: float | None = None) -> tuple[int, CommitRecord]:
    """Return a commit and its offset in the ledger.

    :param minutes: its watermark, after midnight
    """
    record = commit_record(
        number,
        pipeline="shop",
        source={"in": {0: (10 * number, 10 * number + 10)}},
        sink={"out": {number % 2: SinkRange(first=3 * number, last=3 * number + 1, rows=2, digest=0)}},
        watermark=0 if minutes is None else MIDNIGHT + int(minutes * MINUTE),
        rows=2,
        producer_id=0,
        epoch=0,
    )
    return 2 * number, record


COMMITS = [
    commit(1),
    commit(2, 30),
    commit(3, 59.9),
    commit(4, 60),
    commit(5, 70),
    commit(6, 65),  # behind the one before, as after a restore
    commit(7, 200),
    commit(8, 200),
    commit(9, 239),
    commit(10, 60 * 24 + 1),
]


def ranges(unit: Unit | None, cut: Cut | None = None) -> list[tuple[CommittedRange, Cut]]:
    cut = cut or Cut(topic_id="T")
    return list(Cutter(unit, cut).take(numbered for numbered in COMMITS if numbered[1].commit > cut.commit))


def test_each_commit_is_a_range() -> None:
    in_order = [committed for committed, _ in ranges(None)]
    assert [(committed.first, committed.last) for committed in in_order] == [
        (number, number) for number in range(1, 11)
    ]
    assert in_order[2] == CommittedRange(
        key="shop.T.commit.3",
        pipeline="shop",
        first=3,
        last=3,
        source={"in": {0: (30, 40)}},
        sink={"out": {1: (9, 10)}},
        rows=2,
        watermark=MIDNIGHT + 3_594_000,
    )


def test_a_range_ends_with_the_commit_that_completes_an_hour() -> None:
    in_order = [committed for committed, _ in ranges("hour")]
    assert [(committed.first, committed.last, committed.partitions) for committed in in_order] == [
        (1, 2, ("2025-12-31T23:00:00",)),  # no more is known of what was before the first watermark
        (3, 4, ("2026-01-01T00:00:00",)),
        (5, 7, ("2026-01-01T01:00:00", "2026-01-01T02:00:00")),
        (8, 10, tuple(f"2026-01-01T{hour:02}:00:00" for hour in range(3, 24))),
    ]
    assert in_order[2].source == {"in": {0: (50, 80)}}
    assert in_order[2].sink == {"out": {0: (18, 19), 1: (15, 22)}}
    assert in_order[2].rows == 6


def test_a_range_ends_with_the_commit_that_completes_a_day() -> None:
    in_order = [committed for committed, _ in ranges("day")]
    assert [(committed.first, committed.last, committed.partitions) for committed in in_order] == [
        (1, 2, ("2025-12-31T00:00:00",)),
        (3, 10, ("2026-01-01T00:00:00",)),
    ]


@pytest.mark.parametrize("unit", [None, "hour", "day"])
def test_whoever_goes_on_at_a_stored_cut_makes_the_same_ranges(unit: Unit | None) -> None:
    cuts = ranges(unit)
    for done, (_, cut) in enumerate(cuts, start=1):
        stored = Cut.parse(json.loads(json.dumps(cut.to_json())))
        assert stored == cut
        assert ranges(unit, stored) == cuts[done:]
    assert len({committed.key for committed, _ in cuts}) == len(cuts)


@pytest.mark.parametrize("unit", [None, "hour"])
def test_commits_that_come_one_by_one_are_cut_as_all_at_once(unit: Unit | None) -> None:
    cutter = Cutter(unit, Cut(topic_id="T"))
    assert [pair for numbered in COMMITS for pair in cutter.take([numbered])] == ranges(unit)


def test_a_key_may_be_the_name_of_a_file() -> None:
    [(committed, cut)] = list(Cutter(None, Cut(topic_id="bMQYTfP+T/avSquuvWXeNQ")).take([commit(1)]))
    assert committed.key == "shop.bMQYTfP-T_avSquuvWXeNQ.commit.1"
    assert cut.topic_id == "bMQYTfP+T/avSquuvWXeNQ"


def test_commits_that_retention_has_deleted_are_named() -> None:
    [(committed, _)] = list(Cutter(None, Cut(topic_id="T", commit=3)).take([commit(7)]))
    assert committed.lost == (4, 6)
    assert committed.key == "shop.T.commit.7"


@pytest.mark.parametrize("unit", [None, "hour"])
def test_a_range_survives_json(unit: Unit | None) -> None:
    for committed, _ in ranges(unit):
        assert CommittedRange.parse(json.loads(json.dumps(committed.to_json()))) == committed
    assert ranges(unit)[-1][0].to_json()["watermark_time"] == "2026-01-02T00:01:00Z"


def test_a_watermark_that_no_calendar_has_is_its_number() -> None:
    [(committed, _)] = list(Cutter(None, Cut(topic_id="T")).take([commit(1, 10**12)]))
    assert committed.to_json()["watermark_time"] == str(committed.watermark)


@pytest.mark.parametrize("unit", ["hour", "day"])
def test_a_watermark_that_jumps_completes_no_more_partitions_than_an_event_can_carry(unit: Unit) -> None:
    sentinel = 253_402_214_400_000  # 9999-12-31T00:00:00Z
    cut = Cut(topic_id="T", watermark=MIDNIGHT + 90 * MINUTE)
    far = (2, replace(commit(1)[1], watermark=sentinel))
    [(committed, cut)] = list(Cutter(unit, cut).take([far, (4, replace(far[1], commit=2))]))
    assert committed.partitions[0] == ("2026-01-01T01:00:00" if unit == "hour" else "2026-01-01T00:00:00")
    assert len(committed.partitions) == 10_000
    length = UNIT_MILLISECONDS[unit]
    assert 10_000 + committed.partitions_left_out == sentinel // length - (MIDNIGHT + 90 * MINUTE) // length
    assert CommittedRange.parse(json.loads(json.dumps(committed.to_json()))) == committed
    assert cut.watermark == sentinel


def test_partitions_that_no_calendar_has_are_told_by_their_numbers() -> None:
    [(committed, _)] = list(Cutter("day", Cut(topic_id="T")).take([(2, replace(commit(1)[1], watermark=10**15))]))
    assert committed.partitions == (str((10**15 // 86_400_000 - 1) * 86_400_000),)
