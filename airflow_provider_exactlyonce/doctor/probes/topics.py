"""Looks at the topics of a pipeline: whether a start would accept them, and how long their records stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.checkpoint import job as jobs
from airflow_provider_exactlyonce.checkpoint.start_checks import check_topic_ids
from airflow_provider_exactlyonce.doctor.facts import Facts, TopicsFacts
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition, by_topic
from airflow_provider_exactlyonce.ledger.records import ledger_topic, transactional_id
from airflow_provider_exactlyonce.ledger.source_clusters import SourceCluster, SourceTable
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.kafka.wire import WireClient

#: After an offset that holds a transaction's marker, so many further ones are looked at for a record.
_SPAN: Final = 100


def names(facts: Facts) -> tuple[list[str], list[str], dict[SourceTopics, str]]:
    """Return the topics that the pipeline reads, and those that it writes, as far as its records tell.

    Third is {pattern: why its topics are unknown now}.
    """
    tail = facts.tail
    unavailable: dict[SourceTopics, str] = {}
    sources: set[str] = set()
    sinks: set[str] = set()
    if tail is not None and tail.commit is not None:
        sources |= tail.commit.source.keys()
        sinks |= tail.commit.sink.keys() | tail.commit.sink_topic_ids.keys()
    lineage = facts.home.lineage if facts.home else None
    if facts.home is not None and lineage is not None and tail is not None and tail.claim is not None:
        job = jobs.read(facts.home.home, lineage.id, tail.claim.version)
        if job is not None:
            for source in map(SourceTopics.parse, job.sources):
                try:
                    sources |= set(facts.clusters.topics(source))
                except ExactlyOnceError as error:
                    unavailable[source] = str(error)
            sinks |= set(job.sinks)
    return sorted(sources), sorted(sinks), unavailable


def look(facts: Facts, client: WireClient) -> TopicsFacts:
    """Check the topics as a start would, and read the offsets of their remaining records."""
    from airflow_provider_exactlyonce.audit import topics

    (sources, sinks, unavailable), clusters = names(facts), facts.clusters
    unmatched = {
        (clusters.read_by(source), str(source)): ("topic-unavailable", reason) for source, reason in unavailable.items()
    }
    topics_facts = TopicsFacts(cluster=_cluster(facts, client), problems=unmatched)
    own_ids: dict[str, str] = {}
    other_ids: dict[str, str] = {}
    for cluster, cluster_topics in clusters.by_cluster(dict.fromkeys(sources)).items():
        uses: dict[str, dict[str, Any]] = {name: {"sources": [name]} for name in cluster_topics}
        if isinstance(cluster, SourceTable):
            other_ids |= _look_at_table(topics_facts, cluster)
            continue
        if cluster is not clusters.own:
            other_ids |= _look_elsewhere(topics_facts, cluster, uses)
            continue
        uses |= {name: {"sinks": [name]} for name in sinks}
        if facts.tail is not None:
            uses[ledger_topic(facts.pipeline)] = {"ledger": ledger_topic(facts.pipeline)}
        own_ids = _accepted(topics_facts, cluster, client, uses)
    try:
        check_topic_ids(own_ids, facts.tail, other_ids)
    except RefusedError as error:
        topics_facts.recreated = str(error)
    existing_topics = [name for name in sources if topics_facts.is_there(clusters.of(name), name)]
    offsets = clusters.offsets
    topics_facts.earliest = offsets.starts(offsets.partitions(existing_topics))
    topics_facts.ends = offsets.ends(topics_facts.earliest)
    for cluster, cluster_topics in clusters.by_cluster(dict.fromkeys(existing_topics)).items():
        if isinstance(cluster, SourceTable):
            continue  # which nothing but its owner's own jobs makes smaller
        settings = topics.describe(cluster.config, list(cluster_topics))
        bounded = {name for name, topic_settings in settings.items() if topic_settings.retention_bytes >= 0}
        cluster_client = client if cluster is clusters.own else cluster.client
        sizes = _sizes(cluster_client, [partition for partition in topics_facts.earliest if partition[0] in bounded])
        topics_facts.settings = {**topics_facts.settings, **settings}
        topics_facts.sizes = {**topics_facts.sizes, **sizes}
    topics_facts.written = _written(facts, topics_facts)
    return topics_facts


def _look_at_table(topics_facts: TopicsFacts, table: SourceTable) -> dict[str, str]:
    try:
        identity = table.topic_id(table.name)
    except ExactlyOnceError as error:
        topics_facts.problems[table, table.name] = ("topic-unavailable", str(error))
        return {}
    if identity is None:
        topics_facts.problems[table, table.name] = ("topic-missing", f"{table} does not exist")
        return {}
    return {table.name: identity}


def _look_elsewhere(
    topics_facts: TopicsFacts, cluster: SourceCluster, uses: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Look at topics that are read from another cluster; one that can't be reached says nothing of them."""
    try:
        _ = cluster.offsets
        client = cluster.client
    except ExactlyOnceError as error:
        topics_facts.problems |= {(cluster, name): ("topic-unavailable", str(error)) for name in uses}
        return {}
    return _accepted(topics_facts, cluster, client, uses)


