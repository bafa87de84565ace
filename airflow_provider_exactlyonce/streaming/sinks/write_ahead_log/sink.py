"""A sink for a target that has neither transactions nor keys: durable in a log first, delivered after the commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.file_checks import check_parquet
from airflow_provider_exactlyonce.streaming.sinks.files.log import folder_of
from airflow_provider_exactlyonce.streaming.sinks.files.sink import FileCommitter, FileSink
from airflow_provider_exactlyonce.streaming.sinks.files.storage import open_storage
from airflow_provider_exactlyonce.streaming.sinks.spi import (
    WRITE_AHEAD_LOG,
    WRITE_AHEAD_LOG_ASKED,
    Sink,
    SinkCommitter,
    SinkContext,
    SinkEntry,
)
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.delivery import (
    Delivery,
    DeliveryProgress,
    Target,
    read_note,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SECONDS_PER_HOUR: Final = 3600


@dataclass(frozen=True, kw_only=True)
class WriteAheadLogSink(Sink):
    """Commits the result to a log of files, and delivers commit after commit to the target.

    Exactly once when the target can be asked what it has, at least once otherwise; see :class:`Target`.

    :param path: where the log is, as in :class:`~airflow_provider_exactlyonce.streaming.sinks.files.sink.FileSink`
    :param target: gets the rows
    :param keep_hours: how long commits stay in the log after they were delivered; at least an hour
    :param wait_seconds: how long a batch waits for its delivery, so that a slow target slows the pipeline down; after
        that the log grows
    :param drain_seconds: how long a driver that ends waits for what is not delivered; the next run does the rest
    :param storage_options: what fsspec needs to know of the file system; never shown
    """

    path: str
    target: Target = field(repr=False)
    keep_hours: float = 24
    wait_seconds: float = 1
    drain_seconds: float = 30
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.target, Target):
            raise RefusedError(f"WriteAheadLogSink(name={self.name!r}): target is {type(self.target)}, not a Target")
        if self.keep_hours < 1:
            raise RefusedError(
                f"WriteAheadLogSink(name={self.name!r}, keep_hours={self.keep_hours}): at least 1, or a frozen driver "
                "could find its place in the log free"
            )
        object.__setattr__(self, "path", self.files.path)

    @property
    def files(self) -> FileSink:
        """The files that the log is made of."""
        return FileSink(name=self.name, path=self.path, storage_options=self.storage_options)

    @property
    @override
    def guarantee(self) -> str:
        return WRITE_AHEAD_LOG_ASKED if self.target.can_be_asked else WRITE_AHEAD_LOG

    @property
    @override
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        return {"path": (self.path,), "target": (type(self.target).__qualname__,)}

    @override
    def check_columns(self, columns: StructType) -> None:
        check_parquet(columns, f"sink {self.name}")

    @override
    def open(self, context: SinkContext) -> SinkCommitter:
        return _WriteAheadLog(self, context.pipeline)

    def delivered(self, pipeline: str) -> DeliveryProgress:
        """Return how far the delivery is.

        :param pipeline: the pipeline's name
        """
        return read_note(open_storage(self.path, self.storage_options), folder_of(pipeline, self.name))


class _WriteAheadLog(FileCommitter):
    """Commits files, and has them delivered once the pipeline's ledger has the commit."""

    def __init__(self, sink: WriteAheadLogSink, pipeline: str) -> None:
        super().__init__(sink.files, pipeline)
        self._settings: Final = sink
        self._delivery: Final = Delivery(
            sink.target,
            self._storage,
            self._log,
            sink=sink.name,
            folder=self._folder,
            keep_seconds=sink.keep_hours * _SECONDS_PER_HOUR,
        )

    @override
    def claim(self, run: int) -> SinkEntry | None:
        entry = super().claim(run)
        with self._answering():
            self._delivery.start(run)
        return entry

    @override
    def settled(self, commit: int) -> None:
        newest = self._known().entry
        if newest is not None:
            self._delivery.up_to(min(commit, newest.commit), self._settings.wait_seconds)
        super().settled(commit)  # it may fail, and its tidying can wait

    @property
    @override
    def undelivered(self) -> int:
        return self._delivery.behind

    @override
    def audit(self, commits: Iterable[SinkEntry]) -> Iterator[str]:
        note = read_note(self._storage, self._folder)
        kept = list(commits)
        positions = self._log.positions()
        if positions and positions[0] > 1:
            first = self._log.read(positions[0]).entry
            kept = [entry for entry in kept if first is None or entry.commit >= first.commit]
        yield from super().audit(kept)
        target = self._settings.target
        for entry in kept:
            if entry.commit == note.commit and target.can_be_asked and not target.has(entry):
                yield f"commit {entry.commit}: it was delivered, and the target does not have it"

    @override
    def close(self) -> None:
        self._delivery.stop(self._settings.drain_seconds)
        super().close()
