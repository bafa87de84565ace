"""Events of a shop, made with a seed, and what each shop program has to make of them: in plain Python."""

from __future__ import annotations

import datetime as dt
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from types import ModuleType
from typing import Any

from airflow_provider_exactlyonce.streaming.job import loader

START = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
#: The example jobs that keep state: the name of the function that does, and the columns of its key.
JOBS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "shop_orders": ("Orders", ("uuid", "itemCode")),
    "shop_alerts": ("ThreeAdds", ("uuid", "itemCode")),
    "shop_payments": ("Payments", ("uuid", "itemCode")),
    "shop_averages": ("Averages", ("uuid",)),
    "shop_distinct": ("Distinct", ("uuid",)),
}


@dataclass(frozen=True)
class Event:
    event_id: int
    uuid: str
    itemCode: str  # noqa: N815 - as producers spell it
    behavior: str
    price: Decimal
    ts: dt.datetime

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "price": float(self.price), "ts": self.ts.isoformat()}


def events(count: int, *, users: int, seed: int) -> Iterator[Event]:
    """Yield events in the order of their arrival: one in 30 is delivered again, one in 20 is late by up to an hour."""
    chance = random.Random(seed)
    last: dict[str, Event] = {}
    number = 0
    for arrival in range(count):
        uuid = f"u{chance.randrange(users):05}"
        if uuid in last and chance.random() < 1 / 30:
            yield last[uuid]
            continue
        at = START + dt.timedelta(seconds=arrival // 10)
        if chance.random() < 1 / 20:
            at -= dt.timedelta(seconds=chance.randrange(3600))
        event = Event(
            event_id=number,
            uuid=uuid,
            itemCode=f"i{chance.randrange(6)}",
            behavior=chance.choices(("add", "pay", "del"), (6, 3, 2))[0],
            price=Decimal(chance.randrange(1, 50_000)) / 100,
            ts=at,
        )
        number += 1
        if uuid not in last or chance.random() < 0.5:  # what is delivered again may lie some events back
            last[uuid] = event
        yield event


Rows = dict[tuple[str, ...], list[tuple[Any, ...]]]


def orders(given: Iterable[Event]) -> Rows:
    rows: Rows = defaultdict(list)
    in_basket = set()
    for event in given:
        key = (event.uuid, event.itemCode)
        if event.behavior == "add":
            status = None if key in in_basket else "added"
            in_basket.add(key)
        else:
            status = {"pay": "paid", "del": "cancelled"}[event.behavior] if key in in_basket else None
            in_basket.discard(key)
        if status:
            rows[key].append((*key, status, event.event_id))
    return rows


def alerts(given: Iterable[Event]) -> Rows:
    rows: Rows = defaultdict(list)
    in_a_row: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in given:
        key = (event.uuid, event.itemCode)
        in_a_row[key] = [*in_a_row[key], event.event_id] if event.behavior == "add" else []
        if len(in_a_row[key]) == 3:
            rows[key].append((*key, in_a_row.pop(key)))
    return rows


def payments(given: Iterable[Event]) -> Rows:
    rows: Rows = defaultdict(list)
    paid: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for event in given:
        key = (event.uuid, event.itemCode)
        if event.behavior == "pay":
            paid[key] += event.price
            rows[key].append((*key, paid[key], event.event_id))
    return rows


def averages(given: Iterable[Event]) -> Rows:
    rows: Rows = defaultdict(list)
    prices: dict[str, tuple[Decimal, int]] = defaultdict(lambda: (Decimal(0), 0))
    for event in given:
        total, n = prices[event.uuid]
        prices[event.uuid] = total, n = total + event.price, n + 1
        rows[event.uuid,].append((event.uuid, round(total / n, 4), event.event_id))
    return rows


def distinct(given: Iterable[Event]) -> Rows:
    rows: Rows = defaultdict(list)
    seen = set()
    for event in given:
        if event.event_id not in seen:
            seen.add(event.event_id)
            rows[event.uuid,].append((event.uuid, event.itemCode, event.behavior, event.price, event.event_id))
    return rows


EXPECTED: Mapping[str, Callable[[Iterable[Event]], Rows]] = {
    "shop_orders": orders,
    "shop_alerts": alerts,
    "shop_payments": payments,
    "shop_averages": averages,
    "shop_distinct": distinct,
}


def module_of(job: str) -> ModuleType:
    """Return an example job's module."""
    pipeline = loader.load(f"dags/jobs/{job}.py")
    module = ModuleType(job)
    vars(module).update(pipeline.function.__globals__)
    return module
