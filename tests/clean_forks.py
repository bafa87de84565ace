"""Forks for a library that does not survive one: processes that come from one which has never used it.

delta-rs refuses to work in a child of a process in which it has worked. So a process that has imported everything and
used nothing makes the children, and the test adopts them: it can wait for them as for its own.
"""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from pyspark import cloudpickle

from airflow_provider_exactlyonce.testing import sink_crashes
from demo.processes import adopt_orphans

ROOT: Final = Path(__file__).parents[1]
_LENGTH: Final = struct.Struct("<q")


class Forks:
    """Makes children out of the other process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process: Final = process

    def __call__(self, work: Callable[[], object], folder: Path) -> int:
        """Do the work in a new child of this process; returns its id."""
        assert self._process.stdin is not None and self._process.stdout is not None
        _send(self._process.stdin, cloudpickle.dumps((work, folder)))
        return int(pickle.loads(_receive(self._process.stdout)))


@contextmanager
def clean_forks(*modules: str) -> Iterator[Forks]:
    """Yield what makes children.

    :param modules: imported before the first one
    """
    adopt_orphans()
    command = [sys.executable, "-c", f"from tests.clean_forks import serve; serve({modules!r})"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield Forks(process)
    finally:
        process.communicate()


def serve(modules: tuple[str, ...]) -> None:
    """Make a child for each request, until there are no more."""
    for name in modules:
        __import__(name)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a child prints is no answer
    while request := _receive(requests):
        reader, writer = os.pipe()
        between = os.fork()
        if not between:
            # The child of a process that ends goes to the nearest that adopts: the test's.
            work, folder = cloudpickle.loads(request)
            os.write(writer, _LENGTH.pack(sink_crashes.forked(work, folder)))
            os._exit(0)
        os.waitpid(between, 0)
        (child,) = _LENGTH.unpack(os.read(reader, _LENGTH.size))
        os.close(reader)
        os.close(writer)
        _send(answers, pickle.dumps(child))


def _send(file: BinaryIO | Any, content: bytes) -> None:
    file.write(_LENGTH.pack(len(content)) + content)
    file.flush()


def _receive(file: BinaryIO | Any) -> bytes:
    head = file.read(_LENGTH.size)
    return file.read(_LENGTH.unpack(head)[0]) if head else b""
