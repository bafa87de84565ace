"""The five states, against what they mean; and how often they ask the store."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError, StateValueError
from airflow_provider_exactlyonce.state import (
    AggregatingState,
    KeyedHarness,
    KeyedProcessFunction,
    ListState,
    MapState,
    Record,
    ReducingState,
    ValueState,
)
from airflow_provider_exactlyonce.state.operator import KeyedOperator
from tests.unit.state.functions import Counting, Everything


def rows(*values: int | None) -> list[Record]:
    return [Record.of({"k": "a", "i": value, "v": None if value is None else Decimal(value)}) for value in values]


def test_each_state_is_read_once_and_written_once_however_many_rows_a_key_has() -> None:
    counting = Counting()
    for _ in range(2):
        operator = KeyedOperator(Everything(), ["k"], counting)
        counting.calls.clear()
        given = list(operator.rows(("a",), rows(1, 2, 3, 1, 2)))
    assert given[-1][1:] == (10, Decimal(18), Decimal("1.8"), [1, 2, 3, 1, 2] * 2, 3)
    assert dict(counting.calls) == {
        **{f"{name}.{call}": 1 for name in ("count", "total", "average") for call in ("get", "update")},
        "seen.get": 1,
        "seen.append": 1,
        "by_value.get": 1,  # of the first value; the second row's look at all keys reads the rest
        "by_value.items": 1,
        "by_value.put": 3,
    }


def test_a_state_that_is_not_used_is_not_read_and_one_that_is_not_changed_is_not_written() -> None:
    counting = Counting()
    operator = KeyedOperator(Everything(), ["k"], counting)
    assert list(operator.rows(("a",), rows(None))) == []
    assert dict(counting.calls) == dict.fromkeys(
        ["count.clear", "total.clear", "average.clear", "seen.clear", "by_value.clear"], 1
    )


class Model:
    """What the five states mean, in a few lines of Python."""

    def __init__(self) -> None:
        self.value: int | None = None
        self.sum: int | None = None
        self.list: list[int] = []
        self.map: dict[int, int] = {}


class Steps(KeyedProcessFunction[Any, Any]):
    """Does what its rows say, and gives out what it then sees."""

    output = "value INT, sum INT, elements ARRAY<INT>, entries MAP<INT, INT>, one INT, has BOOLEAN, empty BOOLEAN"
    value: ValueState[int] = ValueState("INT")
    sum: ReducingState[int] = ReducingState("INT", reduce=lambda left, right: left + right)
    list: ListState[int] = ListState("INT")
    map: MapState[int, int] = MapState("INT", "INT")

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        for step, number in value.steps:
            STEPS[step](self, number)
        if value.look:
            third, has = self.map.get(3), self.map.contains(4)
            yield (
                self.value.value(),
                self.sum.get(),
                self.list.get(),
                dict(self.map.items()),
                third,
                has,
                self.map.is_empty(),
            )


STEPS: dict[str, Callable[[Any, int], Any]] = {
    "update": lambda f, n: f.value.update(n),
    "update None": lambda f, n: f.value.update(None),
    "clear value": lambda f, n: f.value.clear(),
    "add": lambda f, n: f.sum.add(n),
    "clear sum": lambda f, n: f.sum.clear(),
    "append": lambda f, n: f.list.add(n),
    "append all": lambda f, n: f.list.add_all([n, n + 1]),
    "replace": lambda f, n: f.list.update([n]),
    "read list": lambda f, n: f.list.get().append(99),
    "clear list": lambda f, n: f.list.clear(),
    "put": lambda f, n: f.map.put(n % 6, n),
    "put all": lambda f, n: f.map.put_all({n % 6: n, 5: n}),
    "remove": lambda f, n: f.map.remove(n % 6),
    "look into map": lambda f, n: f.map.get(n % 6),
    "clear map": lambda f, n: f.map.clear(),
}
MEANS: dict[str, Callable[[Model, int], Any]] = {
    "update": lambda m, n: setattr(m, "value", n),
    "update None": lambda m, n: setattr(m, "value", None),
    "clear value": lambda m, n: setattr(m, "value", None),
    "add": lambda m, n: setattr(m, "sum", n + (m.sum or 0)),
    "clear sum": lambda m, n: setattr(m, "sum", None),
    "append": lambda m, n: m.list.append(n),
    "append all": lambda m, n: m.list.extend([n, n + 1]),
    "replace": lambda m, n: setattr(m, "list", [n]),
    "read list": lambda m, n: None,
    "clear list": lambda m, n: m.list.clear(),
    "put": lambda m, n: m.map.update({n % 6: n}),
    "put all": lambda m, n: m.map.update({n % 6: n, 5: n}),
    "remove": lambda m, n: m.map.pop(n % 6, None),
    "look into map": lambda m, n: None,
    "clear map": lambda m, n: m.map.clear(),
}


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_calls_gives_what_the_states_mean_within_a_batch_and_over_batches(seed: int) -> None:
    chance = random.Random(seed)
    harness, model = KeyedHarness(Steps(), "k"), Model()
    for _ in range(12):
        batch, expected = [], []
        for _ in range(chance.randint(1, 3)):
            steps = [(chance.choice(list(STEPS)), chance.randint(0, 50)) for _ in range(chance.randint(0, 5))]
            look = chance.random() < 0.6
            batch.append({"k": "a", "steps": steps, "look": look})
            for step, number in steps:
                MEANS[step](model, number)
            if look:
                given = (model.value, model.sum, [*model.list], {**model.map}, model.map.get(3), 4 in model.map)
                expected.append((*given, not model.map))
        assert [tuple(row) for row in harness.process(batch)] == expected
        assert harness.state("value", "a") == model.value
        assert harness.state("list", "a") == model.list
        assert harness.state("map", "a") == model.map
    assert harness.state("sum", "another") is None


def test_what_a_caller_does_to_a_value_that_it_was_given_changes_no_state() -> None:
    class Sharing(KeyedProcessFunction[Any, Any]):
        output = "a ARRAY<INT>, b ARRAY<INT>, c ARRAY<INT>"
        one: ValueState[list[int]] = ValueState("ARRAY<INT>")
        many: ListState[list[int]] = ListState("ARRAY<INT>")
        named: MapState[str, list[int]] = MapState("STRING", "ARRAY<INT>")

        def process_element(self, value: Any, context: Any) -> Iterator[Any]:
            mine = [1]
            self.one.update(mine)
            self.many.add(mine)
            self.named.put("x", mine)
            mine.append(2)
            for given in (self.one.value(), self.many.get()[0], self.named.get("x")):
                assert given is not None
                given.append(3)
            for _, given in self.named.items():
                given.append(4)
            yield self.one.value(), self.many.get()[0], self.named.get("x")

    assert KeyedHarness(Sharing(), "k").process([{"k": 1}]) == [([1], [1], [1])]


def test_what_an_aggregating_state_merges_counts_as_added() -> None:
    class Merging(KeyedProcessFunction[Any, Any]):
        output = "average DECIMAL(12,4)"
        average = Everything.average

        def process_element(self, value: Any, context: Any) -> Iterator[Any]:
            self.average.merge((value.total, value.n))
            yield (self.average.get(),)

    harness = KeyedHarness(Merging(), "k")
    assert harness.process([{"k": 1, "total": Decimal(10), "n": 4}]) == [(Decimal("2.5"),)]
    assert harness.process([{"k": 1, "total": Decimal(2), "n": 1}]) == [(Decimal("2.4"),)]


def test_merging_without_a_merge_is_refused() -> None:
    class Merging(KeyedProcessFunction[Any, Any]):
        output = "n INT"
        sum: AggregatingState[int, int, int] = AggregatingState(
            "INT", create=int, add=lambda left, right: left + right, get=int
        )

        def process_element(self, value: Any, context: Any) -> None:
            self.sum.merge(5)

    with pytest.raises(RefusedError, match="state sum: its AggregatingState was declared without merge="):
        KeyedHarness(Merging(), "k").process([{"k": 1}])


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([("update", "x")], "state value: 'x' does not fit INT"),
        ([("add", 2**31)], "state sum: 2147483648 does not fit INT: 32 bits"),
        ([("append", None)], "state list: None is no element of a list"),
        ([("put", 2.5)], "state map: 2.5 does not fit INT"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_the_name_of_its_state(steps: Any, message: str) -> None:
    harness = KeyedHarness(Steps(), "k")
    with pytest.raises(StateValueError) as raised:
        harness.process([{"k": 1, "look": False, "steps": steps}])
    assert message == str(raised.value)
    assert harness.keys() == set()


def test_none_is_no_row_of_a_map_which_is_told_when_it_would_be_written() -> None:
    class Totals(KeyedProcessFunction[Any, Any]):
        output = "n BIGINT"
        totals: MapState[str, tuple[int, int]] = MapState("STRING", "total BIGINT, n BIGINT")

        def process_element(self, value: Any, context: Any) -> None:
            self.totals.put("a", None)
            if value.then_puts:
                self.totals.put("a", (3, 1))

    harness = KeyedHarness(Totals(), "k")
    with pytest.raises(StateValueError, match="state totals: None is no row of a map, at key 'a'; remove the key"):
        harness.process([{"k": 1, "then_puts": False}])
    assert harness.keys() == set()
    harness.process([{"k": 1, "then_puts": True}])
    assert harness.state("totals", 1) == {"a": (3, 1)}


@pytest.mark.parametrize("make", [lambda ttl: ValueState("INT", ttl=ttl), lambda ttl: ListState("INT", ttl=ttl)])
def test_a_time_to_live_of_nothing_is_refused(make: Callable[[dt.timedelta], Any]) -> None:
    for ttl in (dt.timedelta(0), 3600):
        with pytest.raises(RefusedError, match="a timedelta of at least one millisecond, or None for ever"):
            make(ttl)  # type: ignore[arg-type]