def _sizes(client: WireClient, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Ask for the bytes of partitions; nothing is known without the right to describe the cluster."""
    import kafka.errors

    sizes: dict[TopicPartition, int] = {}
    partitions = {topic: list(numbers) for topic, numbers in by_topic(dict.fromkeys(topic_partitions)).items()}
    try:
        described = client.admin.describe_log_dirs(partitions) if partitions else []
    except kafka.errors.KafkaError:
        return sizes
    for broker in described:
        for directory in broker["log_dirs"]:
            for topic in directory["topics"]:
                for partition in topic["partitions"]:
                    topic_partition = (str(topic["name"]), int(partition["partition_index"]))
                    sizes[topic_partition] = max(sizes.get(topic_partition, 0), int(partition["partition_size"]))
    return sizes


def _accepted(
    topics_facts: TopicsFacts, cluster: SourceCluster, client: WireClient, uses: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Return the ids of the topics that a start would accept; why it would not the others is noted."""
    from airflow_provider_exactlyonce.kafka import preflight

    topic_ids: dict[str, str] = {}
    user = cluster.config.get("sasl.username")
    for name, use in uses.items():
        try:
            accepted = preflight.check_topics(client, **use, user=user, patience_seconds=0, where=str(cluster))
            topic_ids |= {name: topic.topic_id for name, topic in accepted.items()}
        except SettingRefusedError as error:
            topics_facts.problems[cluster, name] = ("unsafe-setting", str(error))
        except RefusedError as error:
            kind = "topic-missing" if client.metadata(name) is None else "topic-unavailable"
            topics_facts.problems[cluster, name] = (kind, str(error))
        except ExactlyOnceError as error:
            topics_facts.problems[cluster, name] = ("topic-unavailable", str(error))
    return topic_ids


def _cluster(facts: Facts, client: WireClient) -> str | None:
    from airflow_provider_exactlyonce.kafka import preflight
    from airflow_provider_exactlyonce.kafka.cluster_transactions import Transactions

    name = transactional_id(facts.pipeline)
    known = Transactions(client).describe(name)
    try:
        preflight.check_cluster(
            client,
            transactional_id=name,
            transaction_timeout_milliseconds=known.timeout_milliseconds if known else 0,
            user=facts.config.get("sasl.username"),
            patience_seconds=0,
        )
    except ExactlyOnceError as error:
        return str(error)
    return None


def _written(facts: Facts, topics_facts: TopicsFacts) -> dict[tuple[TopicPartition, int], int]:
    """Read the times of the records from which a replay may have to read again."""
    from airflow_provider_exactlyonce.kafka.range_reader import RangeReader, position_of

    ends = facts.clusters.offsets.last_stable(topics_facts.ends)
    starts = [span.positions for span in facts.history.spans.values()] if facts.history else []
    if facts.tail is not None and facts.tail.commit is not None:
        starts.append(facts.tail.commit.ends)
    written: dict[tuple[TopicPartition, int], int] = {}
    for cluster, cluster_topics in facts.clusters.by_cluster(dict.fromkeys(topic for topic, _ in ends)).items():
        if isinstance(cluster, SourceTable):
            continue
        with RangeReader(cluster.config, "doctor") as reader:
            for wanted in starts:
                spans = {
                    partition: (offset, min(ends[partition], offset + _SPAN))
                    for partition, offset in wanted.items()
                    if partition[0] in cluster_topics
                    and partition in ends
                    and offset >= topics_facts.earliest[partition]
                }
                for message in reader.read(spans):
                    partition, _ = position_of(message)
                    written.setdefault((partition, spans[partition][0]), int(message.timestamp()[1]))
    return written
