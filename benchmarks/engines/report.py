"""The table and the plot of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.engines.engines import OURS

#: {kind of run: {engine: figures of each round}}
Results = dict[str, dict[str, list[dict[str, Any]]]]

#: By kind of figures: what is shown of a run, and how.
STEADY: Final = (
    ("rows/s", "rows_per_second", "{:,.0f}"),
    ("CPU s / M rows", "cpu_seconds", "{:.1f}"),
    ("broker's", "broker_cpu_seconds", "{:.1f}"),
    ("s with start", "seconds_with_start", "{:.0f}"),
    ("other cores", "other_cores", "{:.2f}"),
    ("lost", "lost", "{:.0f}"),
    ("doubled", "doubled", "{:.0f}"),
    ("wrong", "wrong", "{:.0f}"),
)
KILLED: Final = (
    ("next record s", "next_record_seconds", "{:.1f}"),
    ("readers held s", "held_seconds", "{:.1f}"),
    ("usually", "usually_held_seconds", "{:.1f}"),
    ("lost", "lost", "{:,.0f}"),
    ("doubled", "doubled", "{:,.0f}"),
    ("wrong", "wrong", "{:,.0f}"),
)
SMALL_BATCHES: Final = (("p50 ms", "p50_milliseconds", "{:,.0f}"), ("p99 ms", "p99_milliseconds", "{:,.0f}"))


def medians(rounds: Sequence[dict[str, Any]], shown: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return a median for each column."""
    return [form.format(statistics.median(figures[key] for figures in rounds)) for _, key, form in shown]


def tables(results: Results) -> str:
    """Return a table for each kind of run, in Markdown."""
    text = ""
    for kind, engines in results.items():
        shown = {"small batches": SMALL_BATCHES, "killed": KILLED}.get(kind, STEADY)
        columns = [name for name, _, _ in shown]
        text += f"\n| {kind} | rounds | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}\n"
        for engine, rounds in engines.items():
            text += f"| {engine} | {len(rounds)} | {' | '.join(medians(rounds, shown))} |\n"
    return text


def draw(results: Results, path: Path) -> None:
    """Draw rows a second and CPU of each workload, with a dot for every round."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    kinds = [kind for kind, engines in results.items() if "cpu_seconds" in next(iter(engines.values()))[0]]
    if not kinds:
        return
    figure, grid = pyplot.subplots(len(kinds), 2, figsize=(11, 0.6 + 1.6 * len(kinds)), squeeze=False)
    for kind, row in zip(kinds, grid, strict=True):
        engines = results[kind]
        for (label, key, _), axes in zip(STEADY[:2], row, strict=True):
            for position, rounds in enumerate(engines.values()):
                values = [figures[key] for figures in rounds]
                color = "tab:green" if list(engines)[position] == OURS.name else "tab:gray"
                axes.barh(position, statistics.median(values), color=color, height=0.6)
                axes.plot(values, [position] * len(values), "k.", markersize=3)
            axes.set_yticks(range(len(engines)), engines)
            axes.invert_yaxis()
            axes.set_title(f"{kind}: {label}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=80, bbox_inches="tight")
