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
    found: Rows = defaultdict(list)
    in_basket = set()
    for one in given:
        key = (one.uuid, one.itemCode)
        if one.behavior == "add":
            status = None if key in in_basket else "added"
            in_basket.add(key)
        else:
            status = {"pay": "paid", "del": "cancelled"}[one.behavior] if key in in_basket else None
            in_basket.discard(key)
        if status:
            found[key].append((*key, status, one.event_id))
    return found


def alerts(given: Iterable[Event]) -> Rows:
    found: Rows = defaultdict(list)
    in_a_row: dict[tuple[str, str], list[int]] = defaultdict(list)
    for one in given:
        key = (one.uuid, one.itemCode)
        in_a_row[key] = [*in_a_row[key], one.event_id] if one.behavior == "add" else []
        if len(in_a_row[key]) == 3:
            found[key].append((*key, in_a_row.pop(key)))
    return found


def payments(given: Iterable[Event]) -> Rows:
    found: Rows = defaultdict(list)
    paid: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for one in given:
        key = (one.uuid, one.itemCode)
        if one.behavior == "pay":
            paid[key] += one.price
            found[key].append((*key, paid[key], one.event_id))
    return found


def averages(given: Iterable[Event]) -> Rows:
    found: Rows = defaultdict(list)
    prices: dict[str, tuple[Decimal, int]] = defaultdict(lambda: (Decimal(0), 0))
    for one in given:
        total, n = prices[one.uuid]
        prices[one.uuid] = total, n = total + one.price, n + 1
        found[one.uuid,].append((one.uuid, round(total / n, 4), one.event_id))
    return found


def distinct(given: Iterable[Event]) -> Rows:
    found: Rows = defaultdict(list)
    seen = set()
    for one in given:
        if one.event_id not in seen:
            seen.add(one.event_id)
            found[one.uuid,].append((one.uuid, one.itemCode, one.behavior, one.price, one.event_id))
    return found


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
