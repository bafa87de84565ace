"""The report tells what the journal has: figures, slopes, what is off, and whether it came to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.font_manager  # noqa: F401 -- looks for the machine's fonts, the first time with a process: before the tests
import pytest

from tests.soak import journal, report
from tests.soak.journal import Journal
from tests.soak.report import Story, percentile

BEGAN = 1_000_000.0
HOUR = 3600.0


class Written:
    """A journal of one hour, written by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._journal = Journal(folder)
        self.note(-60, "began", seed=7, rate=200)
        self.note(0, "running", limits=["no namespaces"])
        for number in range(1, 11):
            commit = {"pipeline": "soak-posted", "commit": number, "run": 1, "committed": BEGAN + number}
            self.note(number, "commit", **commit, seconds=0.1 * number, rows=100, version="v")
        self.note(1, "claim", pipeline="soak-posted", run=1, claimed=BEGAN)
        self.note(30, "gate", pipeline="soak-posted", promised=5, seconds=4.0)
        for number, seconds in enumerate((10.0, 12.0, 50.0)):
            facts = {"number": number, "what": "SIGKILL, driver", "target": "soak-posted", "detail": ""}
            self.note(60 * number, "done", **facts, seconds=seconds, recovered={"soak-posted": seconds})
        self.note(300, "done", number=4, what="upgrade", took=90.0, seconds=1.0, recovered={"soak-posted": 1.0})

    def note(self, at: float, kind: str, **facts: Any) -> None:
        self._journal.note(kind, **{"at": BEGAN + at, **facts})

    def samples(self, role: str, per_hour: float) -> None:
        for step in range(360):
            facts = {"role": role, "pid": "1/1", "files": 40, "threads": 9, "cpu": step / 4}
            at = 10 * step
            self._journal.sample("process", at=BEGAN + at, **facts, rss=300 + per_hour * at / HOUR)
            self._journal.sample("size", at=BEGAN + at, name="home, bytes", value=1024**2 * (1 + at / HOUR))

    def end(self) -> None:
        self.note(HOUR, "drained")
        for seconds in (0.2, 0.4, 9.0):
            self.note(HOUR, "held", seconds=seconds)
        self.note(HOUR + 1, "end", sent=1000, judged={"Delta": 1000})

    def story(self) -> Story:
        return report.write(self.folder)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_percentiles_are_values_that_were_measured() -> None:
    assert [percentile([3, 1, 2], share) for share in (0.5, 0.99, 1.0)] == [2, 3, 3]
    assert percentile([5], 0.5) == 5


def test_an_hour_in_which_all_is_right(written: Written) -> None:
    written.samples("triggerer", 0.0)
    written.end()
    story = written.story()
    assert story.is_right
    text = (written.folder / "soak.md").read_text()
    assert text.startswith(
        "RIGHT: each of 1,000 bookings is in every sink once, to the cent. No leak was found; slopes: 4"
    )
    assert "| length, from the first bookings to the end of the drain | 60.0 min |" in text
    assert "| soak-posted: commits, runs | 10, 1 |" in text
    assert "| soak-posted: a commit takes, p50 / p99 | 0.5 / 1.0 s |" in text
    assert "| SIGKILL, driver | 3 | 3 | 12.0 | 50.0 | 50.0 |" in text
    assert "| upgrade | 1 | 1 | 90.0 | 90.0 | 90.0 |" in text
    assert "| readers are held up, p50 / p99 / longest | 0.4 / 9.0 / 9.0 s (3) |" in text
    assert "| triggerer | memory, MB | 1 | 57 | 300.0 | +0.0 | +0.0 to +0.0 | steady |" in text
    assert "| triggerer | CPU, % of a core | 1 | 56 | 2.5 | +0.0 | " in text
    assert "| home | 1.0 MB | 2.0 MB | 1.0 MB |" in text
    assert "| limit of this machine | no namespaces |" in text


def test_a_leak_is_said_in_the_first_line(written: Written) -> None:
    written.samples("triggerer", 60.0)
    written.samples("others", 600.0)
    written.samples("broker 1", 60.0)
    written.end()
    told = report.verdict(written.story())
    assert told.endswith("LEAK: triggerer (memory, MB). Of others grow: broker 1 (memory, MB).")


def test_a_finding_makes_it_off(written: Written) -> None:
    written.end()
    written.note(5, "finding", where="Delta", finding="lost", count=2, note="bookings 3, 4")
    story = written.story()
    assert not story.is_right
    assert report.verdict(story).startswith("OFF: 1 findings.")
    for file in ("soak.md", "index.html"):
        assert "bookings 3, 4" in (written.folder / file).read_text()


def test_what_was_cut_off_is_said_to_be(written: Written) -> None:
    story = written.story()
    assert not story.is_right
    assert report.verdict(story).startswith("CUT OFF:")


def test_a_soak_that_never_began_has_a_report_too(tmp_path: Path) -> None:
    made = Journal(tmp_path)
    made.note("began", seed=1, rate=1)
    made.note("finding", where="the soak", finding="could not go on", count=1, note="<no broker>")
    assert not report.write(tmp_path).is_right
    assert "&lt;no broker&gt;" in (tmp_path / "index.html").read_text()


def test_the_page_needs_nothing_but_itself(written: Written) -> None:
    written.samples("triggerer", 0.0)
    written.end()
    written.story()
    page = (written.folder / "index.html").read_text()
    assert page.count("<svg") >= 5
    assert "<script" not in page
    assert "src=" not in page
    assert {file.name for file in written.folder.iterdir()} == {
        "index.html",
        "soak.md",
        journal.EVENTS,
        journal.SAMPLES,
    }
