"""Which cluster each source of a pipeline is read from: the pipeline's own, or one that it names a connection to.

Ledger, transactions and sinks are on the pipeline's cluster, always. The cluster of a source's topics is looked up here
only. The claim of each run has the connections and the clusters' ids, so that code without the job finds them, and so
that a source is never read on from a cluster with other offsets. A table is a cluster of its own, with one topic:
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from typing_extensions import override

from airflow_provider_exactlyonce.environment import STORES_VARIABLE, parameters_of
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.kafka.config import SOURCES_VARIABLE
from airflow_provider_exactlyonce.kafka.stable_offsets import PartitionOffsets, RoutedOffsets, StableOffsets
from airflow_provider_exactlyonce.kafka.topic_partition import by_partition
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, SourceRanges
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.tables.offsets import TableOffsets, open_log
from airflow_provider_exactlyonce.tables.positions import PARTITION, Position, is_table

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.kafka.preflight import TopicFacts
    from airflow_provider_exactlyonce.kafka.wire import WireClient

T = TypeVar("T")

#: Gives what a connection that a source names says: a client's configuration in librdkafka's names, or what delta-rs
#: or pyiceberg are told of a table's store.
FindConnection = Callable[[str], Mapping[str, Any]]


def from_environment(conn_id: str) -> dict[str, str]:
    """Return the configuration of a connection that a source names, from ``EXACTLYONCE_SOURCES``.

    :raises RefusedError: when it is not there, or names no brokers
    """
    config = parameters_of(SOURCES_VARIABLE, conn_id, "librdkafka's configuration", "source_conn_ids")
    if config is None:
        raise RefusedError(
            f"a source is read through the connection {conn_id}, and {SOURCES_VARIABLE} is not set: set it to a JSON "
            "object with librdkafka's configuration by connection, or to @ and the path of a file with it; in a DAG it "
            f'is filled from source_conn_ids=["{conn_id}"] of the operator'
        )
    if not config.get("bootstrap.servers"):
        raise RefusedError(f"connection {conn_id} of {SOURCES_VARIABLE} has no bootstrap.servers")
    return config


def store_from_environment(conn_id: str) -> dict[str, str]:
    """Return a table connection's options, from ``EXACTLYONCE_STORES``; empty where that is not set.

    :raises RefusedError: when it is not there
    """
    return parameters_of(STORES_VARIABLE, conn_id, "delta-rs' or pyiceberg's options", "store_conn_ids") or {}


class SourceCluster:
    """A cluster that sources are read from. It is connected to when it is first asked.

    :param find: gives the configuration
    :param conn_id: the connection that sources name, None for the pipeline's own cluster
    :param claimed_id: the id that the cluster had when the newest run began, None when that is not to be compared
    :param offsets: how it is asked, None for a client of its own
    """

    def __init__(
        self,
        find: Callable[[], Mapping[str, Any]],
        conn_id: str | None = None,
        claimed_id: str | None = None,
        offsets: StableOffsets | None = None,
    ) -> None:
        self.conn_id: Final = conn_id
        self._offsets: Final = offsets
        self._find: Final = find
        self._claimed_id: Final = claimed_id

    def __str__(self) -> str:
        return "this cluster" if self.conn_id is None else f"the cluster of connection {self.conn_id}"

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Its client configuration, in librdkafka's names.

        :raises RefusedError: when the connection is not known here
        """
        return self._find()

    @property
    def offsets(self) -> PartitionOffsets:
        """Its offsets.

        :raises RefusedError: when it is another cluster than the one that the newest run has read
        :raises ExactlyOnceError: when it can't be reached
        """
        return self._asked

    @cached_property
    def _asked(self) -> StableOffsets:
        if self.conn_id is not None and (error := self.trouble()) is not None:
            raise error
        offsets = self._offsets or StableOffsets(self.config, str(self))
        if self._claimed_id is not None and (cluster_id := offsets.cluster_id()) != self._claimed_id:
            raise RefusedError(
                f"connection {self.conn_id} leads to cluster {cluster_id}, and the pipeline's newest run has read its "
                f"sources from cluster {self._claimed_id}: let it lead there"
            )
        return offsets

    def trouble(self) -> ExactlyOnceError | None:
        """Ask it something; returns why it does not answer, None when it does."""
        error = reach.trouble(self.config)
        return None if error is None else self._named(error)

    @cached_property
    def id(self) -> str:
        """The id that distinguishes it from all other clusters."""
        return self._asked.cluster_id()

    @cached_property
    def client(self) -> WireClient:
        """Its client, as a run has one of the pipeline's cluster; one that is away is waited for, for half a minute.

        :raises ExactlyOnceError: when it can't be reached
        """
        config = dict(self.config)
        try:
            return reach.connected(config)
        except ExactlyOnceError as error:
            raise (error if self.conn_id is None else self._named(error)) from error

    def connect(self) -> None:
        """Connect to it, for a run.

        :raises ExactlyOnceError: when it can't be reached
        """
        _ = self.client

    def _named(self, error: ExactlyOnceError) -> ExactlyOnceError:
        kind = RefusedError if isinstance(error, RefusedError) else ExactlyOnceError
        return kind(f"{self}, which sources are read from: {error}")

    @contextmanager
    def _asking(self) -> Iterator[WireClient]:
        """Give the client, and name the cluster where it gets no answer: a run has several."""
        from airflow_provider_exactlyonce.kafka.wire import UnansweredError

        try:
            yield self.client
        except UnansweredError as error:
            raise UnansweredError(f"{self}: {error}") from error

    def topics(self) -> list[str]:
        """Return the names of all its topics that we may see."""
        return self._asked.topics()

    def checked(self, topics: Iterable[str], *, allow_single_replica: bool) -> dict[str, TopicFacts]:
        """Check topics that are read from here, as a start does where it is not the pipeline's cluster.

        :raises RefusedError: naming the topic, the setting or the right
        """
        from airflow_provider_exactlyonce.kafka import preflight

        preflight.check_source_cluster(self.client)
        return preflight.check_topics(
            self.client,
            sources=topics,
            user=self.config.get("sasl.username"),
            allow_single_replica=allow_single_replica,
            where=str(self),
        )

    def topic_id(self, topic: str) -> str | None:
        """Return the id that a topic has now, None when it does not exist."""
        with self._asking() as client:
            described = client.metadata(topic)
        return None if described is None else described.topic_id

    def earliest(self, topic: str) -> dict[int, int]:
        """Return where each partition of a topic begins."""
        with self._asking() as client:
            return client.earliest_offsets(topic)

    def stable(self, topic: str) -> dict[int, int]:
        """Return up to where each partition of a topic can be read."""
        with self._asking() as client:
            return client.stable_offsets(topic)

    def check_begins(self, first: Mapping[str, Mapping[int, int]]) -> None:
        """Check that a new pipeline can begin where a source says; of topics the offsets tell it.

        :param first: {topic: {partition: offset}}
        :raises RefusedError: naming what can't be read
        """

    def check_topic_ids(self, topic_ids: Mapping[str, str]) -> None:
        """Check, right before a commit, that topics are still those that the batch began with.

        :raises RefusedError: naming the topic that was recreated
        :raises BatchFailedError: when there is no answer, or a topic is gone
        """
        from airflow_provider_exactlyonce.kafka import preflight

        preflight.check_topic_ids(self.client, topic_ids, where=str(self))

    def close(self) -> None:
        """Close its clients, but not one that it was given."""
        if "client" in vars(self):
            self.client.close()
        if "_asked" in vars(self) and self._asked is not self._offsets:
            self._asked.close()


