"""Tables as sources, as a user declares them: the rows that are added to a Delta or an Iceberg table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger import source_clusters
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.state import ddl
from airflow_provider_exactlyonce.streaming.analysis.source_mark import mark
from airflow_provider_exactlyonce.streaming.job.kafka_source import KafkaSource
from airflow_provider_exactlyonce.streaming.job.source import NOWHERE, Begins, Source, columns_of
from airflow_provider_exactlyonce.streaming.sinks.file_checks import check_plain, has_secret
from airflow_provider_exactlyonce.tables.positions import DELTA, ICEBERG, PARTITION, SNAPSHOT, Position, name_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_exactlyonce.streaming.job.table_stream import TableReading

STOP: Final = "stop"
SKIP: Final = "skip"
_PARTS: Final = 3  # of an Iceberg table's name, at least


class TableSource(Source):
    """Reads the rows that are added to a table, version by version.

    A version that takes rows out of the table, or writes some anew, stops the pipeline before it, or is skipped as a
    whole. One that says that it only compacts files has no rows of its own.

    :ivar starting_version: the first version that a new pipeline reads
    :ivar initial_snapshot: of that version all rows that the table has at it are read, not only those that it adds
    :ivar max_files_per_trigger: at most so many files a batch, None for no limit
    :ivar on_rewrite: what becomes of a version that takes rows out
    """

    schema: str
    starting_version: int
    initial_snapshot: bool
    max_files_per_trigger: int | None
    on_rewrite: str

    @property
    @abstractmethod
    def name(self) -> str:
        """The table's name in ledgers."""

    def _check(self) -> None:
        try:
            ddl.check_columns(self.schema)
        except (RefusedError, TypeError) as error:
            raise RefusedError(f"schema of {self._shown} is not DDL: {error}") from error
        if not isinstance(self.starting_version, int) or self.starting_version < 0:
            raise self._refused("starting_version", "the number of a version, from 0")
        if not isinstance(self.initial_snapshot, bool):
            raise self._refused("initial_snapshot", "True or False")
        files = self.max_files_per_trigger
        if files is not None and (not isinstance(files, int) or files < 1):
            raise self._refused("max_files_per_trigger", "at least 1, or None for no limit")
        if self.on_rewrite not in (STOP, SKIP):
            raise self._refused("on_rewrite", f"{STOP!r} or {SKIP!r}")
        if self.conn_id is not None and (not isinstance(self.conn_id, str) or not self.conn_id):
            raise self._refused("conn_id", "the name of a connection, or None for the environment's")

    @property
    @abstractmethod
    def _shown(self) -> str:
        """Its name in messages."""

    def _refused(self, name: str, accepted: str) -> RefusedError:
        return RefusedError(f"{name}={getattr(self, name)!r} of {self._shown}: {accepted}")

    @property
    @override
    def topics(self) -> SourceTopics:
        return SourceTopics(names=(self.name,))

    @property
    @override
    def connection(self) -> str:
        return self.conn_id or ""

    @property
    @override
    def link(self) -> tuple[str, str]:
        reason = "its versions are in the checkpoint and in the ledger"
        if self.on_rewrite == SKIP:
            reason += "; those that take rows out are skipped, as it says"
        return self.name, reason

    @property
    @override
    def first_offsets(self) -> Begins:
        begin = Position(self.starting_version, SNAPSHOT if self.initial_snapshot else 0)
        return {self.name: {PARTITION: begin.offset}}

    @override
    def read(
        self, spark: SparkSession, config: Mapping[str, str], begins: Begins = NOWHERE, *, leave_out_bad: bool = False
    ) -> DataFrame:
        """Return the stream; rows that do not fit stop the pipeline.

        :raises RefusedError: when the table is not there, or its columns are not those that are declared
        """
        from airflow_provider_exactlyonce.streaming.job.table_stream import stream

        options = {} if self.conn_id is None else source_clusters.store_from_environment(self.conn_id)
        return mark(stream(spark, self._reading(options, begins)), self.topics)

    @override
    def stand_in(self, spark: SparkSession) -> DataFrame:
        # Only a stream of this kind has columns that are not null; state knows of its keys whether they are.
        from airflow_provider_exactlyonce.streaming.job.table_stream import stand_in

        return mark(stand_in(spark, self._reading({}, NOWHERE)), self.topics)

    def _reading(self, options: Mapping[str, str], begins: Begins) -> TableReading:
        from airflow_provider_exactlyonce.streaming.job.table_stream import TableReading

        return TableReading(
            name=self.name,
            columns=columns_of(self.schema, self._shown),
            start=Position.of({**self.first_offsets, **begins}[self.name][PARTITION]),
            files=self.max_files_per_trigger,
            skips=self.on_rewrite == SKIP,
            options=options,
        )

    @property
    @override
    def columns(self) -> str:
        return self._as_values.columns

    @override
    def stream_of(self, records: DataFrame, *, leave_out_bad: bool = False) -> DataFrame:
        return mark(self._as_values.fitted(records), self.topics)

    @property
    def _as_values(self) -> KafkaSource:
        """A topic of values with the same columns, which tests write."""
        return KafkaSource("rows", schema=self.schema)


