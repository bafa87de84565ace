"""The facts of a pipeline that the doctor gathers once, and the checks judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_exactlyonce.checkpoint.home_match import HomeMismatch, is_moved, mismatch_of
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
from airflow_provider_exactlyonce.checkpoint.restart import RestartDecision
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.control.lease import Lease, Liveness
from airflow_provider_exactlyonce.control.status import Status
from airflow_provider_exactlyonce.doctor.findings import Finding
from airflow_provider_exactlyonce.exceptions import SettingRefusedError
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.ledger.commit_range import CommitSpan, MissingInput
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord
from airflow_provider_exactlyonce.ledger.source_clusters import SourceCluster, SourceClusters

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.audit.topics import SinkTopic
    from airflow_provider_exactlyonce.kafka.cluster_transactions import Hanging, Transaction


@dataclass(kw_only=True)
class HomeFacts:
    """The home as it was found.

    :ivar moved: what names the other home when this one was moved, or is a copy that is not finished
    :ivar torn: what home.json's reader says when it isn't whole
    :ivar lost: the error of the reader of ``current`` when it, or its lineage, isn't whole
    :param successors: the lineage of the newest run, and those that have replaced it
    :param unfinished: what killed restores have left
    """

    home: Home
    exists: bool
    identity: str | None = None
    pipeline: str | None = None
    moved: str | None = field(init=False, default=None)
    torn: str | None = field(init=False, default=None)
    lineage: Lineage | None = None
    lost: str | None = field(init=False, default=None)
    successors: Sequence[Lineage] = ()
    unfinished: Sequence[str] = ()


@dataclass(kw_only=True)
class CheckpointFacts:
    """The current lineage's checkpoint.

    :param foreign: what refuses it when it is of another query
    :param restart: what a start would go on from, None for a foreign one
    :param query_id_lost: ``metadata`` is missing or torn, and there are batches
    """

    checkpoint: Checkpoint
    lineage: Lineage
    foreign: str | None = None
    restart: RestartDecision | None = None
    query_id_lost: bool = False


@dataclass(kw_only=True)
class SavepointFacts:
    """The savepoints.

    :param whole: whose bytes are as they were, oldest commit first
    :param damaged: {id: defect}
    :param leftovers: names of what interrupted saves and deletes have left
    """

    whole: Sequence[Savepoint] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)
    leftovers: Sequence[str] = ()


@dataclass(kw_only=True)
class HistoryFacts:
    """The ledger, read from its beginning to its end.

    :param contradictions: violations of its own rules
    :param spans: {commit: the commits after it up to the newest}, for each commit that may be restored
    :param incomplete: {commit: the first commit after it that is in the ledger no more}
    :param runs: the claims, oldest first
    :param done: the ledger's record of the checkpoint's newest whole batch, None when it was deleted
    """

    contradictions: Sequence[str] = ()
    spans: Mapping[int, CommitSpan] = field(default_factory=dict)
    incomplete: Mapping[int, int] = field(default_factory=dict)
    producer_ids: frozenset[int] = frozenset()
    runs: Sequence[ClaimRecord] = ()
    done: CommitRecord | None = None
    settings: Mapping[str, SettingRefusedError] = field(default_factory=dict)


@dataclass(kw_only=True)
class DriverFacts:
    """The driver that runs the pipeline.

    :param status: the newest account of a driver
    :param told_by_another: the status is renewed by another driver than the one that holds the lease
    :param superseded: claims of older runs whose processes live on this machine
    """

    lease: Lease | None = None
    life: Liveness = Liveness.NONE
    status: Status | None = None
    told_by_another: bool = False
    superseded: Sequence[ClaimRecord] = ()


@dataclass(kw_only=True)
class TopicsFacts:
    """The topics that the pipeline reads and writes.

    :param problems: {(cluster, topic): (kind of finding, what a start would say of it)}; one name may be on several
    :ivar recreated: what a start would say of a topic that is another one than at the last commit
    :param earliest: {source partition: first offset that is there}
    :param ends: where they end, likewise
    :param sizes: bytes of source partitions, as far as they may be asked for
    :param written: {(partition, offset): when that record was written}, milliseconds since the epoch
    :param settings: {source topic: what of its settings bears on how long records stay}
    :param cluster: what a start would say of the brokers
    """

    problems: dict[tuple[SourceCluster, str], tuple[str, str]] = field(default_factory=dict)
    recreated: str | None = field(init=False, default=None)
    earliest: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    sizes: Mapping[TopicPartition, int] = field(default_factory=dict)
    written: Mapping[tuple[TopicPartition, int], int] = field(default_factory=dict)
    settings: Mapping[str, SinkTopic] = field(default_factory=dict)
    cluster: str | None = None

    def is_there(self, cluster: SourceCluster, topic: str) -> bool:
        """Whether a topic can be read."""
        return self.problems.get((cluster, topic), ("", ""))[0] not in ("topic-missing", "topic-unavailable")


@dataclass(kw_only=True)
class TransactionFacts:
    """Transactions that bear on the pipeline.

    :param own: the coordinator's description of the pipeline's transactional id, None when there is none
    :param others: open ones of others on the pipeline's topics
    :param hanging: open in a partition of the pipeline's topics and unknown to any coordinator
    :param held: {partition: offsets that are held back}
    :param alive: {transactional id of a pipeline: why its driver may live}
    """

    own: Transaction | None = None
    others: Sequence[Transaction] = ()
    hanging: Sequence[Hanging] = ()
    held: Mapping[TopicPartition, int] = field(default_factory=dict)
    alive: Mapping[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class Facts:
    """All facts; one that could not be read is None and has its finding in :attr:`unseen`.

    :param config: client configuration in librdkafka's names
    :ivar clusters: those that the pipeline's sources are read from, as its newest run has claimed
    :ivar in_motion: a driver held the pipeline when the look began, or the ledger has grown since
    """

    pipeline: str
    config: Mapping[str, Any] = field(repr=False)
    clusters: SourceClusters = field(init=False, repr=False)
    in_motion: bool = field(init=False, default=False)
    unseen: list[Finding] = field(init=False, default_factory=list)
    reachable: bool = field(init=False, default=False)
    tail: LedgerTail | None = field(init=False, default=None)
    home: HomeFacts | None = field(init=False, default=None)
    checkpoint: CheckpointFacts | None = field(init=False, default=None)
    savepoints: SavepointFacts | None = field(init=False, default=None)
    history: HistoryFacts | None = field(init=False, default=None)
    driver: DriverFacts | None = field(init=False, default=None)
    topics: TopicsFacts | None = field(init=False, default=None)
    transactions: TransactionFacts | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.clusters = SourceClusters(self.config, {})

    @property
    def runs(self) -> bool:
        """Whether a driver holds the pipeline, or did during the examination: then changes are no fault."""
        return self.in_motion or (self.driver is not None and self.driver.life is Liveness.ALIVE)

    @property
    def done(self) -> int | None:
        """The commit that the checkpoint's newest whole batch is, None when there is none."""
        checkpoint = self.checkpoint
        if checkpoint is None or checkpoint.restart is None or checkpoint.restart.batch is None:
            return None
        return checkpoint.lineage.commit_of(checkpoint.restart.batch)

    def mismatch(self, lineage: Lineage | None) -> HomeMismatch | None:
        """Return why a start would refuse the home with this lineage, None when it would not, or there is no home."""
        if self.home is None:
            return None
        return mismatch_of(
            pipeline=self.pipeline,
            home_path=str(self.home.home),
            home_id=self.home.identity,
            home_pipeline=self.home.pipeline,
            lineage=lineage,
            tail=self.tail,
            accept_home=is_moved(self.home.home, self.tail),
        )

    def named_lineage(self) -> Lineage | None:
        """Return the lineage that a start would accept by the ledger, None when it isn't in the home."""
        successors = self.home.successors if self.home else ()
        return next((lineage for lineage in successors if self.mismatch(lineage) is None), None)

    def missing_input(self, span: CommitSpan) -> MissingInput | None:
        """Return the first of a span's source records that are gone; in an unavailable topic none counts as gone."""
        topics = self.topics
        if topics is None:
            return None
        unavailable = {
            cluster_topic for cluster_topic, (kind, _) in topics.problems.items() if kind == "topic-unavailable"
        }
        unseen = {
            partition: 0 for partition in span.starts if (self.clusters.of(partition[0]), partition[0]) in unavailable
        }
        return span.missing_input({**topics.earliest, **unseen})

    @property
    def newest(self) -> int:
        """The ledger's newest commit, 0 for none."""
        return self.tail.place.commit if self.tail else 0
