"""Which cluster each source of a pipeline is read from: the pipeline's own, or one that it names a connection to.

Ledger, transactions and sinks are on the pipeline's cluster, always. Whatever asks for a source's topics asks here for
its cluster. The claim of each run has the connections and the clusters' ids, so that what has no job at hand finds
them, and so that a source is never read on from a cluster whose offsets are others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from airflow_provider_exactlyonce.environment import parameters_of
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.kafka.config import SOURCES_VARIABLE
from airflow_provider_exactlyonce.kafka.stable_offsets import PartitionOffsets, RoutedOffsets, StableOffsets
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.records import ClaimRecord
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.kafka.wire import WireClient

T = TypeVar("T")

#: Gives the client configuration of a connection that a source names, in librdkafka's names.
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


class Cluster:
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

    @cached_property
    def offsets(self) -> StableOffsets:
        """Its offsets.

        :raises RefusedError: when it is another cluster than the one that the newest run has read
        :raises ExactlyOnceError: when it can't be reached
        """
        if self.conn_id is not None and (error := reach.trouble(self.config)) is not None:
            raise type(error)(f"{self}, which sources are read from: {error}")
        offsets = self._offsets or StableOffsets(self.config)
        if self._claimed_id is not None and (found := offsets.cluster_id()) != self._claimed_id:
            raise RefusedError(
                f"connection {self.conn_id} leads to cluster {found}, and the pipeline's newest run has read its "
                f"sources from cluster {self._claimed_id}: let it lead there"
            )
        return offsets

    @cached_property
    def id(self) -> str:
        """What tells it from all other clusters."""
        return self.offsets.cluster_id()

    @cached_property
    def client(self) -> WireClient:
        """Its client, as a run has one of the pipeline's cluster.

        :raises ExactlyOnceError: when it can't be reached
        """
        return reach.connected(dict(self.config))

    def close(self) -> None:
        """Close the client."""
        if "client" in vars(self):
            self.client.close()


class SourceClusters:
    """The clusters that a pipeline's sources are read from.

    :param config: client configuration of the pipeline's cluster, in librdkafka's names. Or that cluster, whose
        connections are there already
    :param connections: {topics of a source, as text: its connection}, of the sources that name one
    :param find: gives the configuration of a connection
    :param claimed_ids: {connection: the id that its cluster has to have}
    :ivar own: the pipeline's cluster
    """

    def __init__(
        self,
        config: Mapping[str, Any] | Cluster,
        connections: Mapping[str, str],
        find: FindConnection = from_environment,
        claimed_ids: Mapping[str, str] | None = None,
    ) -> None:
        self.own: Final = config if isinstance(config, Cluster) else Cluster(lambda: config)
        ids = claimed_ids or {}
        named = {
            conn_id: Cluster(partial(find, conn_id), conn_id, ids.get(conn_id)) for conn_id in set(connections.values())
        }
        self._named: Final = {SourceTopics.parse(text): named[conn_id] for text, conn_id in connections.items()}

    @classmethod
    def claimed(
        cls, config: Mapping[str, Any] | Cluster, claim: ClaimRecord | None, find: FindConnection = from_environment
    ) -> Self:
        """Return those of the run that made a claim; they are compared with it when they are asked.

        :param claim: None where no run has begun yet
        """
        clusters = claim.source_clusters if claim is not None else {}
        connections = {text: conn_id for text, (conn_id, _) in clusters.items()}
        return cls(config, connections, find, dict(clusters.values()))

    @property
    def recorded(self) -> dict[str, tuple[str, str]]:
        """Those that are not the pipeline's, as a claim has them."""
        return {str(source): (str(cluster.conn_id), cluster.id) for source, cluster in self._named.items()}

    @cached_property
    def offsets(self) -> PartitionOffsets:
        """The offsets of all topics, each topic's asked of its own cluster."""
        return RoutedOffsets(lambda topic: self.of(topic).offsets) if self._named else self.own.offsets

    def of(self, topic: str) -> Cluster:
        """Return the cluster that a topic is read from."""
        return next((cluster for source, cluster in self._named.items() if topic in source), self.own)

    def topics(self, source: SourceTopics) -> list[str]:
        """Return the topics that a source reads: those that it names, or those of its cluster that it matches."""
        return source.among(self._named.get(source, self.own).offsets.topics() if source.pattern else ())

    def by_cluster(self, by_topic: Mapping[str, T]) -> dict[Cluster, dict[str, T]]:
        """Return what is known of topics by their clusters; the pipeline's is among them in any case, and first."""
        parts: dict[Cluster, dict[str, T]] = {self.own: {}}
        for topic, value in by_topic.items():
            parts.setdefault(self.of(topic), {})[topic] = value
        return parts

    def here(self, by_topic: Mapping[str, T]) -> dict[str, T]:
        """Return what is known of those topics that are on the pipeline's cluster, whatever connection reads them."""
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
        read = tail.commit.source_topic_ids if tail.commit is not None else None
        for source in declared:
            now = self._named.get(source, self.own)
            for topic in (str(source),) if source in claimed else source.names or source.share(read or {}):
                own = None if read is not None and topic not in read else (None, tail.cluster_id)  # None for a new one
                before = claimed.get(source) or next((of for topics, of in claimed.items() if topic in topics), own)
                if before is not None and before[1] != now.id:
                    was = "this cluster" if before[0] is None else f"the cluster of connection {before[0]}"
                    raise RefusedError(
                        f"source topic {topic} is read from {now} now, whose id is {now.id}, and run {claim.run} has "
                        f"read it from {was}, whose id was {before[1]}: the checkpoint's offsets mean nothing on "
                        "another cluster. Let the source be read from the cluster that it had, or start a new "
                        "pipeline, with a name and a home of its own"
                    )

    def close(self) -> None:
        """Close all clients."""
        for cluster in {self.own, *self._named.values()}:
            cluster.close()
