"""The bytes of a job's file that are executed: read once, so that the same bytes are hashed, kept and run.

The file may be replaced while Spark starts, or a symbolic link to it may be switched. So job files are executed only
through :func:`compiled`; for a file that Python has executed by itself, the bytes are compared with the code.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError

_executed: Final[dict[str, bytes]] = {}  # by the file's name, as its code knows it


@dataclass(frozen=True)
class JobSource:
    """A job's file, as it was executed.

    :param name: the file, as its code knows it
    :param path: where it was, without symbolic links
    :param content: its bytes
    """

    name: str
    path: Path
    content: bytes = field(repr=False)

    @property
    def hash(self) -> str:
        """The SHA-256 of its bytes."""
        return hashlib.sha256(self.content).hexdigest()


def compiled(job: str) -> CodeType:
    """Return the code of a job's file, to be executed at once.

    :param job: its absolute path
    :raises SyntaxError: as Python does
    """
    content = Path(job).read_bytes()
    _executed[job] = content
    return compile(content, job, "exec", dont_inherit=True)


def of(function: Callable[..., Any]) -> JobSource | None:
    """Return the file that a function is in, None when it is in none; called while that file is executed.

    :raises RefusedError: when the file was changed since Python has read it
    """
    try:
        file = inspect.getsourcefile(function)
    except TypeError:  # an object that can be called
        return None
    if file is None:
        return None
    path = Path(file).resolve()
    name = inspect.unwrap(function).__code__.co_filename if inspect.isfunction(function) else file
    content = _executed.get(name)
    if content is None:
        content = path.read_bytes()
        _check_executed(content, name)
    return JobSource(name, path, content)


def _check_executed(content: bytes, file: str) -> None:
    frame = _executing(file)
    loader = frame.f_globals.get("__loader__") if frame is not None else None
    if frame is None or (loader is not None and not isinstance(loader, SourceFileLoader)):
        return  # it was executed before, or the executed code was made of it elsewhere
    try:
        is_same = compile(content, file, "exec", dont_inherit=True) == frame.f_code
    except (SyntaxError, ValueError):
        is_same = False
    if not is_same:
        raise RefusedError(f"{file} was changed while it was being started; start it again")


def _executing(file: str) -> FrameType | None:
    """Return the frame in which a file's own statements are executed."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and (frame.f_code.co_name, frame.f_code.co_filename) != ("<module>", file):
        frame = frame.f_back
    return frame
