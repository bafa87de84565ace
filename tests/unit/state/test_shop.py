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
    found: shop.Rows = defaultdict(list)
    size = -(-len(rows) // batches)
    for start in range(0, len(rows), size):
        for row in harness.process(rows[start : start + size][::-1]):  # Spark does not keep the order either
            found[row[: len(key)]].append(tuple(row))
    expected = shop.EXPECTED[job](EVENTS)
    assert found == expected
    assert sum(map(len, expected.values())) > 50, "the events try the program"


def test_the_events_try_what_is_hard() -> None:
    deliveries = Counter(event.event_id for event in EVENTS)
    assert max(deliveries.values()) > 1, "some come twice"
    assert sum(one.ts > other.ts for one, other in itertools.pairwise(EVENTS)) > 100, "some are late"
    assert list(shop.events(4000, users=60, seed=7)) == EVENTS
    assert {status for rows in shop.orders(EVENTS).values() for *_, status, _ in rows} == {"added", "paid", "cancelled"}
