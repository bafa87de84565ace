"""Stacks of a profile, drawn as a flame graph: each box is a function, as wide as its share of the CPU.

After Brendan Gregg, "The Flame Graph", ACM Queue 14(2), 2016.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from xml.sax.saxutils import escape

Stack = tuple[str, ...]
WIDTH: Final = 1_200.0
ROW: Final = 15
LEAST_SHARE: Final = 0.003  # narrower boxes are left out: nobody can read them
_CHARACTER_WIDTH: Final = 6.2
_HEAD: Final = re.compile(r"^(?P<thread>.+?)\s+(?P<pid>\d+)\s+(?P<at>[\d.]+):")
_FRAME: Final = re.compile(r"^\s+[0-9a-f]+ (?P<name>.*?)(?:\+0x[0-9a-f]+)?$")
#: What threads of the JVM do that are none of Spark's, by how their names begin.
_KINDS: Final = {
    "C1 Compiler": "JVM: compiler",
    "C2 Compiler": "JVM: compiler",
    "GC Thread": "JVM: garbage collection",
    "G1 ": "JVM: garbage collection",
    "Executor task": "JVM: tasks",
    "python": "Python",
}


@dataclass
class _Box:
    count: int = 0
    callees: dict[str, _Box] = field(default_factory=dict)


def stacks(lines: Iterable[str], begin: float, end: float) -> Counter[Stack]:
    """Return how often each stack was seen between two moments, the outermost function first.

    :param lines: of ``perf script -F comm,pid,time,ip,sym``
    :param begin: seconds of the clock that was recorded, as ``end``
    """
    counts: Counter[Stack] = Counter()
    for head, frames in _samples(lines):
        if begin <= float(head["at"]) <= end:
            thread = head["thread"].strip()
            kind = next((kind for name, kind in _KINDS.items() if thread.startswith(name)), "JVM: other threads")
            counts[(kind, *reversed(frames))] += 1
    return counts


def _samples(lines: Iterable[str]) -> Iterator[tuple[re.Match[str], list[str]]]:
    head: re.Match[str] | None = None
    frames: list[str] = []
    for line in lines:
        if match := _HEAD.match(line):
            if head:
                yield head, frames
            head, frames = match, []
        elif match := _FRAME.match(line):
            frames.append(match["name"])
    if head:
        yield head, frames


def svg(seen: Counter[Stack], title: str) -> str:
    """Draw stacks, from the bottom up.

    :param title: above the drawing
    """
    root = _Box()
    for stack, count in seen.items():
        box = root
        box.count += count
        for name in stack:
            box = box.callees.setdefault(name, _Box())
            box.count += count
    drawn: list[str] = []
    depth = _draw(root, (0.0, 0), root.count, drawn)
    height = (depth + 3) * ROW
    body = "\n".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0f}" height="{height}" '
        f'viewBox="0 0 {WIDTH:.0f} {height}" font-family="monospace" font-size="10">\n'
        f'<text x="4" y="{ROW}" font-size="13">{escape(title)}</text>\n'
        f'<g transform="translate(0 {height})">\n{body}\n</g>\n</svg>\n'
    )


def _draw(box: _Box, corner: tuple[float, int], total: int, drawn: list[str]) -> int:
    """Draw what a function has called; returns how high that is."""
    (left, level), highest = corner, corner[1]
    for name, callee in sorted(box.callees.items()):
        width = WIDTH * callee.count / total
        if callee.count >= LEAST_SHARE * total:
            drawn.append(_rectangle(name, left, width, level, callee.count / total))
            highest = max(highest, _draw(callee, (left, level + 1), total, drawn))
        left += width
    return highest


def _rectangle(name: str, left: float, width: float, level: int, share: float) -> str:
    hue = {"J": 40, "P": 210}.get(name[0], 20) + sum(map(ord, name)) % 20
    shown = name[: int(width / _CHARACTER_WIDTH)] if width > 4 * _CHARACTER_WIDTH else ""
    top = -(level + 1) * ROW
    return (
        f"<g><title>{escape(name)}: {share:.1%}</title>"
        f'<rect x="{left:.1f}" y="{top}" width="{max(width - 0.3, 0.2):.1f}" height="{ROW - 1}" '
        f'fill="hsl({hue},75%,70%)"/><text x="{left + 2:.1f}" y="{top + 11}">{escape(shown)}</text></g>'
    )


def shares(seen: Counter[Stack], groups: Sequence[tuple[str, re.Pattern[str]]]) -> dict[str, float]:
    """Return the share of each group; a stack is of the first one that one of its functions is of.

    :param groups: name, and what a function's name has
    """
    group_counts: Counter[str] = Counter()
    for stack, count in seen.items():
        group_counts[next((group for group, wanted in groups if any(map(wanted.search, stack))), "else")] += count
    total = seen.total()
    return {group: count / total for group, count in group_counts.most_common()}
