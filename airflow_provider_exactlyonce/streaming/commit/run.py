"""One driver's hold on a pipeline: the start of a run, its claim, and the ledger's end.

The start has four steps. (a) Without side effects: home, lease and ledger are read and the start is refused if anything
does not fit, so that a mistyped copy of a production pipeline never fences the real one. (b) InitProducerId with (-1,
-1) aborts an open transaction and fences every older run. (c) A claim is written to the ledger in a transaction of its
own. (d) Checkpoint and ledger are compared. After every (b) comes a (c), and every decision comes from a read of the
ledger up to the claim's own offset; a foreign record in between means: choose again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from airflow_provider_exactlyonce import failpoints, process_identity
from airflow_provider_exactlyonce.backfill import workspace as backfills
from airflow_provider_exactlyonce.checkpoint.home_match import check_start
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.control.lease import Liveness
from airflow_provider_exactlyonce.exceptions import (
    AlreadyRunningError,
    BatchFailedError,
    ClaimFailedError,
    CommitUnknownError,
    FencedError,
    required,
)
from airflow_provider_exactlyonce.kafka import preflight
from airflow_provider_exactlyonce.kafka.range_reader import ReadTimedOutError
from airflow_provider_exactlyonce.kafka.stable_offsets import MissingPartitionError
from airflow_provider_exactlyonce.kafka.transaction import ProducerLostError, SessionState, TransactionSession
from airflow_provider_exactlyonce.kafka.wire import UnansweredError
from airflow_provider_exactlyonce.ledger import records, topic
from airflow_provider_exactlyonce.ledger.reader import LedgerReader, LedgerTail
from airflow_provider_exactlyonce.ledger.records import EXACTLY_ONCE, ClaimRecord, CommitRecord, SourceRanges
from airflow_provider_exactlyonce.ledger.retention import DEFAULT_RETENTION, Expired, History, LedgerRetention
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.polling import poll_until
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import ChangedError

log = logging.getLogger(__name__)

_CLAIM_TRIES: Final = 5
_CLAIM_PAUSE_SECONDS: Final = 1.0
_STABLE_PATIENCE_SECONDS: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a driver starts.

    :param config: client configuration in librdkafka's names
    :param token: start token of this driver
    :param version: content hash of the job
    :param transaction_timeout_milliseconds: from the first record to the commit of one batch
    :param left: the lease that was found left by a driver, None where it was not read
    :param accept_home: the home was moved on purpose: it replaces the one that the ledger names
    :param allow_single_replica: topics may have one replica on a cluster of several brokers
    :param ledger_retention: how much of the ledger's history stays
    :param backfill: the backfill that this run is of, None for the pipeline itself
    :param plan: the backfill's request as it was resolved when it was begun
    :param source_patterns: the expressions with which its sources find topics
    :param source_connections: {topics of a source, as text: its connection}, of those with a cluster of their own
    """

    config: dict[str, str] = field(repr=False)
    token: str
    version: str
    transaction_timeout_milliseconds: int
    left: leases.Lease | None = None
    accept_home: bool = False
    allow_single_replica: bool = False
    ledger_retention: LedgerRetention = DEFAULT_RETENTION
    backfill: str | None = None
    plan: Mapping[str, Any] | None = None
    source_patterns: tuple[str, ...] = ()
    source_connections: Mapping[str, str] = field(default_factory=dict)


