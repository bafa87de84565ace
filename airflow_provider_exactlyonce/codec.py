"""Reads durable documents and records of any release of this package as objects, and writes them.

The rule for every durable document and record, in a home, in a ledger and beside a sink:

- *A newer minor is read.* A release may add a field, with a default, and leaves the schema's number as it is. An older
  release passes over fields that it does not know. A document that is read and written again keeps them: see
  :class:`Rewritten`.
- *A newer major is refused, by name.* A change that an older release must not pass over raises the schema's number.
- A document without a number is of schema 1.

``tests/releases`` has documents of each release; every later release reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from threading import Lock
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from airflow_provider_exactlyonce.exceptions import RefusedError

_SCHEMA: Final = "schema"
_UNKNOWN: Final = "unknown"
#: What msgspec learns of a class at its first use is half made when another thread uses it: the process crashes.
_CONVERTING: Final = Lock()

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A document that is read, changed and written again, perhaps by an older release than its first writer.

    :param unknown: fields of a newer release; they are written again as they were
    """

    unknown: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


def check_schema(body: Mapping[str, Any], what: str, readable: Collection[int] = (1,)) -> None:
    """Check that this release can read something.

    :param what: names it in messages
    :param readable: numbers of the schemas that are read
    :raises RefusedError: when it is of another schema
    """
    schema = body.get(_SCHEMA, 1)
    if isinstance(schema, bool) or not isinstance(schema, int) or schema not in readable:
        raise RefusedError(
            f"{what} is of schema {schema!r}, and this release of airflow-provider-exactlyonce reads "
            f"{' and '.join(map(str, sorted(readable)))}: use the release that wrote it, or a newer one"
        )


def load(kind: type[T], body: Mapping[str, Any], what: str) -> T:
    """Return the object that JSON values describe; the schema has been checked.

    :param kind: a dataclass; the types of its fields are the accepted ones
    :param what: names it in messages
    :raises RefusedError: when a field is missing or of another type
    """
    try:
        with _CONVERTING:
            return msgspec.convert(_sorted_out(kind, body), kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise RefusedError(f"{what} can't be read: {error}. Put it back from a copy") from error


def dump(thing: Any) -> dict[str, Any]:
    """Return the JSON values of a dataclass, as :func:`load` reads them, fields of a newer release included."""
    body: dict[str, Any] = asdict(thing)
    _spread(body, thing)
    return body


def _sorted_out(kind: type, body: Mapping[str, Any]) -> dict[str, Any]:
    """Move unknown fields to ``unknown``, in every :class:`Rewritten` at any depth."""
    types = _types(kind)
    known = {name: _inner(types[name], value) for name, value in body.items() if name in types}
    if issubclass(kind, Rewritten):
        known[_UNKNOWN] = {name: value for name, value in body.items() if name not in types and name != _SCHEMA}
    return known


@cache
def _types(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _inner(annotation: Any, value: Any) -> Any:
    kind = next((part for part in (annotation, *get_args(annotation)) if _is_rewritten(part)), None)
    if kind is None:
        return value
    if isinstance(value, list):
        return [_inner(kind, member) for member in value]
    return _sorted_out(kind, value) if isinstance(value, Mapping) else value


def _is_rewritten(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Rewritten)


def _spread(body: dict[str, Any], thing: Any) -> None:
    for attribute in fields(thing):
        value = getattr(thing, attribute.name)
        if is_dataclass(value):
            _spread(body[attribute.name], value)
        elif isinstance(value, tuple | list):
            for member_body, member in zip(body[attribute.name], value, strict=True):
                if is_dataclass(member):
                    _spread(member_body, member)
    body.update(body.pop(_UNKNOWN, {}))
