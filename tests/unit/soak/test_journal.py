"""What was written is there, also when the last line was cut off."""

from __future__ import annotations

from pathlib import Path

from tests.soak.journal import EVENTS, SAMPLES, Journal, read


def test_lines_are_there_as_soon_as_they_are_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "soak")
    journal.note("began", seed=1)
    journal.sample("size", name="home", value=3)
    [event], [sample] = read(tmp_path / "soak" / EVENTS), read(tmp_path / "soak" / SAMPLES)
    assert (event["kind"], event["seed"], sample["name"], sample["value"]) == ("began", 1, "home", 3)
    journal.note("end")
    assert [line["kind"] for line in read(tmp_path / "soak" / EVENTS)] == ["began", "end"]
    Journal(tmp_path / "soak")
    assert list(read(tmp_path / "soak" / EVENTS)) == []


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / EVENTS).write_text('{"kind": "began"}\n{"kind": "en')
    assert [line["kind"] for line in read(tmp_path / EVENTS)] == ["began"]
    assert list(read(tmp_path / SAMPLES)) == []
