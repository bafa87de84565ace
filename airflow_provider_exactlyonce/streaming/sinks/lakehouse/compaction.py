"""Compaction: small files of a table are rewritten as larger ones.

A sink compacts its own files only: it knows how they were written, and two sinks of one table never choose the same.
The rows are rewritten as they were read, so the replaced files must still be there, whole, in the version that the
compaction follows: else another writer's delete or upsert would be undone.

A batch waits meanwhile. So one compaction is as large as one file may be, and the rest is left to the next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import BatchFailedError
from airflow_provider_exactlyonce.streaming.sinks.spi import OpenWriter, SinkAttempt

if TYPE_CHECKING:
    import pyarrow as pa

#: In one compaction: in a store each is some requests, one after the other.
MOST_FILES: Final = 500


@dataclass(frozen=True, kw_only=True)
class OwnFile:
    """A file of the sink that the newest version has.

    :param partition: only files of the same are written together
    :param size: bytes
    :param entry: the table's entry of it, as its library has it
    """

    name: str
    partition: Hashable
    size: int
    rows: int
    entry: Any = None


def choose(files: Iterable[OwnFile], target_bytes: int) -> tuple[list[Sequence[OwnFile]], bool]:
    """Return which files are written together in one compaction, and whether others are left to the next.

    A file is written again only together with as many bytes of smaller ones. So it is at least doubled each time, and
    a row is written anew as often as the size of its file can be doubled, however many batches follow.

    :param target_bytes: the size up to which files are written together, and about which one compaction writes in all
    """
    by_partition = defaultdict(list)
    for file in sorted(files, key=lambda file: file.size):
        by_partition[file.partition].append(file)
    groups = [group for candidates in by_partition.values() for group in _groups(candidates, target_bytes)]
    chosen: list[Sequence[OwnFile]] = []
    count = size = 0
    for group in sorted(groups, key=len, reverse=True):
        count, size = count + len(group), size + sum(file.size for file in group)
        if chosen and (count > MOST_FILES or size > target_bytes):
            return chosen, True
        chosen.append(group)
    return chosen, False


def _groups(files: Sequence[OwnFile], target_bytes: int) -> Iterator[Sequence[OwnFile]]:
    """Yield files of one partition, given in the order of their sizes, in groups that make a file each."""
    while True:
        size = count = 0
        for number, file in enumerate(files[:MOST_FILES]):
            if size + file.size > target_bytes:
                break
            if number and file.size <= size:
                count = number + 1
            size += file.size
        if not count:
            return
        yield files[:count]
        files = files[count:]


class Compaction(ABC):
    """One compaction. Derive from it for a kind of table.

    :param open_writer: opens what writes rows as the tasks do
    :param target_bytes: as :func:`choose` has it
    :ivar added: descriptions of the new files, once they are written
    """

    def __init__(self, open_writer: OpenWriter, target_bytes: int) -> None:
        self._open_writer: Final = open_writer
        self._target_bytes: Final = target_bytes
        self._groups: list[Sequence[OwnFile]] = []
        self.added: Final[list[Mapping[str, Any]]] = []

    @property
    def removed(self) -> list[OwnFile]:
        """The files that are rewritten, once the compaction was planned."""
        return [file for group in self._groups for file in group]

    def plan(self) -> bool:
        """Choose files of the version last read; returns whether others are left to the next compaction.

        :raises BatchFailedError: when none may be written anew
        """
        self._groups, is_more_left = choose(self._own_files(), self._target_bytes)
        return is_more_left

    def write(self, attempt: SinkAttempt) -> None:
        """Write the rows of the chosen files, durably.

        :param attempt: below which they are written
        :raises BatchFailedError: when there are more or less than the table says
        """
        for number, group in enumerate(self._groups):
            with closing(self._open_writer(attempt, number)) as writer:
                for file in group:
                    for rows in self._read(file):
                        writer.write(rows)
                written = writer.finish()
            if written["rows"] != (expected := sum(file.rows for file in group)):
                raise BatchFailedError(
                    f"{group[0].name} and {len(group) - 1} other files have {written['rows']} rows, and the table says "
                    f"{expected}: audit the sink"
                )
            self.added.extend(written["files"])

    def check(self) -> None:
        """Check that the version last read has all replaced files.

        :raises BatchFailedError: naming a file that others have taken out or written anew meanwhile
        """
        current_names = {file.name for file in self._own_files()}
        for file in self.removed:
            if file.name not in current_names:
                raise BatchFailedError(f"others have taken out {file.name} meanwhile: it is left to the next time")

    def has_landed(self) -> bool:
        """Tell whether the version last read has the written files."""
        return {file["path"] for file in self.added} <= {file.name for file in self._own_files()}

    @abstractmethod
    def commit(self) -> None:
        """Write the next version, with the files exchanged and no row changed."""

    @abstractmethod
    def _own_files(self) -> Iterable[OwnFile]:
        """Return the sink's files of the version last read.

        :raises BatchFailedError: when none may be written anew
        """

    @abstractmethod
    def _read(self, file: OwnFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, in the columns that the table has."""
