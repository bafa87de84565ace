"""Rows by their key: the last of each, keys of which nobody knows it, and rows that have one of some keys."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_exactlyonce.streaming.sinks.lakehouse.keys import KeyColumns, among, find_null, numbers


def columns(order: str | None = None) -> KeyColumns:
    return KeyColumns(key=("a", "b"), order=order, deleted=None)


def table(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.table({name: [row[at] for row in rows] for at, name in enumerate("abo"[: len(rows[0])])})


@pytest.mark.parametrize("seed", range(5))
def test_the_last_of_each_key_is_the_one_with_the_greatest_order(seed: int) -> None:
    chance = random.Random(seed)
    orders = chance.sample(range(-500, 500), 300)
    rows = [(chance.randrange(9), f"k{chance.randrange(3)}", order) for order in orders]
    rows[0] = (rows[0][0], rows[0][1], None)  # type: ignore[assignment]  # before all
    last, ambiguous = columns("o").last_of_each(table(*rows), None)
    greatest: dict[tuple[int, str], int] = {}
    for number, (a, b, order) in enumerate(rows):
        known = rows[greatest[a, b]][2] if (a, b) in greatest else None
        if (a, b) not in greatest or (order is not None and (known is None or order > known)):
            greatest[a, b] = number
    assert ambiguous is None
    assert [number for number, is_last in enumerate(last.to_pylist()) if is_last] == sorted(greatest.values())


def test_without_an_order_it_is_the_one_with_the_greatest_rank() -> None:
    rows = table((1, "x"), (2, "x"), (1, "x"))
    assert columns().last_of_each(rows, numbers(3)) == (pa.array([False, True, True]), None)


@pytest.mark.parametrize(
    ("rows", "order"),
    [
        ([(1, "x"), (2, "x"), (1, "x")], None),
        ([(1, "x", 5), (1, "x", 7), (1, "x", 7)], "o"),
        ([(1, "x", None), (1, "x", None), (2, "x", 1)], "o"),
    ],
)
def test_a_key_of_which_nobody_knows_the_last_row_is_named(rows: list[tuple[Any, ...]], order: str | None) -> None:
    assert columns(order).last_of_each(table(*rows), None)[1] == {"a": 1, "b": "x"}


def test_a_key_with_a_time_of_which_python_has_none_is_named() -> None:
    day = pa.array([2_932_897, 2_932_897], pa.int32()).cast(pa.date32())
    keys = pa.table({"a": day, "b": ["x", "x"]})
    assert columns().last_of_each(keys, None)[1] == {"a": "10000-01-01", "b": "x"}


def test_rows_are_found_by_their_whole_key_and_null_is_none() -> None:
    rows = table((1, "x"), (1, "y"), (None, "x"), (2, "x"))
    assert among(rows, table((1, "x"), (1, "x"), (None, "x"), (3, "x"))).to_pylist() == [True, False, False, False]
    assert find_null(rows) == {"a": None, "b": "x"}
    assert find_null(rows.slice(0, 2)) is None


def test_nothing_has_no_last_row() -> None:
    empty = table((1, "x", 1)).slice(0, 0)
    assert columns("o").last_of_each(empty, None) == (pa.array([], pa.bool_()), None)
    assert among(empty.select(["a", "b"]), empty.select(["a", "b"])).to_pylist() == []


@pytest.mark.parametrize("names", [("row", "rank", "rank_max"), ("1", "0", "count_all"), (".a", "..", "a[0].b")])
def test_a_key_may_have_any_names(names: tuple[str, ...]) -> None:
    key = KeyColumns(key=names, order="o", deleted=None)
    rows = pa.table({**{name: [1, 2, 1] for name in names}, "o": [1, 1, 2]})
    assert key.last_of_each(rows, None) == (pa.array([False, True, True]), None)
    assert among(rows.select(names), rows.select(names).slice(1, 1)).to_pylist() == [False, True, False]
    assert key.last_of_each(rows.set_column(3, "o", [[1, 1, 1]]), None)[1] == dict.fromkeys(names, 1)
