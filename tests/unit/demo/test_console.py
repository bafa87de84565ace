from __future__ import annotations

import io

import pytest

from demo.console import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_bar_that_the_next_line_replaces() -> None:
    out = Terminal()
    console = Console(out)

    console.progress(50, 100, "records")
    console.progress(100, 100, "records")
    console.say("done")

    lines = out.getvalue().split("\r\033[K")
    assert len(lines) == 4
    assert "████████████░░░░░░░░░░░░ 50 of 100 records" in lines[1]
    assert lines[3].endswith("done\n")
    assert "\n" not in "".join(lines[:3])


def test_a_pipe_gets_a_line_every_few_seconds_and_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    now = 1000.0
    monkeypatch.setattr("demo.console.time.monotonic", lambda: now)
    console = Console(out)

    for done in (10, 20, 30):
        console.progress(done, 100, "records")
        now += 3.0

    assert out.getvalue().splitlines() == ["[   0.0 s]  10%  10 of 100 records", "[   6.0 s]  30%  30 of 100 records"]
