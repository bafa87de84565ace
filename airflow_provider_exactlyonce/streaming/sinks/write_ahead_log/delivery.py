"""The second half of a write-ahead log: committed records are delivered, in order, and noted."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from airflow_provider_exactlyonce import codec, failpoints
from airflow_provider_exactlyonce.exceptions import BatchFailedError, FencedError, invariant
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.log import COMMIT, FileLog, LogRecord
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.storage import Storage

log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0
_NOTES: Final = "delivered"
_OLD_NOTE: Final = "delivered.json"  # of version 0.1.0
_NOTE: Final = re.compile(r"(\d{20})-(\d+)\.json")


class Target(ABC):
    """The receiver of the rows. It is pickled with the job, and used by one thread of the driver."""

    @abstractmethod
    def deliver(self, entry: SinkEntry, rows: Iterator[pa.RecordBatch]) -> None:
        """Deliver all rows of a commit; after any error it is tried again, for ever.

        :param entry: the commit's; its number is a good idempotency key
        :param rows: in the order in which the tasks wrote them
        """

    def has(self, entry: SinkEntry) -> bool | None:
        """Tell whether the target has a commit, whole; None when it can't be asked.

        With an answer every commit is delivered exactly once. Without one, a commit whose delivery was cut short, by a
        crash or a lost answer, is delivered again: at least once.
        """
        return None

    @property
    def can_be_asked(self) -> bool:
        """Whether the target implements :meth:`has`."""
        return type(self).has is not Target.has


@dataclass(frozen=True, kw_only=True)
class DeliveryProgress:
    """How far the delivery is: a file of its own for each, named by both numbers, so that the greatest counts.

    A file that everybody replaces could go back: a driver that was frozen would write what its successor has passed.

    :param commit: the newest commit that the target has, 0 for none
    :param position: its position in the log
    """

    commit: int = 0
    position: int = 0

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.position:020d}-{self.commit}.json"


class Delivery:
    """Delivers in a thread of its own, from the claim of a run to its end.

    :param folder: the sink's directory
    :param keep_seconds: how long delivered commits stay in the log
    """

    def __init__(
        self, target: Target, storage: Storage, file_log: FileLog, *, sink: str, folder: str, keep_seconds: float
    ) -> None:
        self._target: Final = target
        self._storage: Final = storage
        self._log: Final = file_log
        self._sink: Final = sink
        self._folder: Final = folder
        self._keep_seconds: Final = keep_seconds
        self._changed: Final = threading.Condition()
        self._goal = 0
        self._ending = False
        self._note = DeliveryProgress()
        self._delivered_commit = 0  # up to here nothing is owed: it is delivered, or the sink never got it
        self._delivered_position = 0  # up to here all is delivered
        self._claims: Collection[str | None] = ()
        self._checked_position = 0  # up to here no other driver has claimed
        self._oldest = 1  # the first position that is still there
        self._thread: threading.Thread | None = None
        self._is_over = False

    def start(self, claimed: int, claims: Collection[str | None]) -> None:
        """Start the delivery after the noted position, until another driver has claimed. Does nothing when it runs.

        :param claimed: the position of this driver's claim
        :param claims: its claims, also those that it makes later
        """
        if self._thread is not None:
            return
        self._note = read_note(self._storage, self._folder)
        self._oldest = min(self._log.positions(), default=1)
        self._delivered_commit = self._note.commit
        self._delivered_position = self._note.position if self._has_noted() else self._oldest - 1
        self._checked_position, self._claims = claimed, claims
        self._thread = threading.Thread(target=self._work, name=f"delivery of {self._sink}", daemon=True)
        self._thread.start()

    def up_to(self, commit: int, seconds: float) -> None:
        """Have commits delivered up to this one, and wait for it, but not for longer than this."""
        with self._changed:
            self._goal = max(self._goal, commit)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._delivered_commit >= commit or self._is_over, seconds)

    @property
    def behind(self) -> int:
        """How many commits are to be delivered yet."""
        return max(0, self._goal - self._delivered_commit)

    def stop(self, seconds: float) -> None:
        """Wait for the outstanding deliveries, but not for longer than this, and end."""
        if self._thread is None:
            return
        deadline = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: not self.behind or self._is_over, seconds)
            self._ending = True
            self._changed.notify_all()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if behind := self.behind:
            log.warning("sink %s: %d commits are not delivered yet; the next run does it", self._sink, behind)

    def _work(self) -> None:
        try:
            self._deliver_until_the_end()
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _deliver_until_the_end(self) -> None:
        pause, in_doubt = _FIRST_PAUSE_SECONDS, True
        while True:
            self._wait(lambda: self.behind > 0)
            if self._ending:
                return
            try:
                self._check_superseded()
                if (record := self._next()) is not None:
                    in_doubt = self._deliver(record, in_doubt)
            except FencedError as error:
                log.warning("%s", error)
                return
            except Exception as error:  # whatever it is, the rows are in the log
                reason = f"{type(error).__name__}: {error}"
                log.warning(
                    "sink %s: nothing delivered after commit %d, tried again in %g s: %s",
                    *(self._sink, self._note.commit, pause, reason),
                )
                in_doubt = True
                self._wait(lambda: False, pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                pause = _FIRST_PAUSE_SECONDS

    def _wait(self, condition: Callable[[], bool], seconds: float | None = None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ending or condition(), seconds)

    def _check_superseded(self) -> None:
        """Check whether another driver has claimed the log.

        :raises FencedError: when another driver has
        """
        for record in self._log.following(self._checked_position):
            if record.claim not in self._claims:
                raise FencedError(
                    f"sink {self._sink}: another driver has claimed it as run {record.run} and delivers what follows"
                )
            self._checked_position = record.position

    def _has_noted(self) -> bool:
        """Tell whether the note is of this log: one that was set back goes on with other positions."""
        if self._note.position == 0:
            return False
        try:
            record = self._log.read(self._note.position)
        except FileNotFoundError:
            return False
        return record.kind == COMMIT and record.entry is not None and record.entry.commit == self._note.commit

    def _next(self) -> LogRecord | None:
        """Return the next commit that the sink has got, None when the pipeline's ledger does not have it yet."""
        for record in self._log.following(self._delivered_position):
            if record.kind == COMMIT and record.entry is not None and record.entry.commit > self._note.commit:
                with self._changed:
                    self._delivered_commit = record.entry.commit - 1  # a sink that has joined never got those before
                    self._changed.notify_all()
                    return record if record.entry.commit <= self._goal else None
        raise FileNotFoundError(
            f"no commit after {self._note.commit} follows {self._log.place(self._delivered_position)}"
        )

    def _deliver(self, record: LogRecord, in_doubt: bool) -> bool:
        """Deliver a commit and note it. If we die in between, the next run asks the target, if it can.

        :param in_doubt: the target may have this commit, and those after it: from a run that could not note it, or from
            before the log was set back
        :returns: whether that is so for the next one; commits are delivered in order, so a no counts for all after it
        :raises FencedError: when another driver has claimed the log meanwhile; it asks the target
        """
        invariant(record.entry is not None, "a commit has an entry")
        entry: SinkEntry = record.entry  # type: ignore[assignment]
        began = time.monotonic()
        in_doubt = in_doubt and self._target.can_be_asked and is_delivered(self._target, entry)
        if in_doubt:
            log.info("sink %s: the target has commit %d already", self._sink, entry.commit)
        else:
            self._target.deliver(entry, self._log.rows(record))
            failpoints.reach("after-delivery")
        self._check_superseded()
        passed, note = self._note, DeliveryProgress(commit=entry.commit, position=record.position)
        with suppress(FileExistsError):  # of a log that was set back
            self._storage.create(f"{self._folder}/{_NOTES}/{note.file}", b"{}")
        self._delivered_position = record.position
        self._forget(passed, record.position)
        with self._changed:
            self._note, self._delivered_commit = note, note.commit
            self._changed.notify_all()
        log.info(
            "sink %s: commit %d delivered, %d rows in %.2f s, %d commits behind",
            self._sink,
            entry.commit,
            entry.rows,
            time.monotonic() - began,
            self.behind,
        )
        return in_doubt

    def _forget(self, passed: DeliveryProgress, position: int) -> None:
        """Remove a note that was passed, and the oldest records with their files as far as they are delivered and old.

        :param position: the position that was delivered last
        """
        try:
            self._storage.remove(f"{self._folder}/{_NOTES}/{passed.file}")
            for record in self._log.following(self._oldest - 1):
                if record.position >= position or record.written > time.time() - self._keep_seconds:
                    return
                self._log.remove(record)
                self._oldest = record.position + 1
        except Exception as error:  # what is delivered counts, whatever a store's own errors are
            log.warning("sink %s: delivered commits could not be removed: %s", self._sink, error)


