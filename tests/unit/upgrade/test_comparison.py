"""What a shadow run's comparison calls missing, extra and changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_exactlyonce.upgrade.comparison import Row, compare, decode


def rows(*contents: dict[str, Any], key: str | None = "k") -> list[Row]:
    return [
        decode("t", None if key is None else f"{key}{content['k']}".encode(), json.dumps(content).encode())
        for content in contents
    ]


OLD: list[dict[str, Any]] = [{"k": 1, "n": 2, "total": 1.5}, {"k": 2, "n": 1, "total": 9}, {"k": 3, "n": 1, "total": 4}]


def test_the_same_rows_in_another_order_are_equal() -> None:
    differences = compare(rows(*OLD), rows(*reversed(OLD)))
    assert (differences.delivered, differences.recomputed, differences.equal) == (3, 3, 3)
    assert not differences.counts
    assert differences.unintended({}) == []


def test_numbers_are_compared_as_numbers() -> None:
    first = decode("t", b"k", b'{"a": 1.50, "b": 100}')
    second = decode("t", b"k", b'{"b": 1E+2, "a": 1.5}')
    assert compare([first], [second]).equal == 1


def test_a_row_is_missing_one_is_extra_and_one_has_changed_in_a_column() -> None:
    new: list[dict[str, Any]] = [
        {"k": 1, "n": 2, "total": 2.5},
        {"k": 2, "n": 1, "total": 9},
        {"k": 4, "n": 7, "total": 4},
    ]
    differences = compare(rows(*OLD), rows(*new))
    assert dict(differences.counts) == {"missing": 1, "extra": 1, "changed": 1, "changed.total": 1}
    document = differences.document()
    assert document["examples"] == {
        "missing": [{"topic": "t", "key": "k3", "content": {"k": 3, "n": 1, "total": 4}}],
        "extra": [{"topic": "t", "key": "k4", "content": {"k": 4, "n": 7, "total": 4}}],
        "changed": [
            {
                "topic": "t",
                "key": "k1",
                "delivered": {"k": 1, "n": 2, "total": 1.5},
                "recomputed": {"k": 1, "n": 2, "total": 2.5},
                "columns": ["total"],
            }
        ],
    }
    assert json.loads(json.dumps(document)) == document


def test_rows_of_one_key_are_paired_by_what_they_have_in_common() -> None:
    old = [{"k": 1, "w": w, "n": w} for w in range(4)]
    new: list[dict[str, Any]] = [{"k": 1, "w": w, "n": 9 if w == 2 else w} for w in (3, 2, 1)]
    differences = compare(rows(*old), rows(*new))
    assert dict(differences.counts) == {"missing": 1, "changed": 1, "changed.n": 1}
    [missing] = differences.examples["missing"]
    assert missing["content"]["w"] == 0


def test_a_repeated_row_that_comes_once_less_is_missing() -> None:
    differences = compare(rows(OLD[0], OLD[0]), rows(OLD[0]))
    assert (differences.equal, dict(differences.counts)) == (1, {"missing": 1})


def test_rows_without_a_key_are_never_paired() -> None:
    differences = compare(rows(OLD[0], key=None), rows({**OLD[0], "n": 3}, key=None))
    assert dict(differences.counts) == {"missing": 1, "extra": 1}


def test_a_column_that_only_one_version_has_is_left_out_and_named() -> None:
    differences = compare(rows(*OLD), rows(*[{**content, "shout": "!"} for content in OLD]))
    assert (differences.equal, differences.columns, differences.columns_left_out) == (3, ["k", "n", "total"], ["shout"])


def test_the_columns_that_are_asked_for_are_compared() -> None:
    differences = compare(rows(*OLD), rows(*[{**content, "total": 0} for content in OLD]), columns=["k", "n"])
    assert (differences.equal, differences.columns_left_out) == (3, ["total"])


def test_a_function_tells_an_intended_change_from_a_fault() -> None:
    def from_two_on(row: dict[str, Any]) -> dict[str, Any] | None:
        return {**row, "total": round(row["total"])} if row["n"] >= 2 else None

    fine = [{"k": 1, "n": 2, "total": 1.6}]
    assert compare(rows(*OLD), rows(*fine), function=from_two_on).unintended({}) == []
    wrong = [{"k": 1, "n": 2, "total": 7}]
    assert compare(rows(*OLD), rows(*wrong), function=from_two_on).unintended({}) == ["changed.total"]


@pytest.mark.parametrize(
    ("allow", "unintended"),
    [
        ({}, ["missing", "changed.n", "changed.total"]),
        ({"missing": None, "changed": None}, []),
        ({"missing": 1, "changed.n": None}, ["changed.total"]),
        ({"missing": 0, "changed": 1}, ["missing"]),
        ({"missing": None, "changed": 0}, ["changed"]),
    ],
)
def test_what_is_allowed_is_intended_up_to_its_number(allow: dict[str, int | None], unintended: list[str]) -> None:
    differences = compare(rows(*OLD), rows({"k": 1, "n": 3, "total": 0}, OLD[1]))
    assert differences.unintended(allow) == unintended


def test_a_value_that_is_no_json_object_is_one_column() -> None:
    assert decode("t", None, b"plain").content == {"value": "plain"}
    assert decode("t", None, b"[1]").content == {"value": "[1]"}
    assert decode("t", None, None).content == {"value": None}
    differences = compare([decode("t", b"a", b"x")], [decode("t", b"a", b"y")])
    assert dict(differences.counts) == {"changed": 1, "changed.value": 1}
