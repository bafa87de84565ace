"""The documents of a move from one home to another: at most one of the two can be used at any time.

::

    <old>/current      with a move: the home is sealed, and its pipeline goes on where that says
    <new>/home.json    with a move: a copy that is not finished is of another schema, and no home; a finished one is

The seal decides. It replaces the pointer as it was when the hold on the pipeline began, so no driver has claimed the
pipeline since.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.codec import Rewritten
from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.exceptions import HomeMovedError
from airflow_provider_exactlyonce.storage.store import Stored

#: Of the documents of a home that can be used.
SCHEMA: Final = 1
#: Of those that keep it from being used: releases that know nothing of moves refuse them.
_CLOSED: Final = 2
READABLE: Final[Collection[int]] = (SCHEMA, _CLOSED)


@dataclass(frozen=True, kw_only=True)
class Move(Rewritten):
    """A move of a home.

    :param source: where it was
    :param target: where it is going to be
    :param lineage: the one in use
    :param run: the newest run of its pipeline then, 0 for none
    """

    source: str
    target: str
    lineage: str
    run: int

    @property
    def places(self) -> tuple[str, str]:
        """Source and target, which are the same in all calls of one copy."""
        return self.source, self.target


@dataclass(frozen=True, kw_only=True)
class HomeDocument(Rewritten):
    """The body of ``home.json``.

    :param pipeline: whose home it is
    :param move: how it came here, None when it was made here
    """

    schema: int = SCHEMA
    id: str
    pipeline: str
    move: Move | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the home is missing."""
        return self.schema == SCHEMA


@dataclass(frozen=True, kw_only=True)
class _Seal:
    """The body of ``current`` in a home that was moved."""

    schema: int = _CLOSED
    move: Move
    change: str = field(default_factory=lambda: uuid.uuid4().hex)


def document(place: Path) -> HomeDocument | None:
    """Return ``home.json``, also of a copy that is not finished; None when it is not there, or torn."""
    body = json_store.read(place / "home.json", READABLE)
    return None if body is None else codec.load(HomeDocument, body, f"{place}/home.json")


def sealed(place: Path) -> Move | None:
    """Return the move that has sealed a home, None when it is not sealed."""
    body = json_store.read(place / "current", READABLE)
    return None if body is None else _move_of(body, place / "current")


def check_here(place: Path) -> None:
    """Check that a home was not moved away.

    :raises HomeMovedError: naming where it is
    """
    if (move := sealed(place)) is not None:
        raise moved(move)


def check_open(body: dict[str, Any], path: Path) -> None:
    """Check that a document does not keep its home from being used.

    :param path: of ``home.json`` or ``current``
    :raises HomeMovedError: naming the other home
    """
    move = _move_of(body, path) if body.get("schema") == _CLOSED else None
    if move is not None and path.name == "current":
        raise moved(move)
    if move is not None:
        raise HomeMovedError(
            f"{path.parent} is a copy of {move.source} that is not finished. Finish it: exactlyonce home copy "
            f"{move.source} {move.target}"
        )


def moved(move: Move) -> HomeMovedError:
    """Return the error for a use of a home that was moved."""
    return HomeMovedError(f"{move.source} was moved to {move.target}: name that home")


def begin(place: Path, home: HomeDocument, move: Move) -> None:
    """Make a place a copy that is not finished.

    :raises FileExistsError: when it is another home, or a copy of one
    """
    body = codec.dump(replace(home, schema=_CLOSED, move=move))
    json_store.write(place / "home.json", body, exclusive=True)


def seal(place: Path, move: Move, pointer: Stored | None) -> None:
    """Seal a home after its copy is whole.

    :param pointer: ``current``, as of when the hold on the pipeline began
    :raises ChangedError: when another process has written it since
    """
    json_store.swap(place / "current", pointer, _Seal(move=move))


def finish(place: Path, home: HomeDocument, move: Move) -> None:
    """Make a copy the home, after its source was sealed. May be repeated: it writes the same each time."""
    json_store.write(place / "home.json", codec.dump(replace(home, schema=SCHEMA, move=move)))


def _move_of(body: dict[str, Any], path: Path) -> Move | None:
    move = body.get("move")
    return None if move is None else codec.load(Move, move, str(path))
