"""The results file and the table that is made of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.crash_matrix.cases import POINTS_WITH_TABLE, Fault
from tests.crash_matrix.lane import Result
from tests.crash_matrix.shapes import SHAPES

VERDICTS = ("recovered", "lost", "doubled", "torn", "hanging")


def load(path: Path) -> list[Result]:
    """Read the results of earlier runs; a line that was cut off is left out."""
    results = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            results.append(Result(**json.loads(line)))
        except ValueError:
            continue
    return results


def append(path: Path, result: Result) -> None:
    """Add one result."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def table(results: Sequence[Result]) -> str:
    """Return Markdown: a row for each point, fault and shape, and one for all."""
    lines = [
        f"| | runs | {' | '.join(VERDICTS)} | readers held up after the claim, longest |",
        "|---|---|" + "---|" * (len(VERDICTS) + 1),
    ]
    for name in POINTS_WITH_TABLE:
        lines.append(_row(f"`{name}`", [result for result in results if result.point == name]))
    for fault in Fault:
        lines.append(_row(fault.value, [result for result in results if result.fault == fault.value]))
    for shape in SHAPES:
        lines.append(_row(shape, [result for result in results if result.shape == shape]))
    lines.append(_row("**all**", results))
    return "\n".join(line for line in lines if line) + "\n"


def _row(name: str, results: Sequence[Result]) -> str:
    counts = " | ".join(str(sum(result.verdict == verdict for result in results)) for verdict in VERDICTS)
    held = _longest(result.held_seconds for result in results)
    return f"| {name} | {len(results)} | {counts} | {held} |" if results else ""


def _longest(seconds: Iterable[float | None]) -> str:
    durations = [duration for duration in seconds if duration is not None]
    return f"{1000 * max(durations):.0f} ms ({len(durations)})" if durations else ""