def is_delivered(target: Target, entry: SinkEntry) -> bool:
    """Tell whether a target that can be asked has a commit.

    :raises BatchFailedError: when it does not know: taken for a no, the commit would be delivered twice, or called lost
    """
    answer = target.has(entry)
    if answer is None:
        raise BatchFailedError(f"the target does not say whether it has commit {entry.commit}: ask it again")
    return answer


def read_note(storage: Storage, folder: str) -> DeliveryProgress:
    """Return how far the delivery is.

    :param folder: the sink's directory
    """
    names = storage.names(f"{folder}/{_NOTES}")
    notes = [
        DeliveryProgress(commit=int(match[2]), position=int(match[1]))
        for name in names
        if (match := _NOTE.fullmatch(name))
    ]
    with suppress(FileNotFoundError):
        body = json.loads(storage.first_line(f"{folder}/{_OLD_NOTE}"))
        notes.append(codec.load(DeliveryProgress, body, storage.place(f"{folder}/{_OLD_NOTE}")))
    return max(notes, key=lambda note: note.commit, default=DeliveryProgress())


def has_notes(storage: Storage, folder: str) -> bool:
    """Tell whether anything was ever delivered from a log.

    :param folder: the sink's directory
    """
    return not {_NOTES, _OLD_NOTE}.isdisjoint(storage.names(folder))
