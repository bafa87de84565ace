"""Checks of operators' arguments when a DAG is parsed: a mistake is shown there, and not by the task at night.

What a template or another task gives is known later only; the task checks it again then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

_JINJA: Final = ("{{", "{%", "{#")
#: A user and a password in a URL.
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/]*:[^/]*@")


def check(task: BaseOperator, read: Callable[[], object], *names: str) -> None:
    """Check arguments, unless one is to be known later.

    :param read: reads them as the task will
    :param names: of the attributes that it reads
    :raises ValueError: when it can't
    """
    dag = task.get_dag()
    if dag is not None and dag.jinja_environment_kwargs:  # its templates may look otherwise
        return
    if any(is_open(getattr(task, name)) for name in names):
        return
    try:
        with reading(task, *names):
            read()
    except RefusedError as error:
        raise ValueError(f"{task.task_id}: {error}") from error


@contextmanager
def reading(task: BaseOperator, *names: str) -> Iterator[None]:
    """Read arguments: one that can't be read is named and refused, also when a template or another task gave it.

    :param names: of the attributes that are read
    :raises RefusedError: when one can't be; a retry would be given the same
    """
    try:
        yield
    except (ValueError, TypeError, AttributeError, RefusedError) as error:
        values = {name: getattr(task, name) for name in names}
        given = {name: value for name, value in values.items() if value is not None} or values
        shown = ", ".join(f"{name}={_CREDENTIALS.sub('', repr(value))}" for name, value in given.items())
        prefix = "" if "=" in str(error) else f"{shown}: "
        raise RefusedError(f"{prefix}{error}") from error


def is_open(value: Any) -> bool:
    """Whether a value, or something in it, is known at run time only: a template, or the output of a task."""
    if isinstance(value, str):
        return any(mark in value for mark in _JINJA)
    if isinstance(value, Mapping):
        return any(is_open(part) for pair in value.items() for part in pair)
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return any(is_open(part) for part in value)
    if callable(getattr(value, "resolve", None)) and not hasattr(value, "joinpath"):  # which paths have, too
        return True
    return any(is_open(getattr(value, name)) for name in getattr(value, "template_fields", ()))


def check_choice(task: BaseOperator, name: str, choices: Sequence[str]) -> None:
    """Check an argument that has a few values only.

    :raises ValueError: naming them
    """
    value = getattr(task, name)
    if value not in choices:
        raise ValueError(f"{task.task_id}: {name}={value!r}: one of {', '.join(choices)}")


def check_kind(task: BaseOperator, name: str, kind: type, example: str) -> None:
    """Check an argument's type.

    :raises ValueError: with an example
    """
    value = getattr(task, name)
    if not isinstance(value, kind):
        raise ValueError(f"{task.task_id}: {name}={value!r}: a {kind.__name__}, such as {example}")


def check_shapes(task: BaseOperator, names: Collection[str], mappings: Collection[str]) -> None:
    """Check that arguments are lists or dictionaries; None is an empty one. Their contents may be secret.

    :param names: of the attributes
    :param mappings: the names of the dictionaries; the others are lists
    :raises RefusedError: when an argument has another type, such as a single text where a list belongs
    """
    for name in names:
        value = getattr(task, name)
        is_mapping, is_text = isinstance(value, Mapping), isinstance(value, str | bytes)
        fits = is_mapping if name in mappings else isinstance(value, Collection) and not is_mapping and not is_text
        if value is not None and not fits:
            form = "a dictionary" if name in mappings else "a list, as in ['one']"
            raise RefusedError(f"{name}=<{type(value).__name__}>: give {form}")


def check_spans(task: BaseOperator, *names: str) -> None:
    """Check times that something may take.

    :raises ValueError: when one is neither a timedelta nor a number of seconds, or is negative
    """
    for name in names:
        value = getattr(task, name)
        span = value.total_seconds() if isinstance(value, timedelta) else value
        if isinstance(span, bool) or not isinstance(span, int | float) or not span >= 0:
            raise ValueError(f"{task.task_id}: {name}={value!r}: a timedelta, or a number of seconds, not negative")


def wish(value: bool | str | None) -> bool | str:
    """Return whether something is wanted, or its label: of a template's text, too, which can't be False itself."""
    known = {"true": True, "false": False, "none": False, "": False}
    return known.get(str(value).strip().lower(), str(value))


def seconds(value: timedelta | float) -> float:
    """Return a time that was given as a timedelta, or in seconds already."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)
