"""What happened, one JSON object a line, written as it happens: what is cut off later is there up to then."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EVENTS, SAMPLES = "events.jsonl", "samples.jsonl"


class Journal:
    """Two files of a folder: what happened, and what was measured. Threads may share it.

    :param folder: made if absent; what another run has left there is overwritten
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = threading.Lock()
        for name in (EVENTS, SAMPLES):
            (folder / name).write_text("")

    def note(self, kind: str, **facts: Any) -> None:
        """Note something that happened; ``at`` is when, seconds since the epoch."""
        self._write(EVENTS, {"at": round(time.time(), 3), "kind": kind, **facts})

    def sample(self, kind: str, **facts: Any) -> None:
        """Note something that was measured."""
        self._write(SAMPLES, {"at": round(time.time(), 1), "kind": kind, **facts})

    def _write(self, name: str, facts: dict[str, Any]) -> None:
        with self._lock, (self._folder / name).open("a") as file:
            file.write(json.dumps(facts) + "\n")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a file's lines; one that was cut off is left out."""
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            yield json.loads(line)
        except ValueError:
            continue
