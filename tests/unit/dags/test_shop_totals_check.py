from __future__ import annotations

from decimal import Decimal

from dags import shop_totals_check
from demo import purchases

TOTALS = [("ann", (1, Decimal(2))), ("bob", (1, Decimal(3))), ("ann", (3, Decimal(9)))]


def test_the_newest_total_of_each_customer_counts() -> None:
    newest, problems = shop_totals_check.newest_of(iter(TOTALS))

    assert newest == {"ann": (3, Decimal(9)), "bob": (1, Decimal(3))}
    assert problems == []


def test_a_number_of_purchases_that_comes_twice_or_goes_back_is_named() -> None:
    _, problems = shop_totals_check.newest_of(iter([*TOTALS, ("ann", (3, Decimal(9))), ("ann", (2, Decimal(5)))]))

    assert problems == ["customer ann: the total of 3 purchases came twice", "customer ann: 2 purchases after 3"]


def test_the_check_and_the_demo_read_the_same_sums_from_the_file() -> None:
    assert shop_totals_check.totals_of(purchases.FILE) == purchases.totals(purchases.read())
