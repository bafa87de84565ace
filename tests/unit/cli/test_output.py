from __future__ import annotations

import argparse
import json
import sys
import threading
from typing import Any

import pytest

from airflow_provider_exactlyonce.cli import output
from airflow_provider_exactlyonce.cli.output import print_answer, progress, waiting
from airflow_provider_exactlyonce.text_tables import pairs, table


def test_people_get_lines_and_programs_get_json(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"held_back": 3, "topics": ["a", "b"], "error": None, "empty": []}
    print_answer(argparse.Namespace(json=False), facts, pairs(facts))
    assert capsys.readouterr().out.splitlines() == ["held back  3", "topics     a, b", "error      -", "empty      -"]
    print_answer(argparse.Namespace(json=True), facts, "unused")
    assert json.loads(capsys.readouterr().out) == facts


def test_progress_takes_one_line_of_a_terminal_and_is_gone_in_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> str:
        with progress() as show:
            show("first")
            show("second")
        return capsys.readouterr().err

    assert told() == "first\nsecond\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert told() == "\r\033[Kfirst\r\033[Ksecond\r\033[K"


def test_people_are_told_what_is_waited_for_once_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    heard = threading.Event()

    def tell(text: str) -> None:
        said.append(text)
        heard.set()

    monkeypatch.setattr(output, "tell", tell)
    with waiting("Kafka at a:1"):
        pass
    monkeypatch.setattr(output, "_PATIENCE_SECONDS", 0.01)
    with waiting("Kafka at b:1"):
        assert heard.wait(60)
    assert said == ["no answer yet of Kafka at b:1: waiting"]


def test_a_table_has_a_heading_and_columns_as_wide_as_their_widest_cell() -> None:
    rows: list[dict[str, Any]] = [{"first_offset": 7, "topic": "a-long-name"}, {"first_offset": 123, "topic": None}]
    assert table(rows).splitlines() == ["first offset  topic", "7             a-long-name", "123           -"]
    assert table([]) == ""