class SourceTable(SourceCluster):
    """A table that is read as one topic with one partition, whose offsets are positions in its versions.

    :param name: as ledgers have it
    :param find: returns the options of its store or catalog
    :param conn_id: the connection that the source names, None for none
    :param claimed_id: the id that the table had when the newest run began, None when that is not to be compared
    """

    def __init__(
        self,
        name: str,
        find: Callable[[], Mapping[str, Any]],
        conn_id: str | None = None,
        claimed_id: str | None = None,
    ) -> None:
        super().__init__(find, conn_id, claimed_id)
        self.name: Final = name

    def __str__(self) -> str:
        return f"table {self.name}"

    @property
    @override
    def offsets(self) -> TableOffsets:
        return self._positions

    @cached_property
    def _positions(self) -> TableOffsets:
        return TableOffsets(open_log(self.name, self.config), self._claimed_id)

    @override
    def trouble(self) -> None:
        """Nothing is known before its log is read."""

    @cached_property
    @override
    def id(self) -> str:
        return self._existing_id()

    @cached_property
    def dataset(self) -> tuple[str, str]:
        """Where it was when it was first asked, as a namespace and a name of OpenLineage."""
        return self.offsets.dataset

    @override
    def connect(self) -> None:
        """There is nothing to connect to."""

    @override
    def topics(self) -> list[str]:
        return [self.name]

    @override
    def checked(self, topics: Iterable[str], *, allow_single_replica: bool) -> dict[str, TopicFacts]:
        from airflow_provider_exactlyonce.kafka.preflight import TopicFacts

        return {
            topic: TopicFacts(name=topic, topic_id=self._existing_id(), partitions=PARTITION + 1, settings={})
            for topic in topics
        }

    @override
    def topic_id(self, topic: str) -> str | None:
        return self.offsets.identity()

    @override
    def earliest(self, topic: str) -> dict[int, int]:
        return {PARTITION: self.offsets.starts([(topic, PARTITION)])[topic, PARTITION]}

    @override
    def stable(self, topic: str) -> dict[int, int]:
        return {PARTITION: self.offsets.last_stable([(topic, PARTITION)])[topic, PARTITION]}

    @override
    def check_begins(self, first: Mapping[str, Mapping[int, int]]) -> None:
        for position in by_partition(first).values():
            self.offsets.check_begin(position)

    @override
    def check_topic_ids(self, topic_ids: Mapping[str, str]) -> None:
        self._existing_id()  # which compares it with what it was

    @override
    def close(self) -> None:
        """There is nothing to close."""

    def _existing_id(self) -> str:
        identity = self.offsets.identity()
        if identity is None:
            raise RefusedError(f"{self} does not exist: create it first, or name it as it is")
        return identity


