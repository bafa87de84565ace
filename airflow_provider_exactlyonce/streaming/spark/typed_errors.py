"""Carries a typed error through Spark, which passes on nothing but text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from airflow_provider_exactlyonce.exceptions import (
    BadRecordError,
    DataLostError,
    ExactlyOnceError,
    RecordRefusedError,
    RecordTooLargeError,
    RefusedError,
    StateValueError,
    TableChangedError,
)

OPEN: Final = "[exactlyonce:"
CLOSE: Final = "[/exactlyonce]"
_PATTERN: Final = re.compile(r"\[exactlyonce:(\w+)\](.*?)\[/exactlyonce\]", re.DOTALL)
_KINDS: Final[dict[str, type[ExactlyOnceError]]] = {
    kind.__name__: kind
    for kind in (
        *(BadRecordError, DataLostError, RecordRefusedError, RecordTooLargeError),
        *(RefusedError, StateValueError, TableChangedError),
    )
}


def mark(kind: type[ExactlyOnceError], message: str) -> str:
    """Return the text that a task raises."""
    return f"{OPEN}{kind.__name__}]{message}{CLOSE}"


@contextmanager
def marking(*kinds: type[ExactlyOnceError]) -> Iterator[None]:
    """Mark the errors of some kinds that a task raises."""
    try:
        yield
    except kinds as error:
        raise type(error)(mark(type(error), str(error))) from error


def find(text: str) -> ExactlyOnceError | None:
    """Return the error that is marked in Spark's text, None when there is none."""
    match = _PATTERN.search(text)
    return _KINDS[match[1]](match[2]) if match and match[1] in _KINDS else None
