"""The OpenLineage facets of a task that runs a pipeline: topics with their input and output offsets, and tables.

All of it is read from the ledger, so it is committed and readable, whichever task ran the driver. OpenLineage's
client is imported inside functions only: without Airflow's OpenLineage provider nobody calls them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, UnknownPipelineError
from airflow_provider_exactlyonce.tables.positions import DELTA, Position, is_table, parse

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset

    from airflow_provider_exactlyonce.control.status import Status, TableStatus
    from airflow_provider_exactlyonce.ledger.reader import LedgerReader, LedgerTail
    from airflow_provider_exactlyonce.ledger.records import CommitRecord
    from airflow_provider_exactlyonce.ledger.source_clusters import SourceCluster, SourceClusters

    Lineage = OperatorLineage[Any, Any]
    Datasets = Mapping[str, tuple[str, str]]
    Committed = tuple[CommitRecord, Sequence[CommitRecord], SourceClusters, Datasets]
    Tables = Mapping[str, TableStatus]

#: Of a task that has made more commits than this, the newest are reported.
COMMITS_LIMIT: Final = 10_000

_FIRST_WINDOW: Final = 64
_OFFSETS_FACET: Final = "exactlyonce_offsets"
_PIPELINE_FACET: Final = "exactlyonce_pipeline"

#: {(topic, partition): [first offset, offset after the last, rows]}
_Ranges = dict[tuple[str, int], list[int]]


def committed_since(config: Mapping[str, Any], pipeline: str, since: int | None) -> Committed | None:
    """Return a pipeline's newest commit, those since a time, oldest first, its sources' clusters, and their tables.

    None is returned when it has never committed.

    :param config: client configuration in librdkafka's names
    :param since: milliseconds since the epoch, None for nothing but the newest commit
    :raises ExactlyOnceError: when the cluster does not answer
    """
    from airflow_provider_exactlyonce.hooks.kafka import source_config
    from airflow_provider_exactlyonce.ledger.reader import LedgerReader
    from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters

    with LedgerReader(config, pipeline) as reader:
        tail = reader.tail()
        if tail is None or tail.commit is None:
            return None
        sources = SourceClusters.claimed(config, tail.claim, source_config)
        commits = [] if since is None else _newest(reader, tail, since)
        return tail.commit, commits, sources, tail.claim.source_datasets if tail.claim is not None else {}


def _newest(reader: LedgerReader, tail: LedgerTail, since: int) -> list[CommitRecord]:
    """Read backwards in growing windows until a commit is older, or there are enough."""
    from airflow_provider_exactlyonce.ledger.records import CommitRecord

    window = _FIRST_WINDOW
    while True:
        start = max(0, tail.commit_offset - window)
        commits = [record for _, record in reader.records(start) if isinstance(record, CommitRecord)]
        if start == 0 or commits[0].committed < since or len(commits) > COMMITS_LIMIT:
            return [record for record in commits if record.committed >= since][-COMMITS_LIMIT:]
        window *= 4


def lineage_of(known: Committed | None, written: Tables | None = None) -> Lineage:
    """Return the datasets and facets of a task.

    :param known: its commits, None for a pipeline that has never committed
    :param written: {sink: its table as the sink has left it}, as far as its driver has reported
    """
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.generated.base import RunFacet

    if known is None:
        return OperatorLineage()
    last, commits, sources, tables = known
    pipeline = RunFacet().with_additional_properties(
        pipeline=last.pipeline,
        run=last.run,
        lineage=last.lineage,
        version=last.version,
        watermark=last.watermark or None,
        commits=_span(commits),
        rows=sum(record.primary_rows for record in commits),
        rows_by_sink=dict(sum((Counter(record.rows_by_sink) for record in commits), Counter())),
        records=_sum(record.records for record in commits),
        late_rows=_sum(record.late_rows for record in commits),
    )
    return OperatorLineage(
        inputs=_inputs(sources, tables, last, commits),
        outputs=_outputs(_namespace(sources.own), last, commits, written or {}),
        run_facets={_PIPELINE_FACET: pipeline},
    )


def _namespace(cluster: SourceCluster) -> str:
    """Return a cluster's namespace by OpenLineage's specification: the first of its brokers that we know."""
    return f"kafka://{str(cluster.config['bootstrap.servers']).split(',')[0].strip()}"


def _sum(counts: Iterable[int | None]) -> int | None:
    known_counts = list(counts)
    return None if None in known_counts else sum(filter(None, known_counts))


def _inputs(
    sources: SourceClusters, tables: Datasets, last: CommitRecord, commits: Sequence[CommitRecord]
) -> list[InputDataset]:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.generated.base import InputDatasetFacet

    read_ranges = _merged(
        ((topic, partition), start, end, end - start)
        for record in commits
        for topic, ranges in record.source.items()
        for partition, (start, end) in ranges.items()
    )
    datasets = []
    for topic in sorted(last.source):
        offsets: Any = InputDatasetFacet().with_additional_properties(**_facts(topic, read_ranges, commits))
        facets = {_OFFSETS_FACET: offsets} if commits else {}
        namespace, name = tables[topic] if is_table(topic) else (_namespace(sources.of(topic)), topic)
        table_facets = _facets_of_source(topic, commits) if is_table(topic) else {}
        datasets.append(InputDataset(namespace=namespace, name=name, facets=table_facets, inputFacets=facets))
    return datasets


def _outputs(
    namespace: str, last: CommitRecord, commits: Sequence[CommitRecord], tables: Tables
) -> list[OutputDataset]:
    from openlineage.client.generated.base import OutputDatasetFacet

    written_ranges = _merged(
        ((topic, partition), span.first, span.last + 1, span.rows)
        for record in commits
        for topic, ranges in record.sink.items()
        for partition, span in ranges.items()
    )
    datasets = _tables(last, commits, tables)
    for topic in sorted({topic for topic, _ in written_ranges} | {*last.sink, *last.earlier_sink_topics}):
        rows = sum(rows for (name, _), (_, _, rows) in written_ranges.items() if name == topic)
        offsets = OutputDatasetFacet().with_additional_properties(**_facts(topic, written_ranges, commits))
        datasets.append(_output((namespace, topic), rows, commits, {_OFFSETS_FACET: offsets}))
    return datasets


def _tables(last: CommitRecord, commits: Sequence[CommitRecord], tables: Tables) -> list[OutputDataset]:
    """Return the datasets of the sinks that are not Kafka."""
    rows = {share.dataset: 0 for share in last.others.values() if share.dataset is not None}
    for record in commits:
        for share in record.others.values():
            if share.dataset is not None:
                rows[share.dataset] = rows.get(share.dataset, 0) + share.rows
    # Of two sinks with one table the later one has made the newer version.
    facets_by_dataset = {
        share.dataset: _facets_of_sink(tables[name], last, commits)
        for name, share in last.others.items()
        if share.dataset is not None and name in tables
    }
    return [
        _output(dataset, count, commits, {}, facets_by_dataset.get(dataset)) for dataset, count in sorted(rows.items())
    ]


def _facets_of_source(table: str, commits: Sequence[CommitRecord]) -> dict[str, Any]:
    """Return the format of a table that is read, and the newest version that was read, if commits have read one."""
    kind, _ = parse(table)
    ends = [end for record in commits for start, end in record.source.get(table, {}).values() if end > start]
    version = None
    if ends and kind == DELTA:  # Iceberg's readers call a snapshot's id a version, and positions have its number
        position = Position.of(max(ends))
        version = str(position.version if position.file else position.version - 1)
    return _facets_of_table(kind, version, [])


def _facets_of_sink(table: TableStatus, last: CommitRecord, commits: Sequence[CommitRecord]) -> dict[str, Any]:
    """Return the format and the columns of a table that is written, and the version that the newest commit has made."""
    is_reported = bool(commits) and table.commit == last.commit
    return _facets_of_table(table.storage, table.version if is_reported else None, table.columns)


def _facets_of_table(storage: str, version: str | None, columns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
    from openlineage.client.generated.schema_dataset import SchemaDatasetFacet, SchemaDatasetFacetFields
    from openlineage.client.generated.storage_dataset import StorageDatasetFacet

    facets: dict[str, Any] = {"storage": StorageDatasetFacet(storageLayer=storage, fileFormat="parquet")}
    if version is not None:
        facets["version"] = DatasetVersionDatasetFacet(datasetVersion=version)
    if columns:
        fields = [SchemaDatasetFacetFields(name=name, type=kind) for name, kind in columns]
        facets["schema"] = SchemaDatasetFacet(fields=fields)
    return facets


def _output(
    dataset: tuple[str, str],
    rows: int,
    commits: Sequence[CommitRecord],
    facets: Mapping[str, Any],
    table_facets: dict[str, Any] | None = None,
) -> OutputDataset:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet

    statistics = OutputStatisticsOutputDatasetFacet(rowCount=rows)
    output_facets = {"outputStatistics": statistics, **facets} if commits else {}
    return OutputDataset(namespace=dataset[0], name=dataset[1], facets=table_facets or {}, outputFacets=output_facets)


def _merged(ranges: Iterable[tuple[tuple[str, int], int, int, int]]) -> _Ranges:
    """Add up ranges of offsets, an empty one leaves no trace."""
    spans: _Ranges = {}
    for partition, start, end, rows in ranges:
        if start == end:
            continue
        span = spans.setdefault(partition, [start, end, 0])
        spans[partition] = [min(span[0], start), max(span[1], end), span[2] + rows]
    return spans


def _facts(topic: str, ranges: _Ranges, commits: Sequence[CommitRecord]) -> dict[str, Any]:
    partitions = [
        {"partition": partition, "start": start, "end": end, **({} if is_table(name) else {"rows": rows})}
        for (name, partition), (start, end, rows) in sorted(ranges.items())
        if name == topic
    ]
    return {"commits": _span(commits), "partitions": partitions}


def _span(commits: Sequence[CommitRecord]) -> dict[str, int] | None:
    return {"first": commits[0].commit, "last": commits[-1].commit} if commits else None


class PipelineLineage:
    """Gives an operator with the fields of a pipeline the methods that Airflow's OpenLineage provider calls."""

    checkpoint: Any
    kafka_conn_id: str

    def get_openlineage_facets_on_start(self) -> Lineage:
        """Return the topics that the pipeline has read and written so far."""
        return self._lineage(None)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Lineage:
        """Return the topics with the offsets that were committed while the task ran."""
        started = getattr(task_instance, "start_date", None)
        return self._lineage(None if started is None else int(started.timestamp() * 1000))

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Lineage:
        """Return the same as on completion: commits stay committed."""
        return self.get_openlineage_facets_on_complete(task_instance)

    def ledger_of(self, pipeline: str) -> str:
        """Return the name of the ledger in which the task's commits are."""
        return pipeline

    def _lineage(self, since: int | None) -> Lineage:
        from airflow_provider_exactlyonce.hooks.kafka import client_config

        try:
            pipeline, status = self._read_status()
            known = committed_since(client_config(self.kafka_conn_id), self.ledger_of(pipeline), since)
        except UnknownPipelineError:
            return lineage_of(None)
        return lineage_of(
            known, status.tables if status is not None and status.pipeline == self.ledger_of(pipeline) else {}
        )

    def _read_status(self) -> tuple[str, Status | None]:
        """Return the pipeline's name and its driver's status; the facets of Kafka need only the name."""
        from airflow_provider_exactlyonce.control import status
        from airflow_provider_exactlyonce.hooks import home

        name: str | None = getattr(self, "pipeline", None)
        try:
            pipeline_home, name = home.find(self.kafka_conn_id, pipeline=name, checkpoint=self.checkpoint or None)
            return name, status.read(pipeline_home.status)
        except (OSError, ExactlyOnceError):  # as of a backfill, whose pipeline's home may not be there yet
            if name is None:
                raise
            return name, None
