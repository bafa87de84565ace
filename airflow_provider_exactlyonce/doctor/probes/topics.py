"""Looks at the topics of a pipeline: whether a start would accept them, and how long their records stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.checkpoint import job as jobs
from airflow_provider_exactlyonce.doctor.facts import Facts, TopicsFacts
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.kafka.stable_offsets import Place, by_topic
from airflow_provider_exactlyonce.ledger.records import ledger_topic, transactional_id
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.streaming.commit.start_checks import check_topic_ids

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.kafka.wire import WireClient

#: After an offset that holds a transaction's marker, so many further ones are looked at for a record.
_SPAN: Final = 100


def names(facts: Facts, client: WireClient) -> tuple[list[str], list[str]]:
    """Return the topics that the pipeline reads, and those that it writes, as far as its records tell."""
    tail = facts.tail
    sources: set[str] = set()
    sinks: set[str] = set()
    if tail is not None and tail.commit is not None:
        sources |= tail.commit.source.keys()
        sinks |= tail.commit.sink.keys() | tail.commit.sink_topic_ids.keys()
    lineage = facts.home.lineage if facts.home else None
    if facts.home is not None and lineage is not None and tail is not None and tail.claim is not None:
        job = jobs.read(facts.home.home, lineage.id, tail.claim.version)
        if job is not None:
            read = [SourceTopics.parse(text) for text in job.sources]
            existing = client.offsets.topics() if any(source.pattern for source in read) else []
            sources |= {topic for source in read for topic in source.among(existing)}
            sinks |= set(job.sinks)
    return sorted(sources), sorted(sinks)


def look(facts: Facts, client: WireClient) -> TopicsFacts:
    """Look at the topics as a start would, and at what is left of their records."""
    from airflow_provider_exactlyonce.audit import topics

    sources, sinks = names(facts, client)
    topics_facts = TopicsFacts(cluster=_cluster(facts, client))
    uses: dict[str, dict[str, Any]] = {name: {"sources": [name]} for name in sources}
    uses |= {name: {"sinks": [name]} for name in sinks}
    if facts.tail is not None:
        uses[ledger_topic(facts.pipeline)] = {"ledger": ledger_topic(facts.pipeline)}
    topic_ids: dict[str, str] = {}
    for name, use in uses.items():
        try:
            topic_ids |= _accepted(facts, client, use)
        except SettingRefusedError as error:
            topics_facts.problems[name] = ("unsafe-setting", str(error))
        except RefusedError as error:
            kind = "topic-missing" if client.metadata(name) is None else "topic-unavailable"
            topics_facts.problems[name] = (kind, str(error))
        except ExactlyOnceError as error:
            topics_facts.problems[name] = ("topic-unavailable", str(error))
    try:
        check_topic_ids(topic_ids, facts.tail)
    except RefusedError as error:
        topics_facts.recreated = str(error)
    there = [name for name in sources if topics_facts.is_there(name)]
    offsets = client.offsets
    topics_facts.earliest = offsets.starts(offsets.partitions(there))
    topics_facts.ends = offsets.ends(topics_facts.earliest)
    topics_facts.settings = topics.describe(facts.config, there)
    bounded = {name for name, settings in topics_facts.settings.items() if settings.retention_bytes >= 0}
    topics_facts.sizes = _sizes(client, [place for place in topics_facts.earliest if place[0] in bounded])
    topics_facts.written = _written(facts, client, topics_facts)
    return topics_facts


def _sizes(client: WireClient, places: Iterable[Place]) -> dict[Place, int]:
    """Ask for the bytes of partitions; nothing is known without the right to describe the cluster."""
    import kafka.errors

    sizes: dict[Place, int] = {}
    partitions = {topic: list(numbers) for topic, numbers in by_topic(dict.fromkeys(places)).items()}
    try:
        described = client.admin.describe_log_dirs(partitions) if partitions else []
    except kafka.errors.KafkaError:
        return sizes
    for broker in described:
        for directory in broker["log_dirs"]:
            for topic in directory["topics"]:
                for partition in topic["partitions"]:
                    place = (str(topic["name"]), int(partition["partition_index"]))
                    sizes[place] = max(sizes.get(place, 0), int(partition["partition_size"]))
    return sizes


def _accepted(facts: Facts, client: WireClient, use: Mapping[str, Any]) -> dict[str, str]:
    from airflow_provider_exactlyonce.kafka import preflight

    accepted = preflight.check_topics(client, **use, user=facts.config.get("sasl.username"), patience_seconds=0)
    return {name: topic.topic_id for name, topic in accepted.items()}


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


def _written(facts: Facts, client: WireClient, topics_facts: TopicsFacts) -> dict[tuple[Place, int], int]:
    """Read when the records were written from which somebody may have to read again."""
    from airflow_provider_exactlyonce.kafka.range_reader import RangeReader

    ends = client.offsets.last_stable(topics_facts.ends)
    starts = [stretch.positions for stretch in facts.history.stretches.values()] if facts.history else []
    if facts.tail is not None and facts.tail.commit is not None:
        starts.append(facts.tail.commit.ends)
    written: dict[tuple[Place, int], int] = {}
    with RangeReader(facts.config, "doctor") as reader:
        for wanted in starts:
            spans = {
                place: (offset, min(ends[place], offset + _SPAN))
                for place, offset in wanted.items()
                if place in ends and offset >= topics_facts.earliest[place]
            }
            for message in reader.read(spans):
                place = str(message.topic()), int(message.partition() or 0)
                written.setdefault((place, spans[place][0]), int(message.timestamp()[1]))
    return written
