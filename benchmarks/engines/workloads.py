"""What the engines are given to do: the records that go in, and what has to come out."""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from benchmarks.engines.avro_values import AvroValues

PARTITIONS: Final = 4
USERS, ITEMS, MINUTES = 5_000, 1_000, 100
FIRST_MILLISECOND: Final = 28_333_334 * 60_000
DAY_MILLISECONDS: Final = 86_400_000
#: Of the last record of each partition, which closes the windows; it is in no result.
LAST_ITEM: Final = "item-last"

PROJECTED, WINDOWED, PASSED = "projected", "windowed", "passed"
AVRO: Final = "avro"
#: The column of a query's result that becomes the key; what is passed has one.
KEYS: Final = {PROJECTED: "uuid", WINDOWED: "itemCode"}
_RESULTS: Final = {
    PROJECTED: {"event_id": pa.int64(), "uuid": pa.string(), "itemCode": pa.string(), "total": pa.decimal128(14, 2)},
    WINDOWED: {"start": pa.int64(), "itemCode": pa.string(), "n": pa.int64(), "paid": pa.decimal128(18, 2)},
}

Matrix = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A query and its input; a batch is a tenth of it.

    :param rows: a multiple of 100,000 where windows are counted
    :param value_bytes: of each record
    :param avro: what makes its records Avro instead of JSON, and reads the results so
    """

    name: str
    query: str
    rows: int
    value_bytes: int = 200
    avro: AvroValues | None = None

    @property
    def batch_rows(self) -> int:
        return self.rows // 10

    @property
    def source(self) -> str:
        """The topic that it reads; JSON records serve all who read them."""
        return f"{'avro' if self.avro else 'values'}-{self.value_bytes}"

    def records(self, start: int, stop: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield partition, key and value of each record."""
        for number in range(start, stop):
            yield number % PARTITIONS, *(self._passed(number) if self.query == PASSED else self._event(number))

    def last_records(self) -> Iterator[tuple[int, bytes, bytes]]:
        if self.query == PASSED:
            return
        for partition in range(PARTITIONS):
            timestamp = FIRST_MILLISECOND + DAY_MILLISECONDS
            yield partition, b"last", self._value(-1, "user-last", LAST_ITEM, "last", 0, timestamp)

    def _event(self, number: int) -> tuple[bytes, bytes]:
        user, behavior = f"user-{_user(number):05}", "view" if number % 10 == 9 else "pay"
        timestamp = FIRST_MILLISECOND + number * MINUTES * 60_000 // self.rows
        item = f"item-{_item(number):04}"
        return user.encode(), self._value(number, user, item, behavior, _cents(number), timestamp)

    def _value(self, number: int, user: str, item: str, behavior: str, cents: int, timestamp: int) -> bytes:
        text = _json(number, user, item, behavior, cents, timestamp, self.value_bytes)
        if self.avro is None:
            return text
        price = decimal.Decimal(cents).scaleb(-2)
        note = text.decode().rpartition(':"')[2][:-2]
        fields = {
            "event_id": number,
            "uuid": user,
            "itemCode": item,
            "behavior": behavior,
            "price": price,
            "ts": timestamp,
        }
        return self.avro.encode({**fields, "note": note})

    def _passed(self, number: int) -> tuple[bytes, bytes]:
        key = b"%016d" % number
        return key, (key * (self.value_bytes // 16 + 1))[: self.value_bytes]

    def expected(self) -> Matrix:
        """Return what has to come out, as :meth:`parsed` gives it, ordered by its first column."""
        numbers = np.arange(self.rows, dtype=np.int64)
        if self.query == PASSED:
            return np.stack([numbers, np.ones_like(numbers)], axis=1)
        if self.query == WINDOWED:
            groups = numbers * MINUTES // self.rows * ITEMS + _item(numbers)
            counts = np.bincount(groups, minlength=MINUTES * ITEMS)
            cents = np.bincount(groups, weights=_cents(numbers), minlength=MINUTES * ITEMS).astype(np.int64)
            present = np.flatnonzero(counts)
            return np.stack([present, counts[present], cents[present], present % ITEMS], axis=1)
        paid = numbers[numbers % 10 != 9]
        return np.stack([paid, _user(paid), _item(paid), 2 * _cents(paid), _user(paid)], axis=1)

    def parsed(self, keys: list[bytes], values: list[bytes]) -> Matrix:
        """Return one row of whole numbers for each record: what it is of, then its content, then its key.

        :raises ArrowInvalid: when a record is not what the query gives
        """
        if self.query == PASSED:
            right = [value == self._passed(int(key))[1] for key, value in zip(keys, values, strict=True)]
            return np.stack([np.array(keys).astype(np.int64), np.array(right, dtype=np.int64)], axis=1)
        schema = pa.schema(list(_RESULTS[self.query].items()))
        if self.avro is not None:
            table = self.avro.table(values, schema)
        else:
            options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
            table = arrow_json.read_json(pa.BufferReader(b"\n".join(values)), parse_options=options)
        table = table.append_column("key", pa.array(keys).cast(pa.string()))
        if self.query == PROJECTED:
            columns = [_numbers(table["event_id"]), _digits(table["uuid"]), _digits(table["itemCode"])]
            return np.stack([*columns, _hundredths(table["total"]), _digits(table["key"])], axis=1)
        table = table.filter(pc.not_equal(table["itemCode"], LAST_ITEM))
        minutes = _numbers(table["start"]) // 60 - FIRST_MILLISECOND // 60_000
        groups = minutes * ITEMS + _digits(table["itemCode"])
        counts, paid = _numbers(table["n"]), _hundredths(table["paid"])
        return np.stack([groups, counts, paid, _digits(table["key"])], axis=1)


WORKLOADS: Final = (
    Workload(name="json", query=PROJECTED, rows=2_000_000),
    Workload(name=AVRO, query=PROJECTED, rows=2_000_000),
    Workload(name="windows", query=WINDOWED, rows=2_000_000),
    Workload(name="1 KB", query=PASSED, rows=600_000, value_bytes=1_000),
    Workload(name="10 KB", query=PASSED, rows=100_000, value_bytes=10_000),
)


def _user(number: Any) -> Any:
    return number * 7_919 % USERS


def _item(number: Any) -> Any:
    return number * 31 % ITEMS


def _cents(number: Any) -> Any:
    return number * 101 % 50_000


def _json(number: int, user: str, item: str, behavior: str, cents: int, timestamp: int, size: int) -> bytes:
    price = f"{cents // 100}.{cents % 100:02}"
    text = (
        f'{{"event_id":{number},"uuid":"{user}","itemCode":"{item}","behavior":"{behavior}",'
        f'"price":"{price}","ts":{timestamp},"note":"'
    )
    return f'{text.ljust(size - 2, "x")}"}}'.encode()


def _numbers(column: pa.ChunkedArray) -> Matrix:
    numbers: Matrix = column.to_numpy()
    return numbers


def _digits(column: pa.ChunkedArray) -> Matrix:
    """Read the number behind ``user-`` or ``item-``."""
    return _numbers(pc.utf8_slice_codeunits(column, 5).cast(pa.int64()))


def _hundredths(column: pa.ChunkedArray) -> Matrix:
    return _numbers(
        pc.multiply(column, pa.scalar(100, pa.decimal128(3, 0))).cast(pa.decimal128(38, 0)).cast(pa.int64())
    )
