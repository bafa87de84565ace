"""A reader's position in a table's versions: one number, so that code for offsets of topics works for tables.

A position is a version and how many of its files are read: ``version * 1,000,000 + files``. The end of version 12 is
the beginning of version 13, ``13000000``. A reader that begins with the whole table as it is at version 12 begins at
``12500000``: the files of the table are counted from there, and what follows them is version 13. So the ledger tells
the rows of the table from those that a version adds, whatever a later version of the job declares.

A table's name in ledgers, checkpoints and messages is its kind and its place, as in ``delta:s3://shop/orders``; no
topic has a colon in its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from airflow_provider_exactlyonce.exceptions import RefusedError

DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
_PER_VERSION: Final = 1_000_000
#: From here on the files of the whole table are counted. A version, or a table, with so many files can't be read.
SNAPSHOT: Final = 500_000
#: The only partition of a table.
PARTITION: Final = 0
_COLON: Final = ":"


@dataclass(frozen=True, order=True)
class Position:
    """Everything before a version is read, and so many of the version's own files.

    :param version: the number of a Delta table's version, or the sequence number of an Iceberg table's snapshot
    :param file: how many of the files that it adds, in their order; from :data:`SNAPSHOT` on, of all that the table
        has at it
    """

    version: int
    file: int = 0

    @classmethod
    def of(cls, offset: int) -> Self:
        """Return the position that an offset stands for."""
        return cls(*divmod(offset, _PER_VERSION))

    @property
    def offset(self) -> int:
        """The number that stands for it in checkpoints and ledgers."""
        return self.version * _PER_VERSION + self.file

    @property
    def is_snapshot(self) -> bool:
        """Whether the whole table, or its rest, follows the position."""
        return self.file >= SNAPSHOT

    def __str__(self) -> str:
        subject = f"the table at version {self.version}" if self.is_snapshot else f"version {self.version}"
        file = self.file % SNAPSHOT
        return f"file {file} of {subject}" if file else subject


def name_of(kind: str, place: str) -> str:
    """Return a table's name.

    :param kind: :data:`DELTA` or :data:`ICEBERG`
    :param place: its path, or what its catalog calls it
    :raises RefusedError: when it looks like the names of several
    """
    if "," in place:
        raise RefusedError(f"table {place!r}: a comma can't be in its name, which stands in lists of sources")
    return f"{kind}{_COLON}{place}"


def is_table(source: str) -> bool:
    """Tell whether a source is a table, and not a topic."""
    return _COLON in source


def parse(name: str) -> tuple[str, str]:
    """Return the kind and the place of a table that :func:`name_of` has given its name."""
    kind, _, place = name.partition(_COLON)
    return kind, place


def distance(source: str, start: int, end: int) -> int:
    """Return how many offsets of a topic, or versions of a table, are between two offsets."""
    if end <= start:
        return 0
    return -(-end // _PER_VERSION) - start // _PER_VERSION if is_table(source) else end - start


def shown(source: str, partition: int, start: int, end: int) -> str:
    """Return a range of offsets for people, end exclusive."""
    if is_table(source):
        return f"{source} from {Position.of(start)} to before {Position.of(end)}"
    return f"{source}-{partition} {start}..{end}"