class Run:
    """A run from its start to its end; used by one thread but for :meth:`renew_lease`.

    :param home: the pipeline's home
    :param pipeline: the pipeline's name
    :ivar sources: the clusters that its sources are read from
    :ivar guarantee: what its commits give, from end to end
    :ivar lost: {commit: its source ranges} of those whose rows it found that may be lost
    """

    def __init__(self, home: Home, pipeline: str, options: RunOptions) -> None:
        self.home: Final = home
        self.pipeline: Final = pipeline
        self.options: Final = options
        self.sources: Final = SourceClusters(options.config, options.source_connections)
        self.client: Final = self.sources.own.client
        self.sources.connect()
        self.session: Final = TransactionSession(
            self.client,
            records.transactional_id(pipeline),
            timeout_milliseconds=options.transaction_timeout_milliseconds,
        )
        self.number = 0
        self.guarantee: str = EXACTLY_ONCE
        self.lost: dict[int, SourceRanges] = {}
        self._reader = LedgerReader(options.config, pipeline)
        self._history: Final = History(self._reader, options.ledger_retention)
        self._savepoints: Final = Savepoints(home.savepoints)
        self._lease: leases.Lease | None = None
        self._left: leases.Lease | None = options.left  # by the pipeline's former holder
        self._lineage: Lineage | None = None
        self._tail: LedgerTail | None = None

    @property
    def tail(self) -> LedgerTail:
        """The ledger's end, as of the claim and this run's own commits since."""
        return required(self._tail, "the run has no claim yet")

    @property
    def newest_own(self) -> CommitRecord | None:
        """The newest commit; None when another backfill, with other topics, wrote it."""
        commit = self.tail.commit
        return commit if commit is not None and commit.backfill == self.options.backfill else None

    @property
    def lineage(self) -> Lineage:
        """The lineage in use."""
        return required(self._lineage, "the run has no lineage yet")

    def check(self) -> LedgerTail | None:
        """Take step (a), without side effects; returns the ledger's end, None when there is no ledger yet.

        :raises RefusedError: when home and ledger do not belong together
        :raises AlreadyRunningError: when a living driver holds the pipeline
        """
        self._check_lease()
        preflight.check_cluster(
            self.client,
            transactional_id=self.session.transactional_id,
            transaction_timeout_milliseconds=self.options.transaction_timeout_milliseconds,
            user=self.options.config.get("sasl.username"),
        )
        tail = _tail_of(self._reader)
        self._check_ledger(tail)
        if tail is not None:
            topic.check(self.options.config, self.pipeline, is_new=_is_new(tail))
        return tail

    def start(self) -> None:
        """Take steps (a) to (c).

        :raises RefusedError: when step (a) refuses; nothing was fenced, written or aborted
        :raises AlreadyRunningError: when a living driver holds the pipeline
        """
        tail = self.check()
        self._lease = leases.take_over(self.home.lease, self.pipeline, self.options.token, self._left)
        topic.ensure(self.options.config, self.pipeline, is_new=_is_new(tail))
        self._lineage = self.home.current() or self.home.create(self.pipeline)
        self._claim_until_settled()
        failpoints.note(run=self.number)
        failpoints.reach("after-claim")

    def reclaim(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Take steps (a) to (c) again, under the same run number, after the producer was lost or a commit is in doubt.

        :param give_up: asked between repetitions, true when the process has to stop
        :raises FencedError: when a higher run, or a driver that is about to become one, has taken over
        """
        self._claim_until_settled(give_up)

    def record_lost(self, record: CommitRecord) -> None:
        """Record in the ledger that rows of a commit may be lost, in a new claim of this run.

        :raises FencedError: when a higher run has taken over
        """
        self.lost[record.commit] = record.source
        self.reclaim()

    def check_superseded(self) -> None:
        """Look whether another driver, or a restore, has taken over. May be called from any thread.

        :raises FencedError: naming it
        :raises UnansweredError: when the ledger can't be read
        :raises OSError: when the home can't be
        """
        with LedgerReader(self.options.config, self.pipeline) as reader:
            tail = _tail_of(reader)
        if tail is not None and tail.claim is not None and tail.claim.run > self.number:
            raise self._superseded_by(tail.claim)
        lease = leases.read(self.home.lease)
        if self._has_left_lineage():  # after the lease: a process that switches holds it, and releases it last
            raise FencedError(
                f"run {self.number} of {self.pipeline} is superseded: the home was restored, rescaled or moved while "
                f"this driver gave no sign of life, and lineage {self.lineage.id} is not used any more. Start the "
                "pipeline again"
            )
        if lease is None or lease.token == self.options.token or 0 < lease.run < self.number:
            return  # the ledger outranks the lease: a lower run that was frozen while it renewed is no successor
        if not leases.is_dead(lease):  # it is about to claim
            raise FencedError(
                f"run {self.number} of {self.pipeline} is superseded: the driver with pid {lease.pid} on {lease.host} "
                "has taken the lease"
            )

    def delete_checkpoint(self) -> None:
        """Delete the checkpoint of a claimed run; the next start goes on from a savepoint.

        ``current`` says so before the first file goes. Who takes over reads it once he has the lease, and we look at
        the lease once it is written: if we were frozen for so long that he has read it before, we see his lease.

        :raises FencedError: when another driver has taken over; nothing is deleted then
        :raises AlreadyRunningError: when one has the lease, or had it and is done; nothing is deleted then either
        :raises UnansweredError: when the ledger can't be read
        """
        self.check_superseded()  # a cluster that does not answer must not keep the lease held for so long
        lease = required(self._lease, "the run has taken the lease")
        hold = leases.Hold(self.home.lease, lease)
        with hold.sure():
            self.check_superseded()  # who has taken over and is done has left no lease
            self.home.switch(self.lineage.id, hold.pointer, deleted=True)
        leases.check_held(self.home.lease, lease)
        path = self.home.checkpoint(self.lineage.id)
        store_of(path).remove(path)

    def renew_lease(self) -> bool:
        """Renew the lease; false when another driver has taken it, or a restore had it, which leaves none.

        :raises OSError: when the home does not tell
        """
        if self._lease is not None:
            lease = replace(self._lease, run=self.number)
            renewed = leases.renew(self.home.lease, lease, again=lambda: not self._has_left_lineage())
            if renewed is None:
                return False
            self._lease = renewed
        return True

    def _has_left_lineage(self) -> bool:
        """Whether the home has another current lineage than this run has claimed; False when it can't be read."""
        return self.number > 0 and self.home.uses(self.lineage.id) is False

    def expired(self) -> Expired:
        """Choose the ledger's records that go with the next commit."""
        return self._history.expired(
            self.tail.place, needed_from=self._needed_from, now_milliseconds=int(time.time() * 1000)
        )

    def _needed_from(self) -> int | None:
        needed = [self._savepoints.oldest_commit(), backfills.oldest_needed(self.home)]
        return min((commit for commit in needed if commit is not None), default=None)

    def committed(self, record: CommitRecord, offset: int) -> None:
        """Note this run's own commit."""
        self._history.committed()
        self._tail = replace(self.tail, end_offset=offset + 1, commit=record, commit_offset=offset)
        self.home.note_commit(record.lineage, record.commit)

    def rebase(self, batch: int, commit: int) -> None:
        """Note durably that a batch of the lineage is this commit, and those after it follow.

        :raises FencedError: when another driver has taken over: its replay may have run other batches
        """
        rebased = replace(self.lineage, base_batch=batch, base_commit=commit, reemits=None)
        document = self.home.lineages / rebased.id / "lineage.json"
        stored = store_of(document).read(document)
        self.check_superseded()  # after the look: nothing that a successor has noted is replaced
        try:
            json_store.swap(document, stored, rebased.document())
        except ChangedError:
            self.check_superseded()
            raise
        self._lineage = rebased

    def close(self) -> None:
        """Release the lease and the connections; an open transaction stays for the next run to abort."""
        if self._lease is not None:
            leases.let_go(self.home.lease, self._lease)
        self._reader.close()
        self.sources.close()

    def _check_lease(self) -> None:
        lease = leases.read(self.home.lease)
        if lease is not None and (lease.token == self.options.token or leases.is_left(lease, self._left)):
            return
        self._left, life = leases.observe(self.home.lease)
        held = self._left
        if held is not None and life is Liveness.ALIVE and held.token != self.options.token:
            raise AlreadyRunningError(
                f"pipeline {held.pipeline} runs already: run {held.run}, pid {held.pid} on {held.host}. Stop it first"
            )

    def _check_ledger(self, tail: LedgerTail | None) -> None:
        check_start(self.home, self.pipeline, tail, accept_home=self.options.accept_home)

    def _claim_until_settled(self, give_up: Callable[[], bool] = lambda: False) -> None:
        for attempt in range(1, _CLAIM_TRIES + 1):
            try:
                self.check_superseded() if self.number else self._check_home()
                if self._claim(give_up):
                    self._hold()
                    return
                log.warning("another driver claimed %s in between; choosing again", self.pipeline)
            except (BatchFailedError, CommitUnknownError, ProducerLostError, UnansweredError) as error:
                log.warning("claim %d of %d did not succeed: %s", attempt, _CLAIM_TRIES, error)
            if give_up():
                break
            time.sleep(random.uniform(0.2, 1.0) * _CLAIM_PAUSE_SECONDS * attempt)
        if self.session.state is SessionState.OPEN:
            with contextlib.suppress(ProducerLostError):
                self.session.abort()
        raise ClaimFailedError(f"pipeline {self.pipeline} could not be claimed in {attempt} tries; start it again")

    def _check_home(self) -> None:
        """Check that the home is as it was found: a restore may have run while this process was frozen."""
        leases.check_held(self.home.lease, required(self._lease, "the run has taken the lease"))
        if not self.home.uses(self.lineage.id):
            raise AlreadyRunningError(
                f"{self.home}/current names another lineage than {self.lineage.id}, with which this start began, or "
                "says that it is deleted: the pipeline was restored or cancelled meanwhile. Start it again"
            )

    def _hold(self) -> None:
        """Take the lease for the claim that is now the newest; a slower starter may have taken it in between.

        Nor may a restore that was made while this process was frozen, before the claim, be what the next start runs:
        it begins where the ledger ended before.
        """
        self._lease = leases.acquire(self.home.lease, self.pipeline, self.options.token, run=self.number)
        with leases.Hold(self.home.lease, self._lease).sure():
            if not self.home.uses(self.lineage.id):
                log.warning("run %d goes on in lineage %s; a restore since is undone", self.number, self.lineage.id)
                self.home.remember(self.lineage)
            self.home.use(self.lineage.id)  # in any case: a restore that was frozen in its switch can't end it now

    def _claim(self, give_up: Callable[[], bool]) -> bool:
        """Take steps (b) and (c) once; false when another driver wrote to the ledger in between."""
        self.session.initialise(give_up)
        tail_before = _tail_of(self._reader)  # whatever older runs had open is decided now
        self._check_ledger(tail_before)
        if tail_before is None:
            raise UnansweredError(f"topic {self._reader.topic} was made and is not there yet")
        if tail_before.claim is not None and self.number and tail_before.claim.run > self.number:
            raise self._superseded_by(tail_before.claim)
        claim = self._claim_record(tail_before)
        self.session.begin()
        offset = self.session.write(self._reader.topic, 0, claim.key, records.encode(claim))
        self.session.commit()
        self._wait_until_stable(offset)
        with _answering(self._reader):
            written = [record_offset for record_offset, _ in self._reader.records(tail_before.end_offset)]
        if written != [offset]:
            return False
        tail = _tail_of(self._reader)
        if tail is None or tail.claim_offset != offset:
            return False
        self.number, self._tail = claim.run, tail
        self._lineage = replace(
            self.lineage, cluster_id=tail.cluster_id, ledger_topic_id=tail.topic_id, last_commit=claim.base_commit
        )
        self.home.remember(self._lineage)
        return True

    def _claim_record(self, tail: LedgerTail) -> ClaimRecord:
        highest = tail.claim.run if tail.claim else 0
        return ClaimRecord(
            pipeline=self.pipeline,
            run=self.number or highest + 1,
            host=socket.gethostname(),
            pid=os.getpid(),
            token=self.options.token,
            lineage=self.lineage.id,
            version=self.options.version,
            home=str(self.home.identity()),
            home_path=str(self.home),
            base_commit=tail.place.commit,
            claimed=int(time.time() * 1000),
            before=tail.place,
            parent_savepoint=self.lineage.savepoint,
            guarantee=self.guarantee,
            lost=self.lost,
            machine=process_identity.this_machine(),
            plan=self.options.plan,
            source_clusters=self.sources.recorded,
            source_datasets=self.sources.datasets,
        )

    def _wait_until_stable(self, offset: int) -> None:
        topic = self._reader.topic
        if not poll_until(
            lambda: self.client.stable_offsets(topic)[0] > offset, seconds=_STABLE_PATIENCE_SECONDS, poll_seconds=0.01
        ):
            raise CommitUnknownError(
                f"the last stable offset of {topic} has not passed {offset} for {_STABLE_PATIENCE_SECONDS:.0f} s"
            )

    def _superseded_by(self, claim: ClaimRecord) -> FencedError:
        return FencedError(
            f"run {self.number} of {self.pipeline} is superseded by run {claim.run}: pid {claim.pid} on {claim.host}, "
            f"claimed {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(claim.claimed / 1000))} UTC"
        )


def _is_new(tail: LedgerTail | None) -> bool:
    return tail is None or (tail.claim is None and tail.commit is None)


def _tail_of(reader: LedgerReader) -> LedgerTail | None:
    with _answering(reader):
        return reader.tail()


@contextmanager
def _answering(reader: LedgerReader) -> Iterator[None]:
    """Take a ledger that can't be read now for one that does not answer: a claim is tried again."""
    from confluent_kafka import KafkaException

    try:
        yield
    except (KafkaException, MissingPartitionError, ReadTimedOutError) as error:
        raise UnansweredError(f"ledger {reader.topic}: {error.args[0]}") from error
