"""Live lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Final, TextIO

_BAR_CELLS: Final = 24
_PLAIN_EVERY_SECONDS: Final = 5.0


class Console:
    """Says what the demo is doing, each line with the seconds since it began.

    On a terminal the last line may be a progress bar that the next line replaces; in a file or a pipe a bar is an
    ordinary line every few seconds.

    :param stream: where to write, standard output by default
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream: Final = stream or sys.stdout
        self._began: Final = time.monotonic()
        self._terminal: Final = self._stream.isatty()
        self._bar_shown = False
        self._bar_said = 0.0

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self._clear()
        self._write(f"[{self.elapsed_seconds:6.1f} s] {text}\n")

    def plain(self, text: str = "") -> None:
        """Write text as it is."""
        self._clear()
        self._write(f"{text}\n")

    def progress(self, done: int, total: int, text: str) -> None:
        """Show how far it is."""
        share = min(1.0, done / total) if total else 0.0
        if self._terminal:
            full = round(share * _BAR_CELLS)
            bar = "█" * full + "░" * (_BAR_CELLS - full)
            line = f"[{self.elapsed_seconds:6.1f} s] {bar} {done:,} of {total:,} {text}"
            self._write(f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}")
            self._bar_shown = True
        elif time.monotonic() - self._bar_said >= _PLAIN_EVERY_SECONDS:
            self._bar_said = time.monotonic()
            self._write(f"[{self.elapsed_seconds:6.1f} s] {share:4.0%}  {done:,} of {total:,} {text}\n")

    def _clear(self) -> None:
        if self._bar_shown:
            self._write("\r\033[K")
            self._bar_shown = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
