"""Reads and repairs the offset and commit logs of a Spark checkpoint (log format 1 of Spark 4.2).

:mod:`~airflow_provider_exactlyonce.checkpoint.state` reads the directories below ``state/``.

::

    metadata    {"id":"<query id>"}
    offsets/N   v1
                {"batchWatermarkMs":0,"batchTimestampMs":…,"conf":{…}}
                one line a source: its end offsets as JSON, or -
    commits/N   v1, or v2 with state of checkpoint format 2
                {"nextBatchWatermarkMs":0, "stateUniqueIds":{"<operator>":[["<id of a store's files>", …], …]}}
    sources/<i>/0   where source i began; a file source logs its files in 0, 1, … and 9.compact
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import ChangedError
from airflow_provider_exactlyonce.storage.trees import bytes_of

P = ParamSpec("P")
T = TypeVar("T")

_NO_OFFSET: Final = "-"
#: Below ``state``, a file of a version of a state partition.
_VERSION: Final = re.compile(r"[^/]+/\d.*/(\d+)(?:_[^/]*)?\.(?:delta|snapshot|zip|changelog)")

#: {topic: {partition: end}}, end exclusive
KafkaOffsets = dict[str, dict[int, int]]


class TornFileError(ValueError):
    """A file of the checkpoint isn't whole."""


@dataclass(frozen=True, kw_only=True)
class BatchOffsets:
    """One ``offsets/N``.

    :param text: the file's exact text
    :param watermark: event-time watermark of the batch, milliseconds since the epoch, 0 for none
    :param timestamp: the batch's timestamp, milliseconds since the epoch
    :param sources: a line a source, None for a source without an offset yet
    :param conf: the Spark settings that are fixed for the checkpoint's life
    """

    text: str
    watermark: int
    timestamp: int
    sources: tuple[str | None, ...]
    conf: Mapping[str, str] = field(default_factory=dict)

    def kafka_ends(self) -> KafkaOffsets:
        """Return where the batch ends in each topic-partition of its Kafka sources."""
        return _kafka_offsets(self.positions)

    @property
    def positions(self) -> list[Any]:
        """The lines of the sources as JSON values, None for a source without an offset yet."""
        return [json.loads(line or "null") for line in self.sources]

    @property
    def of_several_sources(self) -> list[str]:
        """The topics that more than one source reads; the sources' ends may differ."""
        sources = Counter(topic for position in self.positions for topic in _kafka_offsets([position]))
        return [topic for topic, count in sources.items() if count > 1]

    def same_sources(self, other: BatchOffsets) -> bool:
        """Tell whether both end at the same place in every source."""
        return self.positions == other.positions


def _kafka_offsets(positions: Iterable[Any]) -> KafkaOffsets:
    """Return the Kafka sources' offsets among all sources' offsets."""
    offsets: KafkaOffsets = {}
    for position in positions:
        for topic, partitions in position.items() if isinstance(position, dict) else ():  # a rate source's isn't
            if isinstance(partitions, dict):  # else it is of a file source
                offsets.setdefault(topic, {}).update({int(number): offset for number, offset in partitions.items()})
    return offsets


