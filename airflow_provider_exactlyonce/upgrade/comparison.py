"""Compares the rows of two versions of a pipeline: which are missing, which are extra, which have changed, and where.

Rows belong together when topic and key are the same. Of those that differ, the two that have most values in common are
taken for one row that has changed; rows without a key are never paired.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import product
from typing import Any, Final

#: Values by column.
Content = dict[str, Any]
_EXAMPLES: Final = 5
#: Above so many possible pairs of one key, rows are paired in their order.
_PAIRS_TRIED: Final = 250_000


@dataclass(frozen=True, kw_only=True)
class Row:
    """One record of the sink.

    :param content: its columns; a value that is no JSON object is the column ``value``
    """

    topic: str
    key: bytes | None
    content: Content


@dataclass(kw_only=True)
class Differences:
    """The result of a comparison.

    :param columns: the compared columns
    :param columns_left_out: columns that only one version has, or that were not asked for
    :param counts: {kind: rows}: ``missing``, ``extra``, ``changed``, and ``changed.<column>`` for each
    :param examples: {kind: rows}, of the first three kinds
    """

    delivered: int = 0
    recomputed: int = 0
    equal: int = 0
    columns: list[str] = field(default_factory=list)
    columns_left_out: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def unintended(self, allow: Mapping[str, int | None]) -> list[str]:
        """Return the kinds that were not allowed, or are more than were.

        :param allow: {kind: how many, None for any number}; ``changed`` stands for all columns
        """

        def is_allowed(kind: str) -> bool:
            limit = allow.get(kind, 0)
            return limit is None or self.counts[kind] <= limit

        kinds = [kind for kind in ("missing", "extra") if self.counts[kind]]
        if "changed" in allow:
            kinds += ["changed"] if self.counts["changed"] else []
        else:
            kinds += sorted(kind for kind in self.counts if kind.startswith("changed."))
        return [kind for kind in kinds if not is_allowed(kind)]

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        body = {**vars(self), "counts": dict(sorted(self.counts.items()))}
        document: dict[str, Any] = json.loads(json.dumps(body, default=float))
        return document


def decode(topic: str, key: bytes | None, value: bytes | None) -> Row:
    """Return a record of the sink as a row."""
    text = None if value is None else value.decode(errors="backslashreplace")
    try:
        content = None if text is None else json.loads(text, parse_float=Decimal)
    except ValueError:
        content = None
    return Row(topic=topic, key=key, content=content if isinstance(content, dict) else {"value": text})


def compare(
    delivered: Iterable[Row],
    recomputed: Iterable[Row],
    *,
    columns: Sequence[str] = (),
    function: Callable[[Content], Content | None] | None = None,
) -> Differences:
    """Compare the delivered rows with another version's rows of the same input.

    :param columns: compare these only, empty for the columns that both have
    :param function: converts a row before it is compared; a None leaves the row out
    """
    old, new = _applied(delivered, function), _applied(recomputed, function)
    names = [sorted({name for row in rows for name in row.content}) for rows in (old, new)]
    common = set(names[0]) & set(names[1]) if names[0] and names[1] else {*names[0], *names[1]}
    compared = list(columns) or sorted(common)
    differences = Differences(
        delivered=len(old),
        recomputed=len(new),
        columns=compared,
        columns_left_out=sorted({*names[0], *names[1]} - set(compared)),
    )
    groups: dict[tuple[str, bytes | None], tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
    for side, rows in enumerate((old, new)):
        for row in rows:
            groups[row.topic, row.key][side].append(row)
    for (_, key), (left, right) in sorted(groups.items(), key=lambda group: (group[0][0], group[0][1] or b"")):
        _judge(differences, compared, *_unequal(differences, compared, left, right), may_pair=key is not None)
    return differences


def _applied(rows: Iterable[Row], function: Callable[[Content], Content | None] | None) -> list[Row]:
    if function is None:
        return list(rows)
    applied = ((row, function(row.content)) for row in rows)
    return [Row(topic=row.topic, key=row.key, content=content) for row, content in applied if content is not None]


def _unequal(
    differences: Differences, columns: Sequence[str], left: list[Row], right: list[Row]
) -> tuple[list[Row], list[Row]]:
    """Return the rows of either side that have no equal one on the other; of equal ones the newest are left over."""
    texts = [[_value([row.content.get(name) for name in columns]) for row in rows] for rows in (left, right)]
    equal = Counter(texts[0]) & Counter(texts[1])
    differences.equal += equal.total()
    return _surplus_rows(left, texts[0], equal), _surplus_rows(right, texts[1], equal)


def _surplus_rows(rows: list[Row], texts: list[str], equal: Counter[str]) -> list[Row]:
    unmatched, surplus = equal.copy(), []
    for row, text in zip(rows, texts, strict=True):
        unmatched[text] -= 1
        if unmatched[text] < 0:
            surplus.append(row)
    return surplus


def _judge(
    differences: Differences, columns: Sequence[str], left: list[Row], right: list[Row], *, may_pair: bool
) -> None:
    paired: set[int] = set()
    for left_row, right_row in _pairs(columns, left, right) if may_pair else []:
        differ = [name for name in columns if _value(left_row.content.get(name)) != _value(right_row.content.get(name))]
        differences.counts["changed"] += 1
        differences.counts.update(f"changed.{name}" for name in differ)
        contents = {"delivered": left_row.content, "recomputed": right_row.content}
        _keep(differences, "changed", {**_topic_and_key(left_row), **contents, "columns": differ})
        paired |= {id(left_row), id(right_row)}
    for kind, rows in (("missing", left), ("extra", right)):
        for row in rows:
            if id(row) not in paired:
                differences.counts[kind] += 1
                _keep(differences, kind, {**_topic_and_key(row), "content": row.content})


def _pairs(columns: Sequence[str], left: list[Row], right: list[Row]) -> list[tuple[Row, Row]]:
    if len(left) * len(right) > _PAIRS_TRIED:
        return list(zip(left, right, strict=False))
    values = [[[_value(row.content.get(name)) for name in columns] for row in rows] for rows in (left, right)]

    def in_common(pair: tuple[int, int]) -> int:
        return sum(
            left_value == right_value
            for left_value, right_value in zip(values[0][pair[0]], values[1][pair[1]], strict=True)
        )

    paired_indexes: tuple[set[int], set[int]] = set(), set()
    pairs = []
    for left_index, right_index in sorted(product(range(len(left)), range(len(right))), key=in_common, reverse=True):
        if left_index not in paired_indexes[0] and right_index not in paired_indexes[1]:
            paired_indexes[0].add(left_index)
            paired_indexes[1].add(right_index)
            pairs.append((left[left_index], right[right_index]))
    return pairs


def _keep(differences: Differences, kind: str, example: Mapping[str, Any]) -> None:
    if len(differences.examples[kind]) < _EXAMPLES:
        differences.examples[kind].append(example)


def _topic_and_key(row: Row) -> dict[str, Any]:
    return {"topic": row.topic, "key": None if row.key is None else row.key.decode(errors="backslashreplace")}


def _value(value: Any) -> str:
    """Return a text that is equal for equal values: 1.50 and 1.5 are."""
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(number: Decimal) -> Any:
    return int(number) if number == number.to_integral_value() else {"decimal": f"{number.normalize():f}"}
