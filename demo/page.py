"""The report as one HTML page that needs nothing but itself."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Final

from airflow_provider_exactlyonce.ledger.records import CommitRecord
from demo.history import SOURCE_TOPIC, History
from demo.judge import Figures
from demo.report import Account, rows, stock_remark, verdict
from demo.timeline import Mark, Timeline

_TEMPLATE: Final = Path(__file__).with_name("page.html")
_MARGIN: Final = 1.03  # the picture ends a little after what it shows

CHECKS: Final = (
    "The source topic against the file: every line once, with its customer and its price.",
    "The ledger: commits and runs are numbered 1, 2, 3 … without a gap, and the source ranges of the commits tile "
    "every partition from its beginning to its end.",
    "Every record that a read_committed reader sees lies in the range of exactly one commit, and every commit shows "
    "exactly the rows that its source range owes: customer, number of purchases, and money to the cent.",
    "The newest total of every customer against the file; the sum of all against the sum of the file.",
    "No (customer, number of purchases) pair comes twice.",
    "No transaction is open: the last stable offset of every partition of sink and ledger is its end.",
    "The task behind the gate made the comparison with the file on its own, and Airflow's run succeeded.",
)


@dataclass(frozen=True, kw_only=True)
class Story:
    """What the page tells.

    :param commits: the ledger's, in order
    :param gate_opened: when the gate let the next task go, seconds since the epoch
    """

    ours: Account
    stock: Account
    commits: Sequence[CommitRecord]
    gate_opened: float


def write(path: Path, story: Story) -> None:
    """Write the page; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(story), encoding="utf-8")


def render(story: Story) -> str:
    """Return the page."""
    ours = story.ours.figures
    right = not story.ours.problems
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title="Exactly once: the demo's report",
        headline="Two kills, nothing lost, nothing doubled" if right else "Something is off",
        lead=_lead(story),
        tiles=_tiles(ours),
        timelines=_timelines(story),
        rows="".join(_rows(story)),
        remark=escape(stock_remark(story.stock)),
        checks="".join(f"<li>{escape(check)}</li>" for check in CHECKS),
        commit_count=len(story.commits),
        commits="".join(_commits(story)),
        footer=escape(_footer()),
    )


def _lead(story: Story) -> str:
    ours = story.ours.figures
    lead = (
        f"{ours.records_in:,} real purchases went from Kafka through a stateful PySpark stream to Kafka, run by an "
        f"Airflow DAG. The Spark driver was killed with SIGKILL in mid-write, and again between a batch's commit and "
        f"Spark's own note of it. "
    )
    if not story.ours.problems:
        return escape(
            f"{lead}Every purchase counts once, to the cent, and the ledger's {ours.batches} commits have no gap."
        )
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in story.ours.problems)
    verdict_text = escape(verdict(story.ours))
    return f'{escape(lead)}<strong class="bad">{verdict_text}</strong></p><ul class="bad">{problems}</ul><p>'


def _tiles(ours: Figures) -> str:
    recover = [seconds for seconds in ours.seconds_to_recover if seconds is not None]
    difference = ours.money_out - ours.money_in
    tiles = {
        "records lost": (f"{ours.records_lost:,}", ours.records_lost == 0),
        "rows doubled": (f"{ours.rows_doubled:,}", ours.rows_doubled == 0),
        "money missing": (f"${-difference:,.2f}", difference == 0),
        "longest recovery": (f"{max(recover):.1f} s" if recover else "never", None),
    }
    css = {True: ' class="good"', False: ' class="bad"', None: ""}
    return "".join(
        f"<div><dt>{escape(label)}</dt><dd{css[good]}>{text}</dd></div>" for label, (text, good) in tiles.items()
    )


def _timelines(story: Story) -> str:
    ours_ended = max(story.ours.history.batches[-1].committed, story.gate_opened)
    stock_ended = story.stock.history.batches[-1].committed
    span = _MARGIN * max(ours_ended - story.ours.history.starts[0], stock_ended - story.stock.history.starts[0])
    gate = Mark(at=story.gate_opened, label="gate opens", kind="gate")
    pictures = (
        (story.ours, [*_kill_marks(story.ours.history), gate], ours_ended, "ours"),
        (story.stock, _kill_marks(story.stock.history), stock_ended, "stock"),
    )
    figures = []
    for account, marks, ended, css in pictures:
        timeline = Timeline(account.history, marks, ended=ended, span_seconds=span, css=css)
        caption = f"{escape(account.name)} <span>{escape(_caption(account.figures))}</span>"
        figures.append(f"<figure><figcaption>{caption}</figcaption>{timeline.svg(_description(account))}</figure>")
    return "".join(figures)


def _kill_marks(history: History) -> list[Mark]:
    return [Mark(at=kill.at, label=kill.label, kind="kill") for kill in history.kills]


def _caption(figures: Figures) -> str:
    doubled = f"{figures.rows_doubled:,} rows doubled" if figures.rows_doubled else "no row doubled"
    return f"{figures.batches} batches, {figures.restarts} restarts, {doubled}"


def _description(account: Account) -> str:
    history = account.history
    kills = ", ".join(f"{kill.at - history.starts[0]:.0f} s" for kill in history.kills) or "never"
    return (
        f"{account.name}: {len(history.batches)} commits in {history.batches[-1].committed - history.starts[0]:.0f} s; "
        f"driver killed at {kills}. The table below has the same figures."
    )


def _rows(story: Story) -> list[str]:
    parts = []
    for row in rows(story.ours.figures, story.stock.figures):
        cells = "".join(_cell(text, row.must_be_zero) for text in row.cells)
        parts.append(f"<tr><th>{escape(row.label)}<small>{escape(row.note)}</small></th>{cells}</tr>")
    return parts


def _cell(text: str, must_be_zero: bool) -> str:
    css = (' class="good"' if text == "0" else ' class="bad"') if must_be_zero else ""
    return f"<td{css}>{escape(text)}</td>"


def _commits(story: Story) -> list[str]:
    began = story.ours.history.starts[0]
    return [
        f"<tr><th>{commit.commit}</th><td>{commit.batch}</td><td>{commit.run}</td>"
        f"<td>{sum(end - start for start, end in commit.source.get(SOURCE_TOPIC, {}).values()):,}</td>"
        f"<td>{commit.rows:,}</td><td>{commit.committed / 1000 - began:.1f} s</td></tr>"
        for commit in story.commits
    ]


def _footer() -> str:
    parts = ("airflow-provider-exactlyonce", "apache-airflow", "pyspark", "confluent-kafka")
    created = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    versions = ", ".join(f"{part} {version(part)}" for part in parts)
    return (
        f"Made by python -m demo, {created}, on {os.cpu_count()} cores with Python {platform.python_version()}: "
        f"{versions}. Data: the CDNOW purchases of P. Fader and B. Hardie; see dags/data/README.md."
    )
