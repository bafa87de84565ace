from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

from airflow_provider_exactlyonce.ledger.records import CommitRecord
from demo import judge, page, report
from demo.history import History
from tests.unit.demo import histories

VOID = {"meta", "br", "img", "link", "input"}


def account(name: str, history: History) -> report.Account:
    figures = judge.figures(history, histories.events(), histories.purchases())
    return report.Account(
        name=name, history=history, figures=figures, problems=judge.problems(figures, kills=2, restarts=2)
    )


def story(ours: History | None = None) -> page.Story:
    shown = histories.updates()
    doubled = [*shown[:12], *shown[9:]]
    return page.Story(
        ours=account(report.OURS, ours or histories.history()),
        stock=account(report.STOCK, histories.history(doubled)),
        commits=[record for record in histories.ledger() if isinstance(record, CommitRecord)],
        gate_opened=histories.EPOCH + 84,
    )


class Balance(HTMLParser):
    """Collects the tags that are still open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_text_aligns_both_columns_and_ends_with_both_verdicts() -> None:
    accounts = story()
    lines = report.text(accounts.ours, accounts.stock).splitlines()

    table = lines[: lines.index("")]
    assert len({len(line) for line in table}) == 1
    assert re.search(r"^rows doubled +0 +3$", "\n".join(table), re.MULTILINE)
    assert lines[-2].startswith("Right: 2 kills, and every purchase counts once")
    assert lines[-1] == (
        "Spark's own sink: 3 rows came twice, 3 of batch 3. The newest totals are right; "
        "whoever acts on each row acted twice."
    )


def test_the_text_of_one_system_has_one_column_and_no_remark_on_another() -> None:
    lines = report.text(story().ours).splitlines()

    assert lines[0].split() == [report.OURS]
    assert {len(line) for line in lines[: lines.index("")]} == {len(lines[0])}
    assert lines[-1].startswith("Right: 2 kills, and every purchase counts once")


def test_the_text_names_what_is_off() -> None:
    accounts = story(histories.history(histories.updates()[:-1]))

    text = report.text(accounts.ours, accounts.stock)

    assert "OFF: 4 of the checks found something." in text
    assert "  - purchases lost: 1, must be 0" in text


def test_the_page_is_whole_and_needs_nothing_from_elsewhere() -> None:
    text = page.render(story())

    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    assert not re.search(r"(?:src|href)=|url\(|@import|https?://", text)
    assert "Two kills, nothing lost, nothing doubled" in text
    assert "$" not in text.replace("$0.00", "").replace("money in, $", "").replace("money out, $", "")


def test_the_page_does_not_praise_a_run_that_is_off() -> None:
    text = page.render(story(histories.history(histories.updates()[:-1])))

    assert "Something is off" in text
    assert "nothing lost" not in text
    assert "purchases lost: 1, must be 0" in text
    assert '<td class="bad">1</td>' in text


def test_the_pictures_show_every_commit_kill_and_run_within_the_frame() -> None:
    pictures = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page.render(story()), re.DOTALL)]

    assert len(pictures) == 2
    for picture, gates in zip(pictures, (1, 0), strict=True):
        assert len(picture.findall(".//circle[@class='commit']")) == histories.BATCHES
        assert len(picture.findall(".//line[@class='kill']")) == 2
        assert len(picture.findall(".//line[@class='gate']")) == gates
        assert len(picture.findall(".//rect[@class='run']")) == 3
        positions = [
            float(x.rstrip("%")) for mark in picture.iter() for key in ("x", "x1", "cx") if (x := mark.get(key))
        ]
        assert all(0 <= x <= 100 for x in positions)
