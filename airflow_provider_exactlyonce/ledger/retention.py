"""How much history a ledger keeps: old commits and claims are tombstoned by the live run, a few with each batch.

What a restore may need stays whatever its age: everything from the oldest savepoint on, from the commit on that the
current lineage was restored at, and from the start of a running backfill on. The newest commit and the newest claim
always stay; a ledger is opened from them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord, LedgerPointer, Record

log = logging.getLogger(__name__)

#: At most so many records are tombstoned with one batch: a backlog must not make a batch slow.
TOMBSTONES_PER_BATCH: Final = 100
#: Nor are they tombstoned one by one.
_LOT: Final = 50
_WINDOW_RECORDS: Final = 500
_DAY_MILLISECONDS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, kw_only=True)
class LedgerRetention:
    """The commits that a ledger keeps; a commit is deleted only when both limits allow it.

    :param commits: the newest so many
    :param days: everything younger
    :raises RefusedError: when the newest commit could be deleted
    """

    commits: int = 10_000
    days: float = 30.0

    def __post_init__(self) -> None:
        if self.commits < 1 or self.days < 0:
            raise RefusedError(f"{self}: commits must be at least 1 and days not negative")


DEFAULT_RETENTION: Final = LedgerRetention()


@dataclass(frozen=True, kw_only=True)
class Expired:
    """The records that the next commit deletes.

    :param oldest: the oldest commit that is kept then
    :param keys: of the deleted records
    """

    oldest: int
    keys: tuple[bytes, ...] = ()


def may_go(
    record: Record, retention: LedgerRetention, *, place: LedgerPointer, needed_from: int | None, now_milliseconds: int
) -> bool:
    """Whether a record is unneeded history, which may be deleted: a claim, once a higher run's stands in the history.

    :param place: the newest commit and claim
    :param needed_from: the oldest commit that a restore or a backfill needs, None for none
    """
    if not isinstance(record, CommitRecord):
        return record.run < place.run
    return (
        record.commit <= place.commit - retention.commits
        and record.committed < now_milliseconds - retention.days * _DAY_MILLISECONDS
        and (needed_from is None or record.commit < needed_from)
    )


class History:
    """The old end of a ledger, as the live run sees it.

    :param reader: used by the same thread only
    """

    def __init__(self, reader: LedgerReader, retention: LedgerRetention) -> None:
        self._reader: Final = reader
        self._retention: Final = retention
        self._window: list[Record] = []
        self._claim: ClaimRecord | None = None  # of the highest run in front of the window: its run may claim again
        self._chosen: tuple[int, ClaimRecord | None] = 0, None
        self._held_at: int | None = None
        self._next_offset = 0

    def expired(self, place: LedgerPointer, *, needed_from: Callable[[], int | None], now_milliseconds: int) -> Expired:
        """Choose the records that the next commit tombstones. Called again after an abort, it chooses the same.

        :param place: the newest commit and claim
        :param needed_from: returns the oldest commit that a restore or a backfill needs, None for none. It is asked
            when a lot of records is old enough, not for each, and when it keeps some, after a lot of commits again: in
            an object store an answer costs requests
        """
        self._chosen = 0, self._claim
        lot = max(1, min(_LOT, self._retention.commits // 10))
        is_held = self._held_at is not None and 0 < place.commit - self._held_at < lot
        if place.commit - place.oldest < self._retention.commits or is_held:
            return Expired(oldest=place.oldest)
        if len(self._window) < lot:
            self._read_on()
        may_go_with = partial(may_go, retention=self._retention, place=place, now_milliseconds=now_milliseconds)
        old, _ = self._oldest(partial(may_go_with, needed_from=None))
        if len(old) < lot:
            return Expired(oldest=place.oldest)
        records, self._chosen = self._oldest(partial(may_go_with, needed_from=needed_from()))
        self._held_at = place.commit if len(records) < len(old) else None
        commits = [record.commit for record in records if isinstance(record, CommitRecord)]
        oldest = max([place.oldest, *(commit + 1 for commit in commits)])
        return Expired(oldest=oldest, keys=tuple(record.key for record in records))

    def _oldest(self, goes: Callable[[Record], bool]) -> tuple[list[Record], tuple[int, ClaimRecord | None]]:
        """Return the oldest records to delete, how many were examined, and the claim of the highest run until there.

        All claims of a run have one key, and the newest is meant by it. Only behind a higher run's claim it is certain
        that none of them stands among the commits that stay.
        """
        records: list[Record] = []
        examined, claim = 0, self._claim
        for record in self._window[:TOMBSTONES_PER_BATCH]:
            if isinstance(record, ClaimRecord):
                if claim is not None and claim.run < record.run and goes(claim):
                    records.append(claim)
                claim = record
            elif goes(record):
                records.append(record)
            else:
                break
            examined += 1
        return records, (examined, claim)

    def committed(self) -> None:
        """Note that the commit took place for which was chosen last."""
        examined, self._claim = self._chosen
        del self._window[:examined]
        self._chosen = 0, self._claim

    def _read_on(self) -> None:
        from confluent_kafka import KafkaException

        try:
            for offset, record in islice(self._reader.records(self._next_offset), _WINDOW_RECORDS):
                self._next_offset = offset + 1
                if isinstance(record, ClaimRecord):  # those before it are no more than itself
                    self._window = [known for known in self._window if known.key != record.key]
                self._window.append(record)
        except (ExactlyOnceError, KafkaException) as error:
            log.warning("the old end of %s can't be read; its history stays longer: %s", self._reader.topic, error)