def parse_offsets(text: str) -> BatchOffsets:
    """Read the text of an ``offsets/N``.

    :raises TornFileError: when it isn't whole
    """
    version, _, body = text.partition("\n")
    header, _, sources = body.partition("\n")
    try:
        metadata: Mapping[str, Any] = json.loads(header)
        lines = tuple(None if line == _NO_OFFSET else line for line in sources.split("\n") if line)
        for line in lines:
            json.loads(line or "{}")
        if version != "v1" or not lines:
            raise TornFileError(f"offset log entry of version {version!r} with {len(lines)} sources; v1 is read")
        return BatchOffsets(
            text=text,
            watermark=int(metadata["batchWatermarkMs"]),
            timestamp=int(metadata["batchTimestampMs"]),
            sources=lines,
            conf=metadata.get("conf", {}),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise TornFileError(f"offset log entry is not whole: {error}") from error


@dataclass(frozen=True, kw_only=True)
class BatchCommit:
    """One ``commits/N``.

    :param next_watermark: watermark of the batch after it, milliseconds since the epoch
    :param state_ids: {operator: a set of ids per state partition} of the files that the batch's state is in; None with
        state of checkpoint format 1, whose file names have no id
    """

    next_watermark: int
    state_ids: Mapping[int, tuple[frozenset[str], ...]] | None


def parse_commit(text: str) -> BatchCommit:
    """Read the text of a ``commits/N``.

    :raises TornFileError: when it isn't whole
    """
    version, _, body = text.partition("\n")
    try:
        fields: Mapping[str, Any] = json.loads(body)
        ids: Mapping[str, Any] | None = fields.get("stateUniqueIds")
        if version not in ("v1", "v2", "v3"):
            raise TornFileError(f"commit log entry of version {version!r}; v1 to v3 are read")
        return BatchCommit(
            next_watermark=int(fields["nextBatchWatermarkMs"]),
            state_ids=None
            if ids is None
            else {int(operator): tuple(map(frozenset, partitions)) for operator, partitions in ids.items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TornFileError(f"commit log entry is not whole: {error}") from error


class Checkpoint:
    """One lineage's checkpoint directory.

    :param path: the directory that Spark was given as ``checkpointLocation``
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._store: Final = store_of(path)

    def batches(self, log: str) -> list[int]:
        """Return the batch ids in ``offsets`` or ``commits``, oldest first."""
        return sorted(int(name) for name in self._store.names(self.path / log) if name.isdecimal())

    def query_id(self) -> str | None:
        """Read Spark's query id; None when there is none.

        :raises TornFileError: when the file isn't whole
        """
        try:
            return str(json.loads(bytes_of(self.path / "metadata"))["id"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise TornFileError(f"metadata is not whole: {error}") from error

    def newest_offsets(self) -> int | None:
        """Return the id of the newest planned batch."""
        return max(self.batches("offsets"), default=None)

    def newest_commit(self) -> int | None:
        """Return the id of the newest batch that Spark has recorded as done."""
        return max(self.batches("commits"), default=None)

    def offsets(self, batch: int) -> BatchOffsets | None:
        """Read ``offsets/<batch>``; None when there is none.

        :raises TornFileError: when the file isn't whole
        """
        return self._entry("offsets", batch, parse_offsets)

    def conf(self) -> Mapping[str, str]:
        """Return the Spark settings that are fixed for the checkpoint's life; empty before its first batch."""
        for batch in reversed(self.batches("offsets")):
            if offsets := whole(self.offsets, batch):
                return offsets.conf
        return {}

    def commit(self, batch: int) -> BatchCommit | None:
        """Read ``commits/<batch>``; None when there is none.

        :raises TornFileError: when the file isn't whole
        """
        return self._entry("commits", batch, parse_commit)

    def _entry(self, log: str, batch: int, parse: Callable[[str], T]) -> T | None:
        try:
            return parse(bytes_of(self.path / log / str(batch)).decode())
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise TornFileError(f"{log}/{batch} is not text: {error}") from error

    def state_names_are_unique(self, batch: int) -> bool:
        """Tell whether the state of a batch is named in ``commits/<batch>`` (format 2), or there is no state."""
        state = self.path / "state"
        if not any(
            name.isdecimal() for operator in self._store.names(state) for name in self._store.names(state / operator)
        ):
            return True
        commit = self.commit(batch)
        return commit is not None and commit.state_ids is not None

    def newer_state(self, version: int) -> Path | None:
        """Return a state file of a higher version, None when there is none.

        :param version: the state that batch N leaves has version N + 1
        """
        for path in self._store.files(self.path / "state"):
            if (match := _VERSION.fullmatch(path)) and int(match[1]) > version:
                return self.path / "state" / path
        return None

    def initial_positions(self) -> Iterator[Mapping[str, Any]]:
        """Yield the positions in ``sources/<i>/0`` of each source with one, in Spark's order, {} for a rate source."""
        for path in begun_sources(self.path):
            _, brace, body = bytes_of(self.path / path).partition(b"{")
            yield json.loads(b"{" + body) if brace else {}

    def kafka_starts(self, batch: int) -> KafkaOffsets:
        """Return where a batch begins, but in partitions that it reads first; batch 0 where the sources do.

        :raises TornFileError: when the batch before it isn't whole
        """
        starts = _kafka_offsets(self.initial_positions())
        previous = self.offsets(batch - 1) if batch else None
        for topic, ends in (previous.kafka_ends() if previous else {}).items():
            starts.setdefault(topic, {}).update(ends)
        return starts

    def write_offsets(self, batch: int, text: str) -> None:
        """Put ``offsets/<batch>`` back."""
        _replace(self.path / "offsets" / str(batch), text)

    def write_query_id(self, query_id: str) -> None:
        """Put ``metadata`` back."""
        _replace(self.path / "metadata", json.dumps({"id": query_id}, separators=(",", ":")))

    def removal(self, log: str, batch: int) -> Callable[[], None]:
        """Return what removes an entry, see :func:`removal_of`."""
        return removal_of(self.path / log / str(batch))


class ClaimedCheckpoint(Checkpoint):
    """The checkpoint of a run's lineage; another driver may claim it while this process is frozen.

    :param path: the directory
    :param check: raises when one has
    """

    def __init__(self, path: Path, check: Callable[[], None]) -> None:
        super().__init__(path)
        self._check: Final = check

    def plan(self, batch: int, text: str) -> None:
        """Make a batch, with this ``offsets/<batch>``, the one that Spark runs next.

        :raises ChangedError: when a later one that was to be removed was changed meanwhile
        """
        removals = [self.removal("offsets", planned) for planned in self.batches("offsets") if planned > batch]
        if removals:
            self._check()  # after the look: nothing that a successor has planned is among them
        for remove in removals:
            remove()
        self.write_offsets(batch, text)


def begun_sources(checkpoint: Path) -> list[str]:
    """Return each ``sources/<i>/0`` that there is, in Spark's order."""
    store, directory = store_of(checkpoint), checkpoint / "sources"
    names = sorted(store.names(directory), key=lambda name: (len(name), name))  # 10 comes after 9
    return [f"sources/{name}/0" for name in names if store.facts(directory / name / "0") is not None]


def removal_of(file: Path) -> Callable[[], None]:
    """Return what removes a file as it is now, with Hadoop's checksum of it; nothing where there is none now.

    It is asked for before the file is judged, and raises :class:`ChangedError` when the file was changed since: whoever
    is frozen meanwhile removes nothing that a successor has put there.
    """
    store = store_of(file)
    stored = store.read(file)

    def remove() -> None:
        if stored is None:
            return
        if not store.has_locks:
            store.delete_if(file, stored.version)
            return
        if store.read(file) not in (None, stored):
            raise ChangedError(f"{file} was changed since it was read")
        store.delete(_note_of(file))
        store.delete(file)  # on a condition it would leave a lock among Spark's files

    return remove


def _replace(file: Path, text: str) -> None:
    """Replace a file, and delete Hadoop's checksum of the old one."""
    store = store_of(file)
    store.delete(_note_of(file))
    store.replace(file, text.encode())


def _note_of(file: Path) -> Path:
    return file.with_name(f".{file.name}.crc")


def whole(read: Callable[P, T | None], *arguments: P.args, **named: P.kwargs) -> T | None:
    """Call a reading method of :class:`Checkpoint`; returns None when its file is missing or torn."""
    try:
        return read(*arguments, **named)
    except TornFileError:
        return None
