"""Whether a pipeline's output is readable up to a point, judged from its ledger and the sink's last stable offsets.

A gate is open when both hold: the ledger, read at read_committed, has a commit that meets the target; and in every sink
partition the last stable offset has passed all rows written up to that commit. The second is not implied by the first:
the broker decides a transaction once and then marks each partition by itself, and another producer's open transaction
on the same partition hides our records although they are committed. Only positions are compared; records at them may
be of aborted transactions, control records, or gone.

What is committed only grows, so an open gate never closes. A *timestamp* is turned into source offsets once, the first
time that its moment has passed and the pipeline has a commit: per partition the first record with that timestamp or a
later one; where there is none, the partition's end at that moment (records in undecided transactions count). *Up to
now* becomes the partitions' ends, likewise. The verdict carries the resolved target, and callers go on with it: asked
again, the ends would be later each time, and a gate on a busy topic might never open. A caller that forgets it waits
longer, never shorter. Records that arrive late, behind a newer one in their partition, are not waited for; a watermark
is for that.

*Idle*: a pipeline whose newest commit is older than a time, and whose source ends where that commit ended, has had
nothing to do for so long: a record that came after the commit would be behind its end. So that is known without having
watched, and a restart changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.kafka.answers import answer_of, has_code
from airflow_provider_exactlyonce.kafka.stable_offsets import MissingPartitionError
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition, by_topic
from airflow_provider_exactlyonce.ledger.gate_target import GateTarget, Offsets, moment
from airflow_provider_exactlyonce.ledger.reader import LedgerConnections, LedgerReader, LedgerTail
from airflow_provider_exactlyonce.ledger.records import CommitRecord, ledger_topic
from airflow_provider_exactlyonce.ledger.source_clusters import (
    FindConnection,
    SourceCluster,
    SourceClusters,
)
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics, TopicPattern
from airflow_provider_exactlyonce.ledger.topic_identity import check_sources, known_sources
from airflow_provider_exactlyonce.ledger.written import WINDOW, LastOffset, WrittenOffsets

_SHOWN: Final = 5
_TIMEOUT_SECONDS: Final = 30.0
#: For so long a pipeline that has something to do has had nothing to do: shorter than anybody asks for.
_BUSY: Final = float("-inf")


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A wait for a target of a pipeline.

    :param idle_after: seconds without anything to do, after which it opens although the target is not met
    """

    pipeline: str
    target: GateTarget
    idle_after: float | None = None


@dataclass(frozen=True, kw_only=True)
class GateAnswer:
    """The answer of one look.

    :param missing: what is missing and by how much, empty when the gate is open
    :param commit: the pipeline's newest commit, 0 for none
    :param target: what to ask with the next time; a timestamp that could be resolved is offsets now
    :param idle: open because there is nothing to do, and not because the target is met
    :param late_rows: rows that the pipeline has left out behind its watermark up to that commit, None when unknown
    """

    open: bool
    missing: str
    commit: int
    target: GateTarget
    idle: bool = False
    late_rows: int | None = None


def check(config: Mapping[str, Any], pipeline: str, target: GateTarget, idle_after: float | None = None) -> GateAnswer:
    """Look once. Blocks for some tens of milliseconds; joins no group and commits nothing.

    :param config: client configuration in librdkafka's names; ``bootstrap.servers`` is required
    :raises ExactlyOnceError: when the cluster doesn't answer, or a topic that was written does not exist any more
    """
    with closing(Gates(config)) as gates:
        answer = gates.look({"": Gate(pipeline=pipeline, target=target, idle_after=idle_after)})[""]
    if isinstance(answer, Exception):
        raise answer
    return answer


@dataclass
class _Ledger:
    """A pipeline's ledger; for gates whose target is met, the offsets that must become readable.

    :param sources: the clusters that the pipeline's sources are read from
    :param required: by gate whose target is met, the last offset per sink partition
    """

    reader: LedgerReader
    tail: LedgerTail
    written: WrittenOffsets
    sources: SourceClusters
    required: dict[str, dict[TopicPartition, LastOffset]] = field(default_factory=dict)


