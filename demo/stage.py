"""What both demos begin and end with: a folder of their own, a way to be interrupted, logs that outlive them."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from demo import processes
from demo.console import Console

REPORT_FOLDER: Final = Path(__file__).parents[1] / "demo-report"
_LOG_LINES: Final = 40
_INTERRUPTED: Final = 130


class DemoFailedError(Exception):
    """Something that the demo runs did not get to its end."""


def perform(opening: str, play: Callable[[Console, Path], int]) -> int:
    """Play a demo; what it has started has ended when this returns.

    :param opening: its first line
    :param play: is given a folder for all that it writes; returns 0 when everything is right
    :return: what ``play`` returned; 1 when it failed, 130 when it was interrupted
    """
    console = Console()
    console.plain(f"{opening}\n")
    processes.adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix="exactlyonce-demo-"))
    try:
        with processes.interruptible(), contextlib.ExitStack() as stack:
            stack.callback(processes.end_descendants)
            stack.enter_context(_keeping_logs(folder))
            return play(console, folder)
    except processes.Interrupted as reason:
        console.plain(f"{reason}: everything that the demo started has ended.")
        return _INTERRUPTED
    except (DemoFailedError, ExactlyOnceError) as error:
        console.plain(f"The demo could not be run to its end: {error}")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _keeping_logs(folder: Path) -> Iterator[None]:
    """Keep the logs beside the report, and show the newest one's end when the demo fails."""
    try:
        yield
    except DemoFailedError:
        if logs := sorted(folder.glob("*.log"), key=lambda log: log.stat().st_mtime):
            sys.stderr.write(f"\n{processes.tail(logs[-1], _LOG_LINES)}\n\n")
        raise
    finally:
        REPORT_FOLDER.mkdir(parents=True, exist_ok=True)
        for log in folder.glob("*.log"):
            shutil.copy(log, REPORT_FOLDER)
