"""Rules from a control stream, in the harness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError, StateValueError
from airflow_provider_exactlyonce.state import (
    BroadcastHarness,
    BroadcastProcessFunction,
    BroadcastState,
    Context,
    ValueState,
)
from airflow_provider_exactlyonce.state.memory import Memory, MemoryValueStore
from airflow_provider_exactlyonce.state.state_type import StateType


class Limits(BroadcastProcessFunction[Any, Any, Any]):
    """Gives out rows above their limit, with all limits."""

    output = "i BIGINT, limits MAP<STRING, BIGINT>"
    control_order_by = ("at",)
    limits: BroadcastState[str, int] = BroadcastState("STRING", "BIGINT")

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        if not self.limits.contains(value.k) or value.i > (self.limits.get(value.k) or 0):
            yield value.i, dict(self.limits.items())

    def process_broadcast_element(self, value: Any, context: Context) -> None:
        if value.k is None:
            self.limits.clear()
        elif value.limit is None:
            self.limits.remove(value.k)
        else:
            self.limits.put(value.k, value.limit)


def rule(k: str | None, limit: int | None, at: int = 0) -> dict[str, Any]:
    return {"k": k, "limit": limit, "at": at}


def test_data_sees_the_rules_of_all_batches_up_to_its_own_in_the_order_of_the_control_stream() -> None:
    harness = BroadcastHarness(Limits(), ["k", "i"], ["k", "limit", "at"])
    assert harness.process([{"k": "a", "i": 5}]) == [(5, {})]
    assert harness.process([{"k": "a", "i": 5}], control=[rule("a", 5, 2), rule("a", 1, 1)]) == []
    assert harness.process([{"k": "a", "i": 6}]) == [(6, {"a": 5})]
    assert harness.process(control=[rule("b", 9), rule("a", None, 1)]) == []
    assert harness.state("limits") == {"b": 9}
    assert harness.process([{"k": "a", "i": 0}], control=[rule(None, None)]) == [(0, {})]
    assert harness.state("limits") == {}


def test_data_does_not_change_the_rules() -> None:
    class Changing(Limits):
        def process_element(self, value: Any, context: Context) -> Iterator[Any]:
            self.limits.put("a", 1)
            yield from ()

    harness = BroadcastHarness(Changing(), ["k", "i"], ["k", "limit", "at"])
    with pytest.raises(RefusedError, match="state limits: only process_broadcast_element may change it"):
        harness.process([{"k": "a", "i": 5}], control=[rule("a", 5)])


def test_a_rule_that_does_not_fit_is_refused() -> None:
    harness = BroadcastHarness(Limits(), ["k", "i"], ["k", "limit", "at"])
    with pytest.raises(StateValueError, match="state limits: 'x' does not fit BIGINT"):
        harness.process(control=[rule("a", "x")])  # type: ignore[arg-type]


def test_declarations_that_cannot_be_are_refused() -> None:
    class Keyed(Limits):
        count: ValueState[int] = ValueState("BIGINT")

    class Twice(Limits):
        other: BroadcastState[str, int] = BroadcastState("STRING", "BIGINT", name="limits.digest")

    with pytest.raises(
        RefusedError, match=r"Twice: limits\.digest is the digest of limits; give that state another name"
    ):
        BroadcastHarness(Twice(), ["k", "i"], ["k", "limit", "at"])
    with pytest.raises(RefusedError, match="Keyed: count is a ValueState; here it must be a BroadcastState"):
        BroadcastHarness(Keyed(), ["k"], ["k", "limit", "at"])
    with pytest.raises(RefusedError, match="Limits: at is no column of the control stream: k, limit"):
        BroadcastHarness(Limits(), ["k"], ["k", "limit"])


class Counting(MemoryValueStore):
    """Counts how often it was read."""

    reads = 0

    def get(self) -> tuple[Any, ...] | None:
        self.reads += 1
        return super().get()


@dataclass
class Counted(Memory):
    stores: dict[str, Counting] = field(default_factory=dict)

    def value_store(self, name: str, state_type: StateType, ttl_milliseconds: int | None) -> MemoryValueStore:
        return self.stores.setdefault(name, Counting(self, name, ttl_milliseconds))


def opened(memory: Memory, copy: int, name: str) -> BroadcastState[str, list[int]]:
    memory.key = (copy,)
    return BroadcastState[str, "list[int]"]("STRING", "ARRAY<BIGINT>", name=name).bound(memory)


def put(memory: Memory, copy: int, name: str, key: str, value: list[int]) -> BroadcastState[str, list[int]]:
    state = opened(memory, copy, name)
    state.is_writable = True
    state.put(key, value)
    return state


def test_a_map_is_read_only_when_the_worker_has_not_seen_it() -> None:
    memory = Counted()
    for copy in (0, 1):
        put(memory, copy, "seldom", "a", [1]).flush()
    rules = memory.stores["seldom"]
    rules.reads = 0

    def read() -> int:
        """Read all copies; returns how often one of them was read from its store."""
        before = rules.reads
        for copy in (0, 1, 0):
            assert opened(memory, copy, "seldom").get("a") == [1]
        return rules.reads - before

    assert [read(), read()] == [1, 0]
    other = Counted()  # as of another pipeline
    put(other, 0, "seldom", "b", [2]).flush()
    assert dict(opened(other, 0, "seldom").items()) == {"b": [2]}
    assert [read(), read()] == [1, 0]


def test_what_a_failed_batch_did_to_the_map_is_seen_by_no_other() -> None:
    memory = Counted()
    put(memory, 0, "failed", "a", [1]).flush()
    put(memory, 0, "failed", "a", [2])  # its task ends here
    value = opened(memory, 0, "failed").get("a")
    assert value == [1]
    put(memory, 0, "failed", "b", [2])  # and another, which had read the map before
    assert not opened(memory, 0, "failed").contains("b")
    value.append(3)
    next(opened(memory, 0, "failed").items())[1].append(4)
    assert dict(opened(memory, 0, "failed").items()) == {"a": [1]}


def test_a_map_without_a_digest_is_read_from_its_store() -> None:
    memory = Counted()
    put(memory, 0, "before", "a", [1]).flush()
    memory.stores["before.digest"].clear()
    put(Counted(), 0, "before", "b", [2]).flush()
    assert dict(opened(memory, 0, "before").items()) == {"a": [1]}
    put(memory, 0, "before", "b", [2]).flush()
    assert dict(opened(memory, 0, "before").items()) == {"a": [1], "b": [2]}
    cleared = put(memory, 0, "before", "c", [3])
    cleared.clear()
    cleared.flush()
    assert not list(opened(memory, 0, "before").items())
    assert not memory.stores["before.digest"].get()
