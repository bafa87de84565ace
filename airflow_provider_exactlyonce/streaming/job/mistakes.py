"""Classifies errors of a job's own code: a mistake in it, or a failure that may pass by itself."""

from __future__ import annotations

import sys
import traceback
from typing import Final

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.streaming.spark import errors

#: Errors of the code, which it raises again at the next start. Others may come from what it has looked up.
_MISTAKES: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
    ValueError,
)
#: Of the system's errors only these; a host that does not answer may do so at the next start.
_MISSING: Final = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


def place(job: str, error: BaseException) -> str:
    """Return the innermost line of a job that led to an error, ``file:line``; the file alone when there is none.

    :param job: the file, as its code knows it
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == job]
    return f"{job}:{lines[-1]}" if lines else job


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return (message.splitlines() or [""])[0]


def meaning_in_function(error: Exception, job: str) -> ExactlyOnceError | None:
    """Return a pipeline's function's mistake for an error; None for an error that may pass, or isn't its own.

    :param job: the file
    """
    line = place(job, error)
    if line == job:
        return None
    meaning = errors.meaning_of(error)
    if meaning is not None:
        return RefusedError(f"{line}: {meaning}")
    return meaning_of(error, job, "the pipeline's function")


def meaning_of(error: BaseException, job: str, doing: str) -> ExactlyOnceError | None:
    """Return a job's mistake in one sentence, with its line and what to do; None for an error that may pass.

    :param error: raised by the job's code; an error of the project keeps its kind
    :param job: the file
    :param doing: the action on it, such as "importing it"
    """
    if isinstance(error, ExactlyOnceError):
        kind = type(error)
        return kind.__new__(kind, f"{place(job, error)}: {error}")  # some take more than a message when they are raised
    if not isinstance(error, _MISSING if isinstance(error, OSError) else _MISTAKES):
        return None
    remedy = "repair the job"
    if isinstance(error, ImportError):
        remedy = f"install it where {sys.executable} finds it, or repair the job"
    return RefusedError(f"{place(job, error)}: {doing} fails: {type(error).__name__}: {first_line(error)}; {remedy}")