@dataclass(frozen=True)
class DeltaSource(TableSource):
    """Reads the rows that are added to a Delta table.

    The stream has the columns of ``schema``; others that the table has are not read. A column that is declared ``NOT
    NULL`` must have no nulls. What the source has read is in the ledger as versions of the table, so a batch that is
    run again reads the same files.

    :param path: an absolute path that driver and tasks share, or a URL of delta-rs, such as ``s3://bucket/table``
    :param schema: columns in Spark's DDL, for example ``"id BIGINT NOT NULL, price DECIMAL(12,2)"``
    :param starting_version: the first version that a new pipeline reads; the log has to have it
    :param initial_snapshot: begin with all rows that the table has at ``starting_version``, and go on with what later
        versions add: for a table whose older versions are gone
    :param max_files_per_trigger: at most so many files a batch, None for no limit; a version may be in several batches
    :param on_rewrite: ``"stop"``: a version that takes rows out (a delete, an update, a merge, an overwrite) stops the
        pipeline before it; ``"skip"``: nothing of such a version is read, not even its added rows
    :param conn_id: the connection to the store: one of ``EXACTLYONCE_STORES``, which operators fill; None for delta-rs'
        own environment
    :raises RefusedError: naming the parameter and what is accepted
    """

    path: str
    schema: str
    starting_version: int = 0
    initial_snapshot: bool = False
    max_files_per_trigger: int | None = None
    on_rewrite: str = STOP
    conn_id: str | None = field(default=None, repr=False)  # as of a Kafka source: the pipeline's version stays

    def __post_init__(self) -> None:
        path = str(self.path).rstrip("/")
        if has_secret(path):
            raise RefusedError("path of a DeltaSource has credentials in it; name a connection: conn_id")
        if not path.startswith("/") and "://" not in path:
            raise RefusedError(f"DeltaSource({path!r}): an absolute path, or a URL such as s3://bucket/table")
        check_plain("DeltaSource", path)
        object.__setattr__(self, "path", path)
        self._check()

    @property
    @override
    def name(self) -> str:
        return name_of(DELTA, self.path)

    @property
    @override
    def _shown(self) -> str:
        return f"DeltaSource({self.path!r})"


@dataclass(frozen=True)
class IcebergSource(TableSource):
    """Reads the rows that are added to an Iceberg table, on its main branch.

    The stream has the columns of ``schema``; others that the table has are not read. A column that is declared ``NOT
    NULL`` must have no nulls. What the source has read is in the ledger as sequence numbers of the table's snapshots,
    so a batch that is run again reads the same files.

    :param table: the catalog's, the namespace's and the table's name, with dots
    :param schema: columns in Spark's DDL, for example ``"id BIGINT NOT NULL, price DECIMAL(12,2)"``
    :param starting_version: the sequence number of the first snapshot that a new pipeline reads, 0 for all
    :param initial_snapshot: begin with all rows that the table has at that snapshot, and go on with what later ones
        add: for a table whose older snapshots have expired
    :param max_files_per_trigger: at most so many files a batch, None for no limit; a snapshot may be in several batches
    :param on_rewrite: ``"stop"``: a snapshot that takes rows out (an overwrite or a delete) stops the pipeline before
        it; ``"skip"``: nothing of such a snapshot is read, not even its added rows
    :param conn_id: the connection to the catalog: one of ``EXACTLYONCE_STORES``, which operators fill; None for
        pyiceberg's own configuration
    :raises RefusedError: naming the parameter and what is accepted
    """

    table: str
    schema: str
    starting_version: int = 0
    initial_snapshot: bool = False
    max_files_per_trigger: int | None = None
    on_rewrite: str = STOP
    conn_id: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        parts = self.table.split(".")
        if len(parts) < _PARTS or not all(parts):
            raise RefusedError(
                f"IcebergSource({self.table!r}): name catalog, namespace and table, with dots between them"
            )
        self._check()

    @property
    @override
    def name(self) -> str:
        return name_of(ICEBERG, self.table)

    @property
    @override
    def _shown(self) -> str:
        return f"IcebergSource({self.table!r})"
