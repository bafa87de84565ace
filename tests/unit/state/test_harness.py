"""The harness: clocks, timers, time to live, and what a batch that fails leaves."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError, StateValueError
from airflow_provider_exactlyonce.state import (
    Context,
    KeyedHarness,
    KeyedProcessFunction,
    ListState,
    MapState,
    ValueState,
)
from tests.unit.state.functions import at

SECONDS_10 = dt.timedelta(seconds=10)


class Alarms(KeyedProcessFunction[Any, Any]):
    """Registers and deletes timers as its rows say; a timer does what :attr:`on` says of its time."""

    output = "k STRING, what STRING, at BIGINT"
    event_time = "ts"
    on: ClassVar[dict[int, Callable[[Context], Any]]] = {}

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        for seconds in value.register:
            context.timer_service.register_event_time_timer(seconds * 1000)
        for seconds in value.delete:
            context.timer_service.delete_event_time_timer(seconds * 1000)
        yield context.key.k, "row", context.timer_service.current_watermark() // 1000

    def on_timer(self, timestamp: int, context: Context) -> Iterator[Any]:
        yield context.key.k, "timer", timestamp // 1000
        if timestamp // 1000 in self.on:
            self.on[timestamp // 1000](context)


def row(key: str, seconds: float, register: tuple[int, ...] = (), delete: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"k": key, "ts": at(seconds), "register": register, "delete": delete}


def test_timers_fire_in_order_once_the_watermark_is_at_them_and_rows_behind_the_last_watermark_are_left_out() -> None:
    harness = KeyedHarness(Alarms(), "k", watermark_delay=SECONDS_10)
    assert harness.process([row("a", 100, (130, 110, 90)), row("b", 120, (115,))]) == [("a", "row", 0), ("b", "row", 0)]
    assert (harness.watermark, harness.timers("a"), harness.timers("b")) == (
        110_000,
        [90_000, 110_000, 130_000],
        [115_000],
    )
    # This batch is under watermark 110; what is late was decided by the one before, which had none.
    assert harness.process([row("a", 1)]) == [("a", "row", 110), ("a", "timer", 90), ("a", "timer", 110)]
    assert harness.process([row("a", 110), row("b", 111)]) == [("b", "row", 110)]
    assert harness.process(watermark=115_000) == [("b", "timer", 115)]
    assert harness.keys() == {("a",)}


def test_a_timer_that_is_registered_behind_the_watermark_fires_in_the_same_batch() -> None:
    harness = KeyedHarness(Alarms(), "k")
    assert harness.process([row("a", 100, (40,))], watermark=50_000) == [("a", "row", 50), ("a", "timer", 40)]


def test_the_last_word_of_a_batch_on_a_timer_counts() -> None:
    harness = KeyedHarness(Alarms(), "k")
    harness.process([row("a", 1, (20, 30), (30,)), row("a", 2, (30,)), row("a", 2, (), (20,))])
    assert harness.timers("a") == [30_000]


def test_a_timer_that_a_timer_registers_fires_at_once_when_it_is_due_and_one_that_it_deletes_does_not() -> None:
    def register_four(context: Context) -> None:
        for second in (100, 105, 115, 500):
            context.timer_service.register_event_time_timer(second * 1000)

    class Chained(Alarms):
        on: ClassVar = {
            100: register_four,
            105: lambda context: context.timer_service.delete_event_time_timer(110_000),
            115: lambda context: context.timer_service.delete_event_time_timer(500_000),
            120: lambda context: context.timer_service.register_event_time_timer(110_000),
        }

    harness = KeyedHarness(Chained(), "k")
    harness.process([row("a", 90, (100, 110, 120)), row("b", 90, (101,))])
    fired = harness.process(watermark=130_000)
    assert [row[2] for row in fired if row.k == "a"] == [100, 105, 115, 120, 110]
    assert [row[2] for row in fired if row.k == "b"] == [101]
    assert harness.timers("a") == []


class Fading(KeyedProcessFunction[Any, Any]):
    """Keeps what it has seen for two seconds."""

    output = "value BIGINT, many ARRAY<BIGINT>, named MAP<BIGINT, BIGINT>, now BIGINT"
    value: ValueState[int] = ValueState("BIGINT", ttl=dt.timedelta(seconds=2))
    many: ListState[int] = ListState("BIGINT", ttl=dt.timedelta(seconds=2))
    named: MapState[int, int] = MapState("BIGINT", "BIGINT", ttl=dt.timedelta(seconds=2))

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        yield (
            self.value.value(),
            self.many.get(),
            dict(self.named.items()),
            context.timer_service.current_processing_time(),
        )
        if value.i is not None:
            self.value.update(value.i)
            self.many.add(value.i)
            self.named.put(value.i, value.i)


def test_an_entry_lives_from_its_last_writing_and_not_longer_than_its_time() -> None:
    harness = KeyedHarness(Fading(), "k")
    none = {"k": 1, "i": None}
    assert harness.process([{"k": 1, "i": 5}], processing_time=1000) == [(None, [], {}, 1000)]
    assert harness.process([{"k": 1, "i": 6}], processing_time=2000) == [(5, [5], {5: 5}, 2000)]
    assert harness.process([none], processing_time=2999) == [(6, [5, 6], {5: 5, 6: 6}, 2999)]
    assert harness.process([none], processing_time=3000) == [(6, [6], {6: 6}, 3000)]
    assert harness.process([none], processing_time=4000) == [(None, [], {}, 4000)]


def test_a_batch_that_raises_changes_nothing() -> None:
    class Poisoned(KeyedProcessFunction[Any, Any]):
        output = "n BIGINT"
        count: ValueState[int] = ValueState("BIGINT")

        def process_element(self, value: Any, context: Context) -> Iterator[Any]:
            self.count.update((self.count.value() or 0) + 1)
            yield (10 // value.v,)

    harness = KeyedHarness(Poisoned(), "k")
    assert harness.process([{"k": 1, "v": 5}]) == [(2,)]
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            harness.process([{"k": 1, "v": 1}, {"k": 2, "v": 0}])
    assert (harness.state("count", 1), harness.state("count", 2)) == (1, None)


@pytest.mark.parametrize("clocks", [{"watermark": 9000}, {"watermark": 9000, "processing_time": 9}, {"watermark": 1}])
def test_a_batch_that_raises_moves_no_clock(clocks: dict[str, int]) -> None:
    class Poisoned(KeyedProcessFunction[Any, Any]):
        event_time = "at"
        output = "n BIGINT"

        def process_element(self, value: Any, context: Context) -> Iterator[Any]:
            yield (10 // value.v,)

    def row(v: int, second: int) -> dict[str, Any]:
        return {"k": 1, "v": v, "at": dt.datetime.fromtimestamp(second, dt.UTC)}

    harness = KeyedHarness(Poisoned(), "k")
    assert harness.process([row(5, 10)], watermark=5000, processing_time=7) == [(2,)]
    with pytest.raises((ZeroDivisionError, RefusedError)):
        harness.process([row(1, 20), row(0, 20)], **clocks)
    assert (harness.watermark, harness.processing_time) == (5000, 7)
    assert harness.process([row(2, 6)], watermark=6000) == [(5,)], "it is not late"


def test_what_a_function_keeps_beside_its_states_is_gone_with_the_batch() -> None:
    class Forgetful(KeyedProcessFunction[Any, Any]):
        output = "n BIGINT, opened BIGINT"

        def open(self) -> None:
            self.n = 0

        def process_element(self, value: Any, context: Context) -> Iterator[Any]:
            self.n += 1
            yield self.n, 1

    harness = KeyedHarness(Forgetful(), "k")
    assert [harness.process([{"k": 1}, {"k": 1}])[-1].n for _ in range(3)] == [2, 2, 2]


def test_rows_of_a_key_come_in_the_order_that_the_function_asks_for() -> None:
    class Ordered(KeyedProcessFunction[Any, Any]):
        output = "i BIGINT"
        order_by = ("ts", "i")

        def process_element(self, value: Any, context: Context) -> Iterator[Any]:
            yield {"i": value.i}

    given = [{"k": 1, "ts": ts, "i": i} for ts, i in ((2, 1), (1, 2), (None, 4), (1, 0), (None, 3))]
    assert [row.i for row in KeyedHarness(Ordered(), "k").process(given)] == [3, 4, 0, 2, 1]


def declared(**attributes: Any) -> KeyedProcessFunction[Any, Any]:
    kind = type(
        "Declared", (KeyedProcessFunction,), {"output": "n BIGINT", "process_element": lambda *_: None, **attributes}
    )
    return kind()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (declared(output="BIGINT"), "Declared: output = 'BIGINT' names no columns"),
        (declared(output=None), "Declared declares no output"),
        (declared(event_time="ts", processing_time=True), "declares event_time and processing_time"),
        (
            declared(event_time="ts", kept=ValueState("INT", ttl=SECONDS_10)),
            "declares event_time and a ttl for kept; Spark has time to live by processing time only",
        ),
        (
            declared(one=ValueState("INT", name="x"), other=ListState("INT", name="x")),
            "the states one and other have one name, 'x'",
        ),
    ],
)
def test_declarations_that_cannot_be_are_refused_by_name(function: Any, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        KeyedHarness(function, "k")


class Undeclared(KeyedProcessFunction[Any, Any]):
    output = "n BIGINT"

    def process_element(self, value: Any, context: Context) -> None:
        """Nothing."""


class OfInstance(Undeclared):
    def __init__(self) -> None:
        self.count = ValueState[int]("BIGINT")


class Opened(Undeclared):
    def open(self) -> None:
        self.count = ValueState[int]("BIGINT")


class Assigning(KeyedProcessFunction[Any, Any]):
    output = "n BIGINT"
    count = ValueState[int]("BIGINT")

    def process_element(self, value: Any, context: Context) -> None:
        self.seen = value
        self.count = 5  # type: ignore[assignment]


def test_a_value_that_is_assigned_to_a_state_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"Assigning\.count is a state: call its methods"):
        KeyedHarness(Assigning(), "k").process([{"k": "a"}])


@pytest.mark.parametrize("function", [OfInstance, Opened])
def test_a_state_that_the_class_does_not_declare_is_refused(function: Any) -> None:
    with pytest.raises(RefusedError, match=r"the state count is made by the instance.* count = ValueState\(…\)"):
        KeyedHarness(function(), "k").process([{"k": 1}])


@pytest.mark.parametrize("function", [Undeclared, None, dict])
def test_what_is_no_instance_of_a_function_is_refused(function: Any) -> None:
    with pytest.raises(RefusedError, match="is no KeyedProcessFunction; give an instance"):
        KeyedHarness(function, "k")


def test_a_row_is_late_by_the_microsecond() -> None:
    harness = KeyedHarness(declared(event_time="ts", process_element=lambda *_: iter([(1,)])), "k")
    harness.process(watermark=1000)
    times = [at(1) + dt.timedelta(microseconds=number) for number in (0, 1)]
    assert len(harness.process([{"k": 1, "ts": moment} for moment in times])) == 1


@pytest.mark.parametrize(
    ("call", "declares", "message"),
    [
        ("register_event_time_timer", {}, 'let its class say event_time = "<column>"'),
        ("register_processing_time_timer", {"event_time": "ts"}, "let its class say processing_time = True"),
        ("current_watermark", {"processing_time": True}, 'let its class say event_time = "<column>"'),
        ("current_processing_time", {}, "declares neither event_time nor processing_time"),
    ],
)
def test_a_clock_that_was_not_declared_is_refused(call: str, declares: dict[str, Any], message: str) -> None:
    def process(self: Any, value: Any, context: Context) -> None:
        getattr(context.timer_service, call)(*([1] if "timer" in call else []))

    with pytest.raises(RefusedError, match=message):
        KeyedHarness(declared(process_element=process, **declares), "k").process([{"k": 1, "ts": at(1)}])


@pytest.mark.parametrize("given", [5, (1, 2), {"m": 1}, ("x",), None])
def test_output_that_does_not_fit_is_refused(given: Any) -> None:
    function = declared(process_element=lambda *_: iter([given]))
    with pytest.raises(StateValueError, match="output of Declared: "):
        KeyedHarness(function, "k").process([{"k": 1}])
