"""Rows that are aggregated before they are shuffled."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from airflow_provider_exactlyonce.exceptions import StateValueError
from airflow_provider_exactlyonce.state import Aggregation
from airflow_provider_exactlyonce.streaming.keyed import partial_aggregation


def counts(accumulator: str = "BIGINT") -> Aggregation:
    return Aggregation(
        accumulator=accumulator,
        create=int,
        add=lambda before, row: before + row.n,
        merge=lambda left, right: left + right,
        get=lambda made: (made,),
        output="n BIGINT",
    )


def combine(aggregation: Aggregation, *batches: list[tuple[str | None, int]]) -> list[list[tuple[str | None, int]]]:
    run = partial_aggregation._Combining(["n", "k"], ["k"], aggregation, [pa.field("_0", pa.int64())])
    arrow = (pa.RecordBatch.from_pylist([{"n": n, "k": k} for k, n in rows]) for rows in batches)
    return [list(zip(*batch.to_pydict().values(), strict=True)) for batch in run(arrow)]


def test_a_task_passes_a_row_for_each_of_its_keys_on() -> None:
    assert combine(counts(), [("a", 1), (None, 2), ("a", 3)], [("a", 5), ("b", 7)]) == [[("a", 9), (None, 2), ("b", 7)]]
    assert combine(counts()) == []


def test_a_task_holds_no_more_keys_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_aggregation, "_KEYS_HELD", 3)
    given: list[list[tuple[str | None, int]]] = [
        [(f"k{(number * 7 + row) % 11}", row + 1) for row in range(4)] for number in range(9)
    ]
    parts = combine(counts(), *given)
    assert max(map(len, parts)) < 8
    assert len(parts) > 3
    totals: Counter[str | None] = Counter()
    for rows in parts:
        totals.update(dict(rows))
    expected: Counter[str | None] = Counter()
    for rows in given:
        for key, n in rows:
            expected[key] += n
    assert totals == expected


def test_an_accumulator_that_does_not_fit_is_refused() -> None:
    with pytest.raises(StateValueError, match="accumulator: 300 does not fit TINYINT: 8 bits"):
        combine(counts("TINYINT"), [("a", 300)])
