"""The second half of a write-ahead log: what is committed in it is delivered, in order, and noted."""

from __future__ import annotations

import json
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.exceptions import invariant
from airflow_provider_exactlyonce.streaming.sinks.file_log import COMMIT, FileLog, LogRecord
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry
from airflow_provider_exactlyonce.streaming.sinks.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0


class Target(ABC):
    """What gets the rows. It is pickled with the job, and used by one thread of the driver."""

    @abstractmethod
    def deliver(self, entry: SinkEntry, rows: Iterator[pa.RecordBatch]) -> None:
        """Hand over all rows of a commit; whatever is raised, it is tried again, for ever.

        :param entry: which commit; its number is a good idempotency key
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
        """Whether :meth:`has` is there."""
        return type(self).has is not Target.has


@dataclass(frozen=True, kw_only=True)
class Note:
    """How far the delivery is.

    :param commit: the newest commit that the target has, 0 for none
    :param position: its position in the log
    """

    commit: int = 0
    position: int = 0


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
        self._note = Note()
        self._seen = 0  # up to here no higher run has claimed
        self._oldest = 1  # the first position that is still there
        self._thread: threading.Thread | None = None

    def start(self, run: int) -> None:
        """Go on from what is noted, until a higher run has claimed. Does nothing when it runs already."""
        if self._thread is not None:
            return
        self._note = read_note(self._storage, self._folder)
        self._seen = self._note.position
        self._oldest = min(self._log.positions(), default=1)
        self._thread = threading.Thread(target=self._work, args=(run,), name=f"delivery of {self._sink}", daemon=True)
        self._thread.start()

    def up_to(self, commit: int, seconds: float) -> None:
        """Have commits delivered up to this one, and wait for it, but not for longer than this."""
        with self._changed:
            self._goal = max(self._goal, commit)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._note.commit >= commit or self._is_over(), seconds)

    @property
    def behind(self) -> int:
        """How many commits are to be delivered yet."""
        return max(0, self._goal - self._note.commit)

    def stop(self, seconds: float) -> None:
        """Wait for what is to be delivered, but not for longer than this, and end."""
        if self._thread is None:
            return
        with self._changed:
            self._changed.wait_for(lambda: not self.behind or self._is_over(), seconds)
            self._ending = True
            self._changed.notify_all()
        self._thread.join(seconds)
        if behind := self.behind:
            log.warning("sink %s: %d commits are not delivered yet; the next run does it", self._sink, behind)

    def _is_over(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def _work(self, run: int) -> None:
        pause, in_doubt = _FIRST_PAUSE_SECONDS, True
        while True:
            self._wait(lambda: self.behind > 0)
            if self._ending:
                return
            try:
                if self._is_superseded(run):
                    return
                self._deliver(self._next(), in_doubt)
            except Exception as error:  # whatever it is, the rows are in the log
                what = f"{type(error).__name__}: {error}"
                log.warning(
                    "sink %s: nothing delivered after commit %d, tried again in %g s: %s",
                    *(self._sink, self._note.commit, pause, what),
                )
                in_doubt = True
                self._wait(lambda: False, pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                pause, in_doubt = _FIRST_PAUSE_SECONDS, False

    def _wait(self, condition: Callable[[], bool], seconds: float | None = None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ending or condition(), seconds)

    def _is_superseded(self, run: int) -> bool:
        for record in self._log.following(self._seen):
            if record.run > run:
                log.warning("sink %s: run %d has claimed it and delivers what follows", self._sink, record.run)
                return True
            self._seen = record.position
        return False

    def _next(self) -> LogRecord:
        """Return the commit after the one that is noted."""
        for record in self._log.following(self._note.position):
            if record.kind == COMMIT:
                return record
        raise FileNotFoundError(f"no commit follows {self._log.place(self._note.position)}")

    def _deliver(self, record: LogRecord, in_doubt: bool) -> None:
        """Deliver a commit and note it. If we die in between, the next run asks the target, if it can."""
        invariant(record.entry is not None, "a commit has an entry")
        entry: SinkEntry = record.entry  # type: ignore[assignment]
        began = time.monotonic()
        if in_doubt and self._target.can_be_asked and self._target.has(entry):
            log.info("sink %s: the target has commit %d already", self._sink, entry.commit)
        else:
            self._target.deliver(entry, self._rows(record))
            failpoints.reach("after-delivery")
        note = Note(commit=entry.commit, position=record.position)
        self._storage.replace(f"{self._folder}/delivered.json", json.dumps(asdict(note)).encode())
        self._forget(note.position)
        with self._changed:
            self._note = note
            self._changed.notify_all()
        log.info(
            "sink %s: commit %d delivered, %d rows in %.2f s, %d commits behind",
            self._sink,
            entry.commit,
            entry.rows,
            time.monotonic() - began,
            self.behind,
        )

    def _rows(self, record: LogRecord) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        for file in record.files:
            with self._storage.open(file.name) as opened, pq.ParquetFile(opened) as parquet:
                yield from parquet.iter_batches()

    def _forget(self, before: int) -> None:
        """Remove the oldest records with their files, as far as they are delivered and old."""
        try:
            for record in self._log.following(self._oldest - 1):
                if record.position >= before or record.written > time.time() - self._keep_seconds:
                    return
                if record.attempt:
                    self._storage.remove(f"{self._folder}/data/{record.attempt}")
                self._log.remove(record.position)
                self._oldest = record.position + 1
        except OSError as error:  # what is delivered must not be delivered again for this
            log.warning("sink %s: delivered commits could not be removed: %s", self._sink, error)


def read_note(storage: Storage, folder: str) -> Note:
    """Return how far the delivery is.

    :param folder: the sink's directory
    """
    try:
        return Note(**json.loads(storage.read(f"{folder}/delivered.json")))
    except FileNotFoundError:
        return Note()