class SourceClusters:
    """The clusters that a pipeline's sources are read from.

    :param config: client configuration of the pipeline's cluster, in librdkafka's names. Or that cluster, whose
        connections are there already
    :param connections: {topics of a source, as text: its connection}, of the sources that name one; of all tables,
        with an empty text where they name none
    :param find: returns a connection's configuration, None to read it from the environment
    :param claimed_ids: {connection: the id that its cluster has to have}, and of tables by their names
    :ivar own: the pipeline's cluster
    """

    def __init__(
        self,
        config: Mapping[str, Any] | SourceCluster,
        connections: Mapping[str, str],
        find: FindConnection | None = None,
        claimed_ids: Mapping[str, str] | None = None,
    ) -> None:
        self.own: Final = config if isinstance(config, SourceCluster) else SourceCluster(lambda: config)
        ids = claimed_ids or {}
        named: dict[str, SourceCluster] = {}
        for text, conn_id in connections.items():
            if is_table(text):
                options = partial(find or store_from_environment, conn_id) if conn_id else dict
                named[text] = SourceTable(text, options, conn_id or None, ids.get(text))
            elif conn_id not in named:
                named[conn_id] = SourceCluster(partial(find or from_environment, conn_id), conn_id, ids.get(conn_id))
        self._named: Final = {
            SourceTopics.parse(text): named[text if is_table(text) else conn_id]
            for text, conn_id in connections.items()
        }

    @classmethod
    def claimed(
        cls, config: Mapping[str, Any] | SourceCluster, claim: ClaimRecord | None, find: FindConnection | None = None
    ) -> Self:
        """Return the clusters of the run that made a claim; each is compared with the claim at its first request.

        :param claim: None where no run has begun yet
        """
        clusters = claim.source_clusters if claim is not None else {}
        connections = {text: conn_id for text, (conn_id, _) in clusters.items()}
        tables = {text: table_id for text, (_, table_id) in clusters.items() if is_table(text)}
        return cls(config, connections, find, {**dict(clusters.values()), **tables})

    @property
    def recorded(self) -> dict[str, tuple[str, str]]:
        """Those that are not the pipeline's, as a claim has them."""
        return {str(source): (cluster.conn_id or "", cluster.id) for source, cluster in self._named.items()}

    @property
    def datasets(self) -> dict[str, tuple[str, str]]:
        """The tables by their names, and where each is, as a claim has it."""
        tables = (cluster for cluster in self._named.values() if isinstance(cluster, SourceTable))
        return {table.name: table.dataset for table in tables}

    @property
    def offsets(self) -> PartitionOffsets:
        """The offsets of all topics, each topic's asked of its own cluster."""
        return RoutedOffsets(lambda topic: self.of(topic).offsets) if self._named else self.own.offsets

    def of(self, topic: str) -> SourceCluster:
        """Return the cluster that a topic is read from."""
        return next((cluster for source, cluster in self._named.items() if topic in source), self.own)

    def read_by(self, source: SourceTopics) -> SourceCluster:
        """Return the cluster that a source is read from."""
        return self._named.get(source, self.own)

    def connect(self) -> None:
        """Connect to the clusters other than the pipeline's; waits for each as for the pipeline's own.

        :raises ExactlyOnceError: naming the first that can't be reached
        """
        for cluster in self._named.values():
            cluster.connect()

    def trouble(self) -> ExactlyOnceError | None:
        """Ask those that are not the pipeline's; returns why the first of them does not answer, None when all do."""
        return next((error for cluster in set(self._named.values()) if (error := cluster.trouble())), None)

    def topics(self, source: SourceTopics) -> list[str]:
        """Return the topics that a source reads: the named ones, or those of its cluster that match its pattern."""
        return source.among(self.read_by(source).topics() if source.pattern else ())

    def records_at_most(self, ranges: SourceRanges) -> int | None:
        """Return how many records can be in source ranges, None where that is unknown."""
        total = 0
        for (topic, _), (start, end) in by_partition(ranges).items():
            cluster = self.of(topic)
            records = cluster.offsets.rows(start, end) if isinstance(cluster, SourceTable) else end - start
            if records is None:
                return None
            total += records
        return total

    def check_files(self, topic: str, start: int, end: int) -> None:
        """Check that the files of a table between two positions are there; of topics the offsets tell.

        :raises RefusedError: naming the first that is gone
        """
        cluster = self.of(topic)
        missing_file = cluster.offsets.first_gone(start, end) if isinstance(cluster, SourceTable) else None
        if missing_file is not None:
            raise RefusedError(
                f"file {missing_file} of {cluster}, which has to be read again, is gone: it was compacted and "
                f"vacuumed, or deleted. It is between {Position.of(start)} and {Position.of(end)}. Put it back, or "
                "restore a newer savepoint, and keep the table's old files longer than savepoints"
            )

    def by_cluster(self, by_topic: Mapping[str, T]) -> dict[SourceCluster, dict[str, T]]:
        """Group values of topics by the topics' clusters; the pipeline's own is always present, and first."""
        parts: dict[SourceCluster, dict[str, T]] = {self.own: {}}
        for topic, value in by_topic.items():
            parts.setdefault(self.of(topic), {})[topic] = value
        return parts

    def here(self, by_topic: Mapping[str, T]) -> dict[str, T]:
        """Return the values of the topics on the pipeline's cluster, whatever connection reads them."""
        parts = self.by_cluster(by_topic).items()
        return {
            topic: value
            for cluster, part in parts
            if cluster is self.own or cluster.id == self.own.id
            for topic, value in part.items()
        }

    def check(self, tail: LedgerTail | None, declared: Iterable[SourceTopics]) -> None:
        """Check that sources go on on the clusters that they were read from: offsets mean nothing on another.

        :param declared: the topics of each source
        :raises RefusedError: naming the first topic that is read from another one
        """
        claim = tail.claim if tail is not None else None
        if tail is None or claim is None or not (self._named or claim.source_clusters):
            return
        claimed = {SourceTopics.parse(text): cluster for text, cluster in claim.source_clusters.items()}
        read_topics = tail.commit.source_topic_ids if tail.commit is not None else None
        for source in declared:
            current = self.read_by(source)
            for topic in (str(source),) if source in claimed else source.names or source.share(read_topics or {}):
                is_new = is_table(topic) or (read_topics is not None and topic not in read_topics)
                own = None if is_new else (None, tail.cluster_id)
                previous = claimed.get(source) or next(
                    (recorded for topics, recorded in claimed.items() if topic in topics), own
                )
                if previous is not None and previous[1] != current.id:
                    previous_name = (
                        "this cluster" if previous[0] is None else f"the cluster of connection {previous[0]}"
                    )
                    raise RefusedError(
                        f"source topic {topic} is read from {current} now, whose id is {current.id}, and run "
                        f"{claim.run} has read it from {previous_name}, whose id was {previous[1]}: the checkpoint's "
                        "offsets mean nothing on another cluster. Let the source be read from the cluster that it had, "
                        "or start a new pipeline, with a name and a home of its own"
                    )

    def close(self) -> None:
        """Close all clients."""
        for cluster in {self.own, *self._named.values()}:
            cluster.close()
