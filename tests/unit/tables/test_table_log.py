"""How much of a table is one batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_provider_exactlyonce.exceptions import TableChangedError
from airflow_provider_exactlyonce.tables.positions import SNAPSHOT, Position
from airflow_provider_exactlyonce.tables.table_log import (
    TableFile,
    TableVersion,
    batch_end,
    check_appends,
    check_size,
    files_between,
)

TABLE = "delta:/t"


def version(number: int, files: int, rewrite: str | None = None) -> TableVersion:
    added = tuple(TableFile(path=f"{number}-{file}", bytes=1) for file in range(files))
    return TableVersion(version=number, files=added, rewrite=rewrite)


#: Two files, none (a compaction), three, one.
VERSIONS = [version(0, 2), version(1, 0), version(2, 3), version(5, 1)]


def after(start: Position) -> Iterator[TableVersion]:
    return (each for each in VERSIONS if each.version >= start.version)


def end(start: Position, files: int | None) -> Position:
    return batch_end(after(start), start, files, lambda each: check_appends(TABLE, each))


@pytest.mark.parametrize(
    ("start", "files", "expected"),
    [
        (Position(0), None, Position(6)),
        (Position(0), 1, Position(0, 1)),
        (Position(0, 1), 1, Position(1)),
        (Position(0), 2, Position(1)),
        (Position(1), 1, Position(2, 1)),
        (Position(2, 1), 1, Position(2, 2)),
        (Position(2, 2), 2, Position(6)),
        (Position(2, 2), 1, Position(3)),
        (Position(6), 1, Position(6)),
        (Position(3), None, Position(6)),
    ],
)
def test_a_batch_has_so_many_files_and_may_end_within_a_version(
    start: Position, files: int | None, expected: Position
) -> None:
    assert end(start, files) == expected


@pytest.mark.parametrize("files", [None, 1, 2, 3, 4, 6, 7])
def test_the_batches_one_after_the_other_have_each_file_once(files: int | None) -> None:
    at, read = Position(0), []
    while (following := end(at, files)) != at:
        read += [file.path for file in files_between(after(at), at, following)]
        at = following
    assert read == ["0-0", "0-1", "2-0", "2-1", "2-2", "5-0"]
    assert at == Position(6)


@pytest.mark.parametrize("files", [None, 1, 2, 3, 4])
def test_the_files_of_a_whole_table_come_first_and_once(files: int | None) -> None:
    whole = replace(version(2, 3), first=SNAPSHOT)

    def from_there(start: Position) -> Iterator[TableVersion]:
        yield from ([whole] if start.is_snapshot else [])
        yield from after(Position(3))

    at, read = Position(2, SNAPSHOT), []
    while (following := batch_end(from_there(at), at, files, lambda each: check_appends(TABLE, each))) != at:
        read += [file.path for file in files_between(from_there(at), at, following)]
        at = following
    assert read == ["2-0", "2-1", "2-2", "5-0"]
    assert at == Position(6)


def test_no_version_behind_a_range_is_looked_at() -> None:
    def until_the_third() -> Iterator[TableVersion]:
        yield from VERSIONS[:3]
        raise AssertionError("one too many")

    paths = [file.path for file in files_between(until_the_third(), Position(0, 1), Position(3))]
    assert paths == ["0-1", "2-0", "2-1", "2-2"]
    assert [file.path for file in files_between(until_the_third(), Position(0), Position(2, 1))][-1] == "2-0"
    assert list(files_between(until_the_third(), Position(1), Position(1))) == []


def test_a_version_that_takes_rows_out_ends_the_batch_before_it_and_stops_the_next() -> None:
    versions = [version(0, 1), version(1, 0, "takes 2 files out of it"), version(2, 1)]

    def ends(start: Position) -> Position:
        rest = [each for each in versions if each.version >= start.version]
        return batch_end(rest, start, None, lambda each: check_appends(TABLE, each))

    assert ends(Position(0)) == Position(1)
    with pytest.raises(TableChangedError, match=r"version 1 of table delta:/t takes 2 files out of it.*on_rewrite"):
        ends(Position(1))
    assert ends(Position(2)) == Position(3)


def test_a_version_with_more_files_than_a_position_can_count_is_refused() -> None:
    check_size(TABLE, 3, 499_999)
    with pytest.raises(TableChangedError, match="version 3 of table delta:/t has 500,000 files"):
        check_size(TABLE, 3, 500_000)
