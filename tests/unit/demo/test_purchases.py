from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path

import pytest

from demo import purchases


def test_the_file_holds_what_its_readme_says() -> None:
    bought = purchases.read()

    assert len(bought) == 69_659
    assert len({purchase.customer for purchase in bought}) == 23_570
    assert sum(purchase.dollars for purchase in bought) == Decimal("2500315.63")
    readme = purchases.FILE.with_name("README.md").read_text()
    assert all(figure in readme for figure in ("69,659", "23,570", "2,500,315.63"))


def test_an_event_keeps_the_digits_of_its_price() -> None:
    purchase = purchases.read()[0]

    assert b'"price": 11.77' in purchase.value
    assert json.loads(purchase.value, parse_float=Decimal) == {
        "event_id": 2,
        "uuid": "00001",
        "itemCode": "cd-1",
        "behavior": "pay",
        "ts": "1997-01-01T00:00:00Z",
        "price": Decimal("11.77"),
    }
    assert purchase.key == b"00001"


def test_the_order_of_time_keeps_each_customers_order() -> None:
    bought = purchases.read()
    fed = purchases.in_order_of_time(bought)

    assert [purchase.day for purchase in fed] == sorted(purchase.day for purchase in bought)
    by_customer = sorted(fed, key=lambda purchase: purchase.customer)
    assert [purchase.line for purchase in by_customer] == [purchase.line for purchase in bought]


def test_a_line_that_is_no_purchase_is_named(tmp_path: Path) -> None:
    file = tmp_path / "bad.txt.gz"
    file.write_bytes(gzip.compress(b"header\n 00001 19970101 1 11.77\n 00002 19970101 one 1.00\n"))

    with pytest.raises(ValueError, match=r"bad\.txt\.gz, line 3: ' 00002 19970101 one 1\.00' is not"):
        purchases.read(file)