class Gates:
    """Looks at many gates of one cluster, again and again, with one set of connections.

    What it costs grows with the ledgers that have moved, not with the gates that wait.

    :param config: client configuration in librdkafka's names; ``bootstrap.servers`` is required
    :param find: gives the configuration of a connection that a source names
    :param window: offsets at the end of a ledger that are read for a target that is met, at most
    """

    def __init__(self, config: Mapping[str, Any], *, window: int = WINDOW, find: FindConnection | None = None) -> None:
        self._window: Final = window
        self._find: Final = find
        self._connections: Final = LedgerConnections(config)
        self._own_cluster: Final = SourceCluster(lambda: config, offsets=self._connections.offsets)
        self._ledgers: Final[dict[str, _Ledger]] = {}

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def look(self, gates: Mapping[str, Gate]) -> dict[str, GateAnswer | Exception]:
        """Look once at each; blocks.

        :param gates: by a name that stays with its gate from look to look, and is no other one's
        :return: verdicts, or why there is none, by the same names
        :raises ExactlyOnceError: when the cluster doesn't answer
        """
        from confluent_kafka import KafkaException

        gates_by_topic: dict[str, dict[str, Gate]] = {}
        answers: dict[str, GateAnswer | Exception] = {}
        for name, gate in gates.items():
            try:
                gates_by_topic.setdefault(ledger_topic(gate.pipeline), {})[name] = gate
            except ExactlyOnceError as error:  # no pipeline has such a name
                answers[name] = error
        for topic in self._ledgers.keys() - gates_by_topic.keys():
            del self._ledgers[topic]
        moved = self._moved() | self._existing(gates_by_topic.keys() - self._ledgers.keys())
        for topic, topic_gates in gates_by_topic.items():
            try:
                if topic in moved:
                    self._read(topic, next(iter(topic_gates.values())).pipeline)
                answers.update(self._judge(topic, topic_gates))
            except (KafkaException, ExactlyOnceError) as error:
                self._ledgers.pop(topic, None)
                answers.update(dict.fromkeys(topic_gates, error))
        return answers

    def _moved(self) -> set[str]:
        """Return the known ledgers that end elsewhere than at the last look."""
        partitions = [(topic, 0) for topic in self._ledgers]
        try:
            ends = self._connections.offsets.last_stable(partitions)
        except MissingPartitionError:
            known_topics = set(self._ledgers)  # one of them; each finds out by itself
            self._ledgers.clear()
            return self._existing(known_topics)
        return {topic for topic, ledger in self._ledgers.items() if ends[topic, 0] != ledger.tail.end_offset}

    def _existing(self, topics: Iterable[str]) -> set[str]:
        from confluent_kafka import KafkaError, TopicCollection

        names = list(topics)
        if not names:
            return set()
        described = self._connections.admin.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT_SECONDS)
        existing = set()
        for name, future in described.items():
            # One that may not be described is refused by name when it is read.
            is_hidden = has_code(future.exception(), KafkaError.TOPIC_AUTHORIZATION_FAILED)
            if is_hidden or answer_of(future, KafkaError.UNKNOWN_TOPIC_OR_PART) is not None:
                existing.add(name)
        return existing

    def _read(self, topic: str, pipeline: str) -> None:
        previous = self._ledgers.pop(topic, None)
        reader = LedgerReader(self._connections, pipeline)
        tail = reader.tail()
        if tail is None:
            return
        if previous is not None and previous.tail.topic_id == tail.topic_id:
            is_same_claim = previous.tail.claim_offset == tail.claim_offset
            sources = (
                previous.sources if is_same_claim else SourceClusters.claimed(self._own_cluster, tail.claim, self._find)
            )
            self._ledgers[topic] = replace(previous, tail=tail, sources=sources)
        else:
            written = WrittenOffsets(reader, self._connections.offsets, self._window)
            sources = SourceClusters.claimed(self._own_cluster, tail.claim, self._find)
            self._ledgers[topic] = _Ledger(reader, tail, written, sources)

    def _judge(self, topic: str, gates: Mapping[str, Gate]) -> Mapping[str, GateAnswer | Exception]:
        from confluent_kafka import KafkaException

        ledger = self._ledgers.get(topic)
        if ledger is None:
            return {
                name: _closed(gate.target, 0, [f"pipeline {gate.pipeline} has no ledger yet (topic {topic})"])
                for name, gate in gates.items()
            }
        newest = ledger.tail.commit
        if newest is None:
            return {name: _without_commit(gate) for name, gate in gates.items()}
        quiet_for: float | None = None
        source_error: Exception | None = None  # why the sources' own cluster does not answer
        answers: dict[str, GateAnswer | Exception] = {}
        met: dict[str, GateTarget] = {}
        idle: dict[str, GateTarget] = {}
        for name, gate in gates.items():
            try:
                if source_error is not None and not gate.target.is_resolved:
                    raise source_error
                target, problems = self._missing(ledger.sources, gate.target, newest)
                if problems and gate.idle_after is not None and quiet_for is None:
                    if source_error is not None:
                        raise source_error
                    quiet_for = self._quiet_seconds(ledger.sources, newest, gates.values())
            except (KafkaException, ExactlyOnceError) as error:  # gates that need the sink's cluster only are judged
                answers[name] = source_error = error
                ledger.sources = SourceClusters.claimed(self._own_cluster, ledger.tail.claim, self._find)  # asked anew
                continue
            if not problems:
                met[name] = target
            elif gate.idle_after is not None and quiet_for is not None and quiet_for >= gate.idle_after:
                idle[name] = target
            else:
                answers[name] = _closed(target, newest.commit, problems)
        known_offsets = {name: last for name, last in ledger.required.items() if name in met}  # others may be met anew
        new_targets = {name: target for name, target in met.items() if name not in known_offsets}
        written = ledger.written.up_to(ledger.tail.commit_offset, new_targets, idle.keys())
        required = {**known_offsets, **written}
        ledger.required = {name: required[name] for name in met}
        stable = self._connections.offsets.last_stable({partition for last in required.values() for partition in last})
        for name, target in (*met.items(), *idle.items()):
            problems = _unreadable(stable, required[name])
            answers[name] = GateAnswer(
                open=not problems,
                missing=_listed(problems),
                commit=newest.commit,
                target=target,
                idle=name in idle and not problems,
                late_rows=None if newest.late is None else newest.late_total,
            )
        return answers

    @staticmethod
    def _missing(sources: SourceClusters, target: GateTarget, newest: CommitRecord) -> tuple[GateTarget, list[str]]:
        """Return the target, resolved to offsets if possible, and a text for each part that the ledger lacks."""
        if target.timestamp is not None and target.timestamp > time.time() * 1000:
            return target, [f"timestamp {moment(target.timestamp)} has not come yet"]
        if not target.is_resolved:
            target = GateTarget(offsets=_resolved(sources, newest, target.timestamp))
        return target, target.missing(newest)

    @staticmethod
    def _quiet_seconds(sources: SourceClusters, newest: CommitRecord, gates: Iterable[Gate]) -> float:
        """Return for how long there has been nothing to do, as far as one of the gates wants to know."""
        wanted = [gate.idle_after for gate in gates if gate.idle_after is not None]
        seconds = time.time() - newest.committed / 1000
        if not wanted or seconds < min(wanted):
            return _BUSY
        ends = sources.offsets.ends(_read(sources, newest))
        _check_ends(sources, newest, ends)
        is_quiet = all(newest.ends.get(partition, 0) == end for partition, end in ends.items())
        return seconds if is_quiet else _BUSY


