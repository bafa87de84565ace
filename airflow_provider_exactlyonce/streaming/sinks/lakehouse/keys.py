"""Rows by their key: which is the last of each, and which of a file's have one of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

#: Beside key columns, which are named by numbers: Arrow takes a name with a dot in front for a path.
_ROW: Final = "row"
_RANK: Final = "rank"


@dataclass(frozen=True, kw_only=True)
class KeyColumns:
    """The columns that decide which row replaces which.

    :param key: the columns of the key
    :param order: the column with its greatest value in the last row of a key, None for the row that came last
    :param deleted: the boolean column that marks rows to delete, which the table lacks; None for no such column
    """

    key: tuple[str, ...]
    order: str | None
    deleted: str | None

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns that tell which row of a key is the last."""
        return self.key if self.order is None or self.order in self.key else (*self.key, self.order)

    def last_of_each(self, rows: pa.Table, rank: pa.Array | None) -> tuple[pa.Array, dict[str, object] | None]:
        """Return for each row whether it is the last of its key, and a key with an unknown last row, None for none.

        :param rows: the columns to compare
        :param rank: of the rows when there is no order, None when it is unknown
        """
        rank = rank if self.order is None else _ranks(rows[self.order])
        keys = rows.select(self.key)
        last = _last_of_each(keys, rank)
        return last, _doubled(keys.filter(last))


class OrderedValues:
    """The values that the keys of a batch have in a column.

    :param values: in any order, more than once
    """

    def __init__(self, values: pa.ChunkedArray) -> None:
        self._values: Final[list[Any]] = sorted(pc.unique(plain(values)).to_pylist())

    def any_within(self, least: Any, greatest: Any) -> bool:
        """Tell whether one of them is between two :func:`plain` values, or is one of these."""
        index = bisect_left(self._values, least)
        return index < len(self._values) and bool(self._values[index] <= greatest)


def plain(values: pa.Array) -> pa.Array:
    """Return times as numbers of days or microseconds: Python has none of a year before 1 or after 9999."""
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.int64())
    return values.cast(pa.int32()) if pa.types.is_date32(values.type) else values


def _ranks(values: pa.ChunkedArray) -> pa.Array:
    """Return the place of each value in their order; null comes first."""
    ranks = pc.rank(values, sort_keys="ascending", tiebreaker="dense")
    return pc.if_else(pc.is_valid(values), ranks, pa.scalar(0, pa.uint64()))


def _last_of_each(keys: pa.Table, rank: pa.Array | None) -> pa.Array:
    """Tell of each row whether it is the last of its key; two are, when nothing tells them apart.

    :param keys: the columns of the key
    :param rank: the greatest is the last, None when nothing tells
    """
    if rank is None:
        return pa.repeat(True, keys.num_rows)
    numbered = _numbered(keys)
    by, ranked = numbered.column_names, numbered.append_column(_ROW, numbers(keys.num_rows)).append_column(_RANK, rank)
    joined = ranked.join(ranked.group_by(by).aggregate([(_RANK, "max")]), keys=by)
    return _mask(joined.filter(pc.equal(joined[_RANK], joined[f"{_RANK}_max"])), keys.num_rows)


def _doubled(keys: pa.Table) -> dict[str, object] | None:
    """Return a key that is there more than once, None when there is none."""
    numbered = _numbered(keys)
    by = numbered.column_names
    counted = numbered.group_by(by).aggregate([([], "count_all")])
    if counted.num_rows == keys.num_rows:
        return None
    doubled = counted.filter(pc.greater(counted["count_all"], 1))
    return _first(doubled.select(by).rename_columns(keys.column_names))


def among(keys: pa.Table, given: pa.Table) -> pa.Array:
    """Tell of each row whether its key is among the given ones; null is not.

    :param given: keys, with the same columns
    """
    numbered = _numbered(keys)
    rows = numbered.append_column(_ROW, numbers(keys.num_rows))
    matches = rows.join(_numbered(given), keys=numbered.column_names, join_type="left semi")
    return _mask(matches, keys.num_rows)


def shown(key: Mapping[str, object]) -> str:
    """Return a key for messages."""
    return ", ".join(f"{name}={value!r}" for name, value in key.items())


def find_null(keys: pa.Table) -> dict[str, object] | None:
    """Return a key with a null in it, None when there is none."""
    for name in keys.column_names:
        if keys[name].null_count:
            return _first(keys.filter(pc.is_null(keys[name])))
    return None


def _first(keys: pa.Table) -> dict[str, object]:
    """Return the first of some keys, with times as texts, of whatever year."""
    key = keys.slice(0, 1)
    texts = [column.cast(pa.string()) if pa.types.is_temporal(column.type) else column for column in key.columns]
    return dict(pa.table(texts, names=key.column_names).to_pylist()[0])


def numbers(count: int) -> pa.Array:
    """Return the numbers of so many rows, from 0."""
    import numpy as np

    return pa.array(np.arange(count, dtype=np.int64))


def _numbered(keys: pa.Table) -> pa.Table:
    return keys.rename_columns(list(map(str, range(keys.num_columns))))


def _mask(rows: pa.Table, count: int) -> pa.Array:
    """Return a mask of so many rows that is true for those that are there."""
    import numpy as np

    mask = np.zeros(count, dtype=bool)
    mask[rows[_ROW].to_numpy()] = True
    return pa.array(mask)
