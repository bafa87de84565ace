"""The page's picture: what a job had done by when, as inline SVG.

Positions across are percentages and everything else is in pixels, so that the picture fills any width and its text
stays readable on a phone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from demo.history import History

_PLOT_TOP: Final = 62  # above it: the labels of kills and of the end
_PLOT_HEIGHT: Final = 110
_RUNS_TOP: Final = _PLOT_TOP + _PLOT_HEIGHT + 8
_RUN_HEIGHT: Final = 16
_AXIS_TOP: Final = _RUNS_TOP + _RUN_HEIGHT + 8
_HEIGHT: Final = _AXIS_TOP + 22
_LABEL_ROWS: Final = (14, 30, 46)
_MIDDLE: Final = 50.0  # per cent; a label right of it grows to the left, so that it fits a phone
_TICKS_AT_MOST: Final = 7
_STEPS_SECONDS: Final = (1, 2, 5, 10, 20, 30, 60, 120, 300)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A moment with a name.

    :param at: seconds since the epoch
    :param kind: ``kill`` or ``gate``, its CSS class
    """

    at: float
    label: str
    kind: str


class Timeline:
    """One system's picture.

    :param span_seconds: what the full width stands for, the same for all pictures of a page
    :param css: class of the picture's colour
    """

    def __init__(self, history: History, marks: Sequence[Mark], *, ended: float, span_seconds: float, css: str) -> None:
        self._history: Final = history
        self._marks: Final = sorted(marks, key=lambda mark: mark.at)
        self._began: Final = history.starts[0]
        self._ended: Final = ended
        self._span_seconds: Final = span_seconds
        self._css: Final = css

    def svg(self, description: str) -> str:
        """Return the picture.

        :param description: what a screen reader says
        """
        parts = [*self._axis(), *self._steps(), *self._runs(), *self._labels()]
        return (
            f'<svg class="timeline {self._css}" width="100%" height="{_HEIGHT}" role="img" '
            f'aria-label="{escape(description)}">{"".join(parts)}</svg>'
        )

    def _x(self, moment: float) -> float:
        return max(0.0, min(100.0, (moment - self._began) / self._span_seconds * 100))

    def _steps(self) -> list[str]:
        """Draw the stair of records that are done: one step a commit, flat while nothing runs."""
        total = sum(batch.records for batch in self._history.batches) or 1
        done = 0
        floor = float(_PLOT_TOP + _PLOT_HEIGHT)
        parts = []
        ends = [*(batch.committed for batch in self._history.batches[1:]), self._ended]
        for batch, end in zip(self._history.batches, ends, strict=True):
            done += batch.records
            height = _PLOT_HEIGHT * done / total
            left, right, top = self._x(batch.committed), self._x(end), _PLOT_TOP + _PLOT_HEIGHT - height
            title = (
                f"batch {batch.number}: {batch.records:,} records, committed after "
                f"{batch.committed - self._began:.1f} s; {done:,} in all"
            )
            parts.append(
                f'<g><title>{title}</title><rect class="step" x="{left:.2f}%" y="{top:.1f}" '
                f'width="{max(0.0, right - left):.2f}%" height="{height:.1f}"/>'
                f'<line class="edge" x1="{left:.2f}%" x2="{left:.2f}%" y1="{floor:.1f}" y2="{top:.1f}"/>'
                f'<line class="edge" x1="{left:.2f}%" x2="{right:.2f}%" y1="{top:.1f}" y2="{top:.1f}"/>'
                f'<circle class="commit" cx="{left:.2f}%" cy="{top:.1f}" r="3.5"/></g>'
            )
            floor = top
        return parts

    def _runs(self) -> list[str]:
        """Draw when a driver lived, below the stair."""
        death_times = {kill.run: kill.at for kill in self._history.kills}
        parts = []
        for number, start in enumerate(self._history.starts, start=1):
            left, right = self._x(start), self._x(death_times.get(number, self._ended))
            parts.append(
                f'<rect class="run" x="{left:.2f}%" y="{_RUNS_TOP}" width="{max(0.0, right - left):.2f}%" '
                f'height="{_RUN_HEIGHT}" rx="3"/>'
                f'<text class="in-run" x="{left:.2f}%" dx="6" y="{_RUNS_TOP + 12}">run {number}</text>'
            )
        return parts

    def _labels(self) -> list[str]:
        lines, texts = [], []  # the texts above all lines, so that none is crossed out
        for index, mark in enumerate(self._marks):
            x, row = self._x(mark.at), _LABEL_ROWS[index % len(_LABEL_ROWS)]
            anchor, shift = ("end", -5) if x > _MIDDLE else ("start", 5)
            lines.append(f'<line class="{mark.kind}" x1="{x:.2f}%" x2="{x:.2f}%" y1="{row - 10}" y2="{_AXIS_TOP}"/>')
            texts.append(
                f'<text class="{mark.kind}" x="{x:.2f}%" dx="{shift}" y="{row}" text-anchor="{anchor}">'
                f"{escape(mark.label)}</text>"
            )
        return [*lines, *texts]

    def _axis(self) -> list[str]:
        step = next(
            (candidate for candidate in _STEPS_SECONDS if self._span_seconds / candidate <= _TICKS_AT_MOST),
            _STEPS_SECONDS[-1],
        )
        parts = [f'<line class="axis" x1="0" x2="100%" y1="{_AXIS_TOP}" y2="{_AXIS_TOP}"/>']
        for seconds in range(0, int(self._span_seconds) + 1, step):
            x = seconds / self._span_seconds * 100
            anchor = "start" if seconds == 0 else "end" if x > 96 else "middle"
            parts.append(
                f'<line class="axis" x1="{x:.2f}%" x2="{x:.2f}%" y1="{_AXIS_TOP}" y2="{_AXIS_TOP + 4}"/>'
                f'<text class="axis" x="{x:.2f}%" y="{_AXIS_TOP + 17}" text-anchor="{anchor}">{seconds} s</text>'
            )
        return parts
