"""The shop's example functions in the harness, against plain Python."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import asdict

import pytest

from airflow_provider_exactlyonce.state import KeyedHarness
from tests import shop

EVENTS = list(shop.events(4000, users=60, seed=7))


@pytest.mark.parametrize("job", shop.JOBS)
@pytest.mark.parametrize("batches", [1, 13])
def test_a_shop_program_gives_what_plain_python_gives_however_the_events_are_cut(job: str, batches: int) -> None:
    name, key = shop.JOBS[job]
    harness = KeyedHarness(getattr(shop.module_of(job), name)(), key)
    rows = [{**asdict(event), "position": position} for position, event in enumerate(EVENTS)]
    outputs: shop.Rows = defaultdict(list)
    size = -(-len(rows) // batches)
    for start in range(0, len(rows), size):
        for row in harness.process(rows[start : start + size][::-1]):  # Spark does not keep the order either
            outputs[row[: len(key)]].append(tuple(row))
    expected = shop.EXPECTED[job](EVENTS)
    assert outputs == expected
    assert sum(map(len, expected.values())) > 50, "the events try the program"


def test_the_events_try_what_is_hard() -> None:
    deliveries = Counter(event.event_id for event in EVENTS)
    assert max(deliveries.values()) > 1, "some come twice"
    assert sum(earlier.ts > later.ts for earlier, later in itertools.pairwise(EVENTS)) > 100, "some are late"
    assert list(shop.events(4000, users=60, seed=7)) == EVENTS
    assert {status for rows in shop.orders(EVENTS).values() for *_, status, _ in rows} == {"added", "paid", "cancelled"}


def test_a_zero_stops_the_counting_and_leaves_the_counts() -> None:
    harness = KeyedHarness(shop.module_of("shop_counts").Counts(), "copy")
    assert harness.process([{"copy": 0, "number": 5}, {"copy": 1, "number": 2}]) == [("0", 1), ("1", 1)]
    with pytest.raises(ZeroDivisionError):
        harness.process([{"copy": 0, "number": 5}, {"copy": 1, "number": 0}])
    assert harness.process([{"copy": 0, "number": 5}]) == [("0", 2)]


def test_a_buffer_gives_out_parcels_of_ten_and_keeps_the_rest() -> None:
    harness = KeyedHarness(shop.module_of("shop_parcels").Parcels(), "copy")
    given = [{"copy": 0, "event_id": number} for number in range(47)]
    parcels = [row.event_ids for rows in (given[:4], given[4:30], given[30:]) for row in harness.process(rows)]
    assert parcels == [list(range(start, start + 10)) for start in range(0, 40, 10)]
    assert harness.state("buffer", 0) == list(range(40, 47))
