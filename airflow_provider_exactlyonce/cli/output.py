"""The output of the subcommands of ``exactlyonce``: JSON for programs, lines for people."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_PATIENCE_SECONDS: Final = 3.0
_ERASE_LINE: Final = "\r\033[K"


def print_answer(given: argparse.Namespace, body: object, text: str) -> None:
    """Print a subcommand's answer, as JSON with ``--json``."""
    print(json.dumps(body, indent=2) if given.json else text)


def tell(text: str) -> None:
    """Print a message for people at once, on stderr; programs read the answer on stdout."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Tell people that an answer is waited for, once it takes some seconds.

    :param what: has not answered then
    """
    late = threading.Timer(_PATIENCE_SECONDS, tell, (f"no answer yet of {what}: waiting",))
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that prints progress; on a terminal each line overwrites the last one."""
    if not sys.stderr.isatty():
        yield tell
        return
    try:
        yield lambda line: print(f"{_ERASE_LINE}{line}", end="", file=sys.stderr, flush=True)
    finally:
        print(_ERASE_LINE, end="", file=sys.stderr, flush=True)
