"""The short report that the demo ends with, and its verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    :param cells: one for each system
    :param note: what the figure is, for the page
    :param must_be_zero: a figure above zero breaks the promise
    """

    label: str
    cells: Sequence[str]
    note: str = ""
    must_be_zero: bool = False


def rows(*systems: Figures) -> list[Row]:
    """Return the report's lines, the same for the terminal and the page."""

    def row(label: str, cell: Callable[[Figures], str], note: str = "", *, must_be_zero: bool = False) -> Row:
        return Row(label=label, cells=[cell(system) for system in systems], note=note, must_be_zero=must_be_zero)

    def number(name: str) -> Callable[[Figures], str]:
        return lambda system: f"{getattr(system, name):,}"

    return [
        row("records in", number("records_in"), "purchases in the source topic"),
        row("batches", number("batches"), "micro-batches that were committed"),
        row(
            "kills, restarts",
            lambda system: f"{system.kills}, {system.restarts}",
            "SIGKILL to the driver's process group, and starts from the retained checkpoint",
        ),
        row("records lost", number("records_lost"), "purchases that no total counts", must_be_zero=True),
        row("rows due", number("rows_due"), "updates that the batches owe, computed from the source"),
        row("rows that readers see", number("rows_visible"), "records in the sink at read_committed"),
        row("rows doubled", number("rows_doubled"), "a (customer, number of purchases) pair again", must_be_zero=True),
        row("rows missing or wrong", number("rows_off"), "due and not there, or with another sum", must_be_zero=True),
        row(
            "rows written, then hidden",
            lambda system: f"{system.rows_written - system.rows_visible:,}",
            "by the attempt that died; only a read_uncommitted reader finds them",
        ),
        row("money in, $", number("money_in"), "sum of the file"),
        row("money out, $", number("money_out"), "sum of every customer's newest total"),
        row(
            "open transactions", number("open_partitions"), "partitions with one that is not decided", must_be_zero=True
        ),
        row("time to recover, s", _seconds, "from each kill to the first commit after it"),
        row(
            "throughput, records/s",
            lambda system: f"{system.records_per_second:,.0f}",
            "while batches ran that nobody killed, in JVMs that are set to start fast",
        ),
    ]


def _seconds(figures: Figures) -> str:
    return ", ".join("never" if seconds is None else f"{seconds:.1f}" for seconds in figures.seconds_to_recover) or "-"


def text(ours: Account, stock: Account | None = None) -> str:
    """Return the report for a terminal.

    :param stock: what to compare with
    """
    accounts = [ours, *([stock] if stock else ())]
    lines = rows(*(account.figures for account in accounts))
    label_width = max(len(line.label) for line in lines)
    cells = [[account.name for account in accounts], *(line.cells for line in lines)]
    width = max(len(cell) for row in cells for cell in row)
    table = [
        "  ".join([f"{label:{label_width}}", *(f"{cell:>{width}}" for cell in row)])
        for label, row in zip(["", *(line.label for line in lines)], cells, strict=True)
    ]
    remarks = [
        verdict(ours),
        *(f"  - {problem}" for problem in ours.problems),
        *([stock_remark(stock)] if stock else ()),
    ]
    return "\n".join([*table, "", *remarks])


def verdict(ours: Account) -> str:
    """Return the one sentence that matters."""
    if ours.problems:
        return f"OFF: {len(ours.problems)} of the checks found something."
    kills = ours.figures.kills
    return (
        f"Right: {kills} kill{'s' if kills > 1 else ''}, and every purchase counts once; "
        f"the ledger's {ours.figures.batches} commits have no gap and tile the source."
    )


def stock_remark(stock: Account) -> str:
    """Return what the stock sink's column shows, whatever it is."""
    figures = stock.figures
    if not figures.rows_doubled:
        return f"{stock.name}: no row was doubled this time; it promises at least once."
    doubled_batches = " and ".join(f"{doubled:,} of batch {batch}" for batch, doubled in figures.doubled_in.items())
    last = (
        f"{figures.customers_off:,} newest totals are wrong" if figures.customers_off else "The newest totals are right"
    )
    twice = f"{stock.name}: {figures.rows_doubled:,} rows came twice, {doubled_batches}."
    return f"{twice} {last}; whoever acts on each row acted twice."
