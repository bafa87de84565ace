"""The short report that the demo ends with, and its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from demo.history import History
from demo.judge import Figures

OURS: Final = "exactlyonce"
STOCK: Final = "Spark's own sink"


@dataclass(frozen=True, kw_only=True)
class Account:
    """What one system did.

    :param name: what the report calls it
    :param problems: everything that is off; the demo fails when ours has any
    """

    name: str
    history: History
    figures: Figures
    problems: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the report.

    :param note: what the figure is, for the page
    :param must_be_zero: a figure above zero breaks the promise
    """

    label: str
    ours: str
    stock: str
    note: str = ""
    must_be_zero: bool = False


def rows(ours: Figures, stock: Figures) -> list[Row]:
    """Return the report's lines, the same for the terminal and the page."""

    def row(label: str, name: str, note: str = "", *, must_be_zero: bool = False) -> Row:
        return Row(
            label=label,
            ours=f"{getattr(ours, name):,}",
            stock=f"{getattr(stock, name):,}",
            note=note,
            must_be_zero=must_be_zero,
        )

    return [
        row("records in", "records_in", "purchases in the source topic"),
        row("batches", "batches", "micro-batches that were committed"),
        Row(
            label="kills, restarts",
            ours=f"{ours.kills}, {ours.restarts}",
            stock=f"{stock.kills}, {stock.restarts}",
            note="SIGKILL to the driver's process group, and starts from the retained checkpoint",
        ),
        row("records lost", "records_lost", "purchases that no total counts", must_be_zero=True),
        row("rows due", "rows_due", "updates that the batches owe, computed from the source"),
        row("rows that readers see", "rows_visible", "records in the sink at read_committed"),
        row("rows doubled", "rows_doubled", "a (customer, number of purchases) pair again", must_be_zero=True),
        row("rows missing or wrong", "rows_off", "due and not there, or with another sum", must_be_zero=True),
        Row(
            label="rows written, then hidden",
            ours=f"{ours.rows_written - ours.rows_visible:,}",
            stock=f"{stock.rows_written - stock.rows_visible:,}",
            note="by the attempt that died; only a read_uncommitted reader finds them",
        ),
        row("money in, $", "money_in", "sum of the file"),
        row("money out, $", "money_out", "sum of every customer's newest total"),
        row("open transactions", "open_partitions", "partitions with one that is not decided", must_be_zero=True),
        Row(
            label="time to recover, s",
            ours=_seconds(ours),
            stock=_seconds(stock),
            note="from each kill to the first commit after it",
        ),
        Row(
            label="throughput, records/s",
            ours=f"{ours.records_per_second:,.0f}",
            stock=f"{stock.records_per_second:,.0f}",
            note="while batches ran that nobody killed, in JVMs that are set to start fast",
        ),
    ]


def _seconds(found: Figures) -> str:
    return ", ".join("never" if seconds is None else f"{seconds:.1f}" for seconds in found.seconds_to_recover) or "-"


def text(ours: Account, stock: Account) -> str:
    """Return the report for a terminal."""
    lines = rows(ours.figures, stock.figures)
    label_width = max(len(line.label) for line in lines)
    width = max(len(ours.name), len(stock.name), *(len(cell) for line in lines for cell in (line.ours, line.stock)))
    table = [f"{'':{label_width}}  {ours.name:>{width}}  {stock.name:>{width}}"]
    table += [f"{line.label:{label_width}}  {line.ours:>{width}}  {line.stock:>{width}}" for line in lines]
    return "\n".join([*table, "", verdict(ours), *(f"  - {problem}" for problem in ours.problems), stock_remark(stock)])


def verdict(ours: Account) -> str:
    """Return the one sentence that matters."""
    if ours.problems:
        return f"OFF: {len(ours.problems)} of the checks found something."
    return (
        f"Right: {ours.figures.kills} kills, and every purchase counts once; "
        f"the ledger's {ours.figures.batches} commits have no gap and tile the source."
    )


def stock_remark(stock: Account) -> str:
    """Return what the stock sink's column shows, whatever it is."""
    found = stock.figures
    if not found.rows_doubled:
        return f"{stock.name}: no row was doubled this time; it promises at least once."
    where = " and ".join(f"{again:,} of batch {batch}" for batch, again in found.doubled_in.items())
    last = f"{found.customers_off:,} newest totals are wrong" if found.customers_off else "The newest totals are right"
    twice = f"{stock.name}: {found.rows_doubled:,} rows came twice, {where}."
    return f"{twice} {last}; whoever acts on each row acted twice."
