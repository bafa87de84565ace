"""What readers make of records and tables, and the check of a ledger."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_exactlyonce.ledger.records import CommitRecord
from tests.ledger_records import commit_record
from tests.soak.judge import Finding, Judge
from tests.soak.readers import TableReader, Tiling, cents, delta_rows, rows_of, source_rows_of
from tests.soak.script import ID, Rows, Script

SCRIPT = Script(1)


def test_money_is_exact() -> None:
    assert [cents(Decimal(text)) for text in ("-0.05", "12", "19.99")] == [-5, 1200, 1999]
    assert cents(Decimal("0.005")) < -(10**14)


def test_records_become_rows() -> None:
    value = b'{"id":65,"account":"5","number":2,"amount":-0.05,"balance":12.30}'
    assert rows_of([value]).tolist() == [[65, 5, 2, -5, 1230]]
    assert rows_of([]).shape == (0, 5)


def test_a_record_of_the_source_is_compared_by_what_it_has() -> None:
    [right] = SCRIPT.rows(np.array([65])).tolist()
    value = f'{{"id":65,"account":"5","amount":{right[3] / 100:.2f}}}'.encode()
    assert source_rows_of([value], SCRIPT).tolist() == [right]
    wrong = source_rows_of([b'{"id":65,"account":"6","amount":0.01}'], SCRIPT)
    assert [finding.kind for finding in Judge("source", SCRIPT).read_on(wrong)] == ["altered"]


def test_a_delta_table_becomes_rows() -> None:
    amounts = [Decimal("-1.05"), Decimal("200.00")]
    columns = {
        "id": [1, 2],
        "account": ["1", "2"],
        "number": [1, 1],
        "amount": pa.array(amounts, pa.decimal128(12, 2)),
        "balance": pa.array(amounts, pa.decimal128(18, 2)),
    }
    table = pa.table(columns)
    assert delta_rows(table).tolist() == [[1, 1, 1, -105, -105], [2, 2, 1, 20000, 20000]]
    assert delta_rows(table.slice(0, 0)).shape == (0, 5)


def record(number: int, start: int, end: int) -> CommitRecord:
    return commit_record(number, source={"in": {0: (start, end)}})


def test_a_ledger_without_a_gap_is_right() -> None:
    tiling = Tiling("p", "in")
    assert [tiling.add(record(1, 0, 5)), tiling.add(record(2, 5, 5)), tiling.add(record(3, 5, 9))] == [[], [], []]


@pytest.mark.parametrize("second", [record(3, 5, 9), record(2, 4, 9), record(2, 6, 9), record(1, 5, 9)])
def test_gaps_and_overlaps_of_a_ledger_are_found(second: CommitRecord) -> None:
    tiling = Tiling("p", "in")
    assert tiling.add(record(1, 0, 5)) == []
    [finding] = tiling.add(second)
    assert finding.kind == "torn"


class Table(TableReader):
    """A table in memory."""

    def __init__(self, found: list[Finding]) -> None:
        super().__init__(Judge("table", SCRIPT), SCRIPT, found.extend)
        self.content = SCRIPT.rows(np.arange(0))

    def rows(self, since: int, before: int | None) -> Rows:
        ids = self.content[:, ID]
        return self.content[(ids >= since) & (ids < (before if before is not None else 10**9))]

    def facts(self) -> dict[str, int]:
        return {}

    def has(self, ids: Iterable[int]) -> None:
        self.content = SCRIPT.rows(np.array(list(ids)))


def test_a_table_is_looked_at_while_it_grows_and_read_once_more_at_the_end() -> None:
    found: list[Finding] = []
    table = Table(found)
    assert table.look() == 0
    table.has(range(100))
    assert table.look() == 100
    table.has([*range(150), 3])  # what was judged before is not looked at again
    assert (table.look(), found) == (150, [])
    assert table.read_all(150) == 151
    assert [(finding.where, finding.kind) for finding in found] == [("table, all of it", "doubled")]
