"""The four kinds of queries that go through the matrix: what is sent, and what must come out of each batch.

Nothing here is Spark's: the rows that a batch owes are computed from its events in plain Python. Event times only rise,
so that no event is late.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

WINDOW_SECONDS = 10
BURST_SECONDS = 60
START_SECONDS = 1_000_000
KEYS = 7

STATELESS, WINDOWED, UPDATE, NO_DATA = "stateless", "windowed append", "update", "no-data batches"
SHAPES = (STATELESS, WINDOWED, UPDATE, NO_DATA)
#: Their source has one partition: a burst, sent in one transaction, is then one batch, and none of its events is late.
WITH_WATERMARK = (WINDOWED, NO_DATA)


@dataclass(frozen=True)
class Event:
    """A source record."""

    id: int
    k: str
    t: int


def burst(number: int, first_id: int, count: int) -> list[Event]:
    """Return the events of one burst: later than those of every burst before."""
    start = START_SECONDS + number * BURST_SECONDS
    return [Event(first_id + i, f"k{(first_id + i) % KEYS}", start + i * BURST_SECONDS // count) for i in range(count)]


def canonical(row: dict[str, Any]) -> str:
    """Return a row's JSON in one spelling."""
    return json.dumps(row, sort_keys=True)


def key_of(row: str) -> str:
    """Return the key of a row of updates."""
    return str(json.loads(row)["k"])


@dataclass
class Model:
    """What the batches of one pipeline owe; told of them in their order."""

    shape: str
    watermark: int = 0
    totals: dict[str, tuple[int, int]] = field(default_factory=dict)
    windows: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)

    def rows(self, events: Iterable[Event]) -> Counter[str]:
        """Return the rows that the next batch writes."""
        events = list(events)
        if self.shape == STATELESS:
            return Counter(canonical({"id": event.id, "k": event.k}) for event in events)
        if self.shape == UPDATE:
            return self._updates(events)
        return self._closed(events)

    def _updates(self, events: list[Event]) -> Counter[str]:
        for event in events:
            self.totals[event.k] = _added(self.totals.get(event.k), event.id)
        touched = {event.k for event in events}
        return Counter(canonical({"k": k, "n": self.totals[k][0], "total": self.totals[k][1]}) for k in touched)

    def _closed(self, events: list[Event]) -> Counter[str]:
        for event in events:
            place = event.t // WINDOW_SECONDS * WINDOW_SECONDS, event.k
            self.windows[place] = _added(self.windows.get(place), event.id)
        closed = [place for place in self.windows if place[0] + WINDOW_SECONDS <= self.watermark]
        self.watermark = max([self.watermark, *(event.t for event in events)])  # the next batch's
        return Counter(
            canonical({"start": start, "k": k, "n": n, "total": total})
            for start, k in closed
            for n, total in [self.windows.pop((start, k))]
        )


def _added(before: tuple[int, int] | None, number: int) -> tuple[int, int]:
    count, total = before or (0, 0)
    return count + 1, total + number
