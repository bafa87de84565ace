"""The base of declared sources, with the interface for drivers, planners and tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.records import SourceRanges
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.tables.positions import is_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


#: {topic: {partition: offset}} where a checkpoint begins, by what it knows.
Begins = Mapping[str, Mapping[int, int]]
NOWHERE: Final[Begins] = MappingProxyType({})


def columns_of(schema: str, where: str) -> StructType:
    """Return the columns that a source declares; needs a session of Spark's.

    :param schema: in Spark's DDL
    :param where: the source, for messages
    :raises RefusedError: when it is none
    """
    from pyspark.sql.types import StructType

    try:
        columns = StructType.fromDDL(schema)
    except Exception as error:
        raise RefusedError(f"schema of {where}: {schema!r} is not DDL: {error}") from error
    if not isinstance(columns, StructType):
        raise RefusedError(f"schema of {where}: {schema!r} names no fields")
    return columns


def table_begins(sources: Iterable[Source], begins: Begins = NOWHERE) -> dict[str, Mapping[int, int]]:
    """Return {table: {partition: position}} where a stream begins in its tables.

    :param begins: where a checkpoint begins, by the topics that it knows
    """
    first_offsets = (source.first_offsets for source in sources)
    return {
        name: begins.get(name, first)
        for by_table in first_offsets
        for name, first in by_table.items()
        if is_table(name)
    }


class Source(ABC):
    """A source that a pipeline declares.

    :ivar schema: its columns in Spark's DDL, None for those that Spark's Kafka source has
    :ivar conn_id: the connection that it names, None for none
    """

    schema: str | None
    conn_id: str | None

    @property
    @abstractmethod
    def topics(self) -> SourceTopics:
        """The topics that it reads; a table is one."""

    @property
    @abstractmethod
    def connection(self) -> str | None:
        """Its connection for a claim's record, None where it is read from the pipeline's own cluster."""

    @property
    @abstractmethod
    def link(self) -> tuple[str, str]:
        """Its name in the guarantee planner, and why its records can be read again."""

    @property
    def may_lose(self) -> bool:
        """Whether it goes on after records that it had not read yet are gone."""
        return False

    @property
    def spark_settings(self) -> Mapping[str, str]:
        """Spark's settings for its source."""
        return {}

    @property
    def first_offsets(self) -> Begins:
        """The offsets at which a new pipeline begins, {topic: {partition: offset}}; empty when it names none."""
        return NOWHERE

    @abstractmethod
    def read(
        self, spark: SparkSession, config: Mapping[str, str], begins: Begins = NOWHERE, *, leave_out_bad: bool = False
    ) -> DataFrame:
        """Return the stream.

        :param config: client configuration of the pipeline's cluster, in librdkafka's names
        :param begins: where the checkpoint begins, which precedes the declaration
        :param leave_out_bad: leave out records that do not fit, as :meth:`bad_records` gives them to the sink
        """

    @abstractmethod
    def stand_in(self, spark: SparkSession) -> DataFrame:
        """Return a stream of the same columns for planning only: without a record, and without asking anybody."""

    @abstractmethod
    def stream_of(self, records: DataFrame, *, leave_out_bad: bool = False) -> DataFrame:
        """Return the stream that records make which a test gives, as the pipeline's function gets it.

        :param records: a frame of :attr:`columns`
        :param leave_out_bad: leave out records that do not fit, instead of raising
        """

    @property
    @abstractmethod
    def columns(self) -> str:
        """The columns of the records that a test gives, in DDL."""

    def bad_records(self, spark: SparkSession, config: Mapping[str, str], ranges: SourceRanges) -> DataFrame | None:
        """Read a batch's ranges again and return the records that do not fit, None when every record fits.

        :param ranges: of all sources
        """
        return None

    def misfits(self, records: DataFrame) -> DataFrame | None:
        """Return the records that do not fit, of those that a test gives; None where they stop the pipeline."""
        return None
