"""One sink partition's readable records against the ranges that the ledger gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_exactlyonce.kafka.digest import MODULUS
from airflow_provider_exactlyonce.ledger.records import SinkRange


@dataclass(slots=True)
class RangeFound:
    """The readable part of one commit's range.

    :param missing: the first of its offsets that is not readable; only meaningful where rows are missing
    """

    commit: int
    expected: SinkRange
    rows: int = 0
    digest: int = 0
    missing: int = field(init=False)

    def __post_init__(self) -> None:
        self.missing = self.expected.first


@dataclass(slots=True)
class Stray:
    """Readable records in a row that are in no range.

    :param after: the commit whose range is before them, 0 for none
    """

    after: int
    first: int
    last: int
    rows: int = 0
    digest: int = 0


class PartitionCheck:
    """Goes through a partition once, forwards, one window of commits after the other.

    :param next_offset: where to begin
    """

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.ranges: list[RangeFound] = []
        self.strays: list[Stray] = []
        self.end = next_offset
        self._index = 0
        self._after = 0
        self._is_in_stray = False

    def open(self, ranges: Sequence[RangeFound], end: int) -> None:
        """Begin a window.

        :param ranges: in the order of their offsets
        :param end: the offset up to which is read
        """
        self.ranges, self.strays, self._index, self._is_in_stray = list(ranges), [], 0, False
        self.end = max(end, self.next_offset)

    def add(self, offset: int, digest: int) -> None:
        """Count one readable record; those beyond the window are for the next one."""
        if offset >= self.end or offset < self.next_offset:
            return
        self.next_offset = offset + 1
        self.close_before(offset)
        if self._index < len(self.ranges):
            current = self.ranges[self._index]
            if current.expected.first <= offset:
                self._is_in_stray = False
                current.rows += 1
                current.digest = (current.digest + digest) % MODULUS
                if offset == current.missing:
                    current.missing = offset + 1
                return
        self._add_stray(offset, digest)

    def skip(self, offset: int) -> None:
        """Pass over a record that isn't judged."""
        if self.next_offset <= offset < self.end:
            self.next_offset = offset + 1

    def finish(self) -> None:
        """End the window: everything readable in it was added."""
        self.close_before(self.end)
        self.next_offset = self.end

    def close_before(self, offset: int) -> None:
        """Leave the ranges that end before an offset."""
        while self._index < len(self.ranges) and self.ranges[self._index].expected.last < offset:
            self._after = self.ranges[self._index].commit
            self._index += 1
            self._is_in_stray = False

    def _add_stray(self, offset: int, digest: int) -> None:
        if not self._is_in_stray:
            self.strays.append(Stray(after=self._after, first=offset, last=offset))
            self._is_in_stray = True
        stray = self.strays[-1]
        stray.last = offset
        stray.rows += 1
        stray.digest = (stray.digest + digest) % MODULUS
