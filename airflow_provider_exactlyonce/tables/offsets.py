"""A table's positions, with the interface of topics' offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import DataLostError, RefusedError, TableChangedError
from airflow_provider_exactlyonce.kafka.stable_offsets import DescribedTopic, PartitionOffsets
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.tables.datasets import dataset_at
from airflow_provider_exactlyonce.tables.delta_log import DeltaTableLog
from airflow_provider_exactlyonce.tables.iceberg_log import IcebergTableLog
from airflow_provider_exactlyonce.tables.positions import DELTA, ICEBERG, PARTITION, Position, parse
from airflow_provider_exactlyonce.tables.table_log import TableFile, TableLog, files_between

if TYPE_CHECKING:
    from confluent_kafka.admin import OffsetSpec

_LOGS: Final[Mapping[str, Callable[[str, Mapping[str, str]], TableLog]]] = {
    DELTA: DeltaTableLog,
    ICEBERG: IcebergTableLog,
}


def open_log(name: str, options: Mapping[str, str]) -> TableLog:
    """Return the log of a table.

    :param name: as ledgers have it
    :param options: of its store or catalog
    """
    kind, place = parse(name)
    return _LOGS[kind](place, options)


class _Spec:
    """In place of an ``OffsetSpec``, for a table: the position itself."""

    def __init__(self, log: TableLog) -> None:
        self._log: Final = log

    def latest(self) -> int:
        return self._log.end().offset

    def earliest(self) -> int:
        return self._log.begin().offset

    def for_timestamp(self, milliseconds: int) -> int:
        """Return the position before the versions that are all committed then or later, -1 without such."""
        first = None
        for version in self._log.versions(self._log.begin()):
            if version.committed < milliseconds:
                first = None
            elif first is None:
                first = Position(version.version)
        return -1 if first is None else first.offset


class TableOffsets(PartitionOffsets):
    """The positions of one table.

    :param log: of the table
    :param identity: the id that the table must have, None for its id at the first request
    """

    def __init__(self, log: TableLog, identity: str | None = None) -> None:
        self._log: Final = log
        self._identity = identity

    @override
    def describe(self, topics: Iterable[str]) -> dict[str, DescribedTopic]:
        identity = self.identity()
        described = DescribedTopic(topic_id=identity, partitions=(PARTITION,)) if identity is not None else None
        return {topic: described for topic in topics if described is not None}

    @override
    def _ask(
        self, partitions: Iterable[TopicPartition], spec: Callable[[Any], OffsetSpec], *, committed: bool
    ) -> dict[TopicPartition, int]:
        wanted = list(partitions)
        position: Any = spec(_Spec(self._log)) if wanted else None
        return {partition: int(position) for partition in wanted}

    def identity(self) -> str | None:
        """Return the table's id, which a table made in its place does not have; None when it is not there.

        :raises DataLostError: when the id has changed
        """
        identity = self._log.identity()
        if identity is not None and self._identity not in (None, identity):
            raise DataLostError(
                f"table {self._log.name} was recreated: its id is {identity}, and was {self._identity}. What it held "
                "and was not read is gone: begin a new pipeline, with a name and a home of its own"
            )
        self._identity = self._identity or identity
        return identity

    @property
    def dataset(self) -> tuple[str, str]:
        """Where the table is, as a namespace and a name of OpenLineage."""
        return dataset_at(self._log.location)

    def rows(self, start: int, end: int) -> int | None:
        """Return how many rows are between two positions, None when the table does not say."""
        total = 0
        for file in self._files(start, end):
            if file.rows is None:
                return None
            total += file.rows
        return total

    def check_begin(self, position: int) -> None:
        """Check that a new pipeline can begin at a position.

        :raises RefusedError: when the versions to read first are not known any more, or can't be read
        """
        try:
            next(self._log.versions(Position.of(position)), None)
        except (DataLostError, TableChangedError) as error:
            raise RefusedError(f"starting_version of the source: {error}") from error

    def first_gone(self, start: int, end: int) -> str | None:
        """Return the first file between two positions that can't be read any more, None when all can.

        :raises DataLostError: when a version is gone
        """
        store = self._log.store
        return next((file.path for file in self._files(start, end) if not store.is_there(file.path)), None)

    def _files(self, start: int, end: int) -> Iterator[TableFile]:
        first, last = Position.of(start), Position.of(end)
        return files_between(self._log.versions(first), first, last)
