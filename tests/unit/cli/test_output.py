from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.text_tables import pairs, table


def test_people_get_lines_and_programs_get_json(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"held_back": 3, "topics": ["a", "b"], "error": None, "empty": []}
    print_answer(argparse.Namespace(json=False), facts, pairs(facts))
    assert capsys.readouterr().out.splitlines() == ["held back  3", "topics     a, b", "error      -", "empty      -"]
    print_answer(argparse.Namespace(json=True), facts, "unused")
    assert json.loads(capsys.readouterr().out) == facts


def test_a_table_has_a_heading_and_columns_as_wide_as_their_widest_cell() -> None:
    rows: list[dict[str, Any]] = [{"first_offset": 7, "topic": "a-long-name"}, {"first_offset": 123, "topic": None}]
    assert table(rows).splitlines() == ["first offset  topic", "7             a-long-name", "123           -"]
    assert table([]) == ""
