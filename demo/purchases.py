"""The purchases in the file, and the events that the demo makes of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parents[1] / "dags" / "data" / "cdnow.txt.gz"
_HEADER_LINES: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Purchase:
    """One line of the file.

    :param line: the line's number, the first line's being 1
    :param day: YYYYMMDD
    :param disks: how many CDs
    """

    line: int
    customer: str
    day: str
    disks: int
    dollars: Decimal

    @property
    def key(self) -> bytes:
        """The event's Kafka key."""
        return self.customer.encode()

    @property
    def value(self) -> bytes:
        """The event as JSON; the price keeps its digits, which a float would not."""
        body = {
            "event_id": self.line,
            "uuid": self.customer,
            "itemCode": f"cd-{self.disks}",
            "behavior": "pay",
            "ts": f"{self.day[:4]}-{self.day[4:6]}-{self.day[6:]}T00:00:00Z",
        }
        return f'{json.dumps(body)[:-1]}, "price": {self.dollars}}}'.encode()


def read(file: Path = FILE) -> list[Purchase]:
    """Read the file.

    :raises ValueError: naming the line that is no purchase
    """
    purchases = []
    with gzip.open(file, "rt") as lines:
        for number, line in enumerate(lines, start=1):
            if number <= _HEADER_LINES:
                continue
            try:
                customer, day, disks, dollars = line.split()
                purchase = Purchase(line=number, customer=customer, day=day, disks=int(disks), dollars=Decimal(dollars))
            except (ValueError, ArithmeticError) as error:
                problem = f"{file}, line {number}: {line.rstrip()!r} is not 'customer day CDs dollars'"
                raise ValueError(problem) from error
            purchases.append(purchase)
    return purchases


def in_order_of_time(purchases: Iterable[Purchase]) -> list[Purchase]:
    """Return the purchases as the shop saw them: by day, and on a day as in the file, which is sorted by customer."""
    return sorted(purchases, key=lambda purchase: purchase.day)


def totals(purchases: Iterable[Purchase]) -> dict[str, tuple[int, Decimal]]:
    """Add up: {customer: (purchases, dollars)}."""
    sums: dict[str, tuple[int, Decimal]] = {}
    for purchase in purchases:
        count, dollars = sums.get(purchase.customer, (0, Decimal(0)))
        sums[purchase.customer] = (count + 1, dollars + purchase.dollars)
    return sums