def _closed(target: GateTarget, commit: int, problems: list[str]) -> GateAnswer:
    return GateAnswer(open=False, missing=_listed(problems), commit=commit, target=target)


def _without_commit(gate: Gate) -> GateAnswer:
    if gate.target.is_empty:
        return GateAnswer(open=True, missing="", commit=0, target=gate.target)
    return _closed(gate.target, 0, [f"pipeline {gate.pipeline} has committed nothing yet"])


def _read(sources: SourceClusters, newest: CommitRecord) -> list[TopicPartition]:
    """Return all partitions of the topics that the pipeline reads, with those that its patterns match by now."""
    patterns = [SourceTopics.of(TopicPattern(pattern)) for pattern in newest.source_patterns]
    matched = {topic for pattern in patterns for topic in sources.topics(pattern)}
    return sources.offsets.partitions({*newest.source, *matched})


def _resolved(sources: SourceClusters, newest: CommitRecord, milliseconds: int | None) -> Offsets:
    partitions, offsets = _read(sources, newest), sources.offsets
    # The ends first: a record that arrives in between is then either waited for or behind the moment, never forgotten.
    ends = offsets.ends(partitions)
    first_offsets = {} if milliseconds is None else offsets.at_timestamp(partitions, milliseconds)
    _check_ends(sources, newest, ends)
    found_offsets = {partition: first for partition, first in first_offsets.items() if first is not None}
    return by_topic({**ends, **found_offsets})


def _check_ends(sources: SourceClusters, newest: CommitRecord, ends: Mapping[TopicPartition, int]) -> None:
    """Check that the offsets of the source's topics are those that the commits mean.

    Called after the offsets were asked for: a topic that is recreated in between does not go unnoticed.

    :raises RefusedError: naming a topic that was recreated
    :raises ExactlyOnceError: naming a partition that ends before the newest commit; a broker may not know its end yet
    """
    check_sources(sources.offsets.topic_ids({topic for topic, _ in ends}), known_sources(newest))
    for (topic, partition), committed in sorted(newest.ends.items()):
        end = ends.get((topic, partition), 0)
        if end < committed:
            raise ExactlyOnceError(
                f"{topic}-{partition} ends at {end}, and commit {newest.commit} has read up to {committed}: it has "
                "lost records, and its end does not tell any more what was read. Wait for a later commit, a watermark "
                "or offsets"
            )


def _unreadable(stable: Mapping[TopicPartition, int], required: Mapping[TopicPartition, LastOffset]) -> list[str]:
    problems = []
    for (topic, number), last in sorted(required.items(), key=itemgetter(0)):
        end, unknown_before = stable[topic, number], last.unknown_before
        if end <= last.offset:
            note = "" if unknown_before is None else f" (what commits before {unknown_before} wrote is not known)"
            problems.append(f"{topic}-{number}: last stable offset {end} has not passed {last.offset}{note}")
    return problems


def _listed(problems: list[str]) -> str:
    more = len(problems) - _SHOWN
    return "; ".join(problems[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
