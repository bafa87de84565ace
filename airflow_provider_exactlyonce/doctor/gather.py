"""Looks at everything that a pipeline consists of. Nothing is changed, fenced or aborted; a driver may run meanwhile.

Facts are read in the reverse order of a driver's changes: a driver commits to the ledger, then Spark notes the batch,
then the home its number. So the ledger, which is read last, is never behind the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider_exactlyonce.checkpoint import lineages
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint, whole
from airflow_provider_exactlyonce.checkpoint.restart import RestartSource, decide
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.checkpoint.state import Defect
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.control.lease import Liveness
from airflow_provider_exactlyonce.doctor.facts import CheckpointFacts, Facts, HistoryFacts, HomeFacts, SavepointFacts
from airflow_provider_exactlyonce.doctor.findings import Finding
from airflow_provider_exactlyonce.doctor.probes import driver, topics, transactions
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, HomeMovedError, RefusedError
from airflow_provider_exactlyonce.kafka.config import for_confluent
from airflow_provider_exactlyonce.ledger import listing
from airflow_provider_exactlyonce.ledger import topic as ledger_topics
from airflow_provider_exactlyonce.ledger.commit_range import CommitSpan
from airflow_provider_exactlyonce.ledger.reader import LedgerReader, LedgerTail
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.storage.opening import is_there

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.kafka.wire import WireClient

T = TypeVar("T")

_PATIENCE_SECONDS: Final = 10.0
_TRIES: Final = 4
_PAUSE_SECONDS: Final = 1.0
_CONTRADICTIONS_KEPT: Final = 3


def gather(
    pipeline: str, config: Mapping[str, Any], location: str | None, verified: dict[str, Sequence[Defect]]
) -> Facts:
    """Look at a pipeline.

    :param config: client configuration in librdkafka's names
    :param location: its home, None for where its last run started
    :param verified: {savepoint: defects of its bytes} of savepoints that were read before; new ones are added
    """
    facts, grown = Facts(pipeline=pipeline, config=config), False
    with ExitStack() as stack:
        client = _connect(facts, stack)
        reader = stack.enter_context(LedgerReader(config, pipeline)) if client else None
        facts.tail = _tail(facts, reader)
        if facts.tail is not None:
            facts.clusters = SourceClusters.claimed(config, facts.tail.claim)
            stack.callback(facts.clusters.close)
        home = _find_home(facts, location)
        if home is not None:
            _probe_home(facts, home, verified)
        if client is not None and reader is not None:
            previous_tail, facts.tail = facts.tail, _tail(facts, reader) if facts.tail else None
            grown = previous_tail is not None and facts.tail is not None and previous_tail.place != facts.tail.place
            facts.history = seen(facts, "the ledger", lambda: _history(facts, reader))
        if home is not None:
            facts.driver = seen(facts, "the driver", lambda: driver.look(facts, home))
            is_silent = facts.driver is not None and facts.driver.life is Liveness.STALE
            facts.in_motion = grown or (facts.in_motion and not is_silent)
        if client is not None:
            facts.topics = seen(facts, "the topics", lambda: topics.look(facts, client))
            facts.transactions = seen(facts, "the transactions", lambda: transactions.look(facts, client))
    return facts


def seen(facts: Facts, subject: str, look: Callable[[], T]) -> T | None:
    """Return the facts of a subject; when they can't be read, note that, so that the others are still read."""
    from confluent_kafka import KafkaException

    from airflow_provider_exactlyonce.kafka.wire import UnansweredError

    try:
        return look()
    except (ExactlyOnceError, KafkaException, UnansweredError, OSError, ValueError) as error:
        facts.unseen.append(
            Finding("not-looked-at", f"{subject} could not be looked at: {error}", "repair that, then ask again")
        )
        return None


def _connect(facts: Facts, stack: ExitStack) -> WireClient | None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from airflow_provider_exactlyonce.kafka.reach import unreachable
    from airflow_provider_exactlyonce.kafka.wire import UnansweredError, WireClient

    try:
        AdminClient(for_confluent(facts.config)).list_topics(timeout=_PATIENCE_SECONDS)
        client = stack.enter_context(WireClient(dict(facts.config)))
    except (KafkaException, UnansweredError):
        facts.unseen.append(
            Finding("kafka-unreachable", str(unreachable(dict(facts.config))), "bring the brokers back, then ask again")
        )
        return None
    facts.reachable = True
    return client


def _tail(facts: Facts, reader: LedgerReader | None) -> LedgerTail | None:
    from confluent_kafka import KafkaException

    if reader is None:
        return None
    try:
        return reader.tail()
    except (ExactlyOnceError, KafkaException) as error:
        facts.unseen.append(
            Finding(
                "ledger-unreadable",
                f"the end of {reader.topic} can't be read: {error}",
                "find its other writer, or the record that was removed; nothing can be started before",
            )
        )
        return None


def _find_home(facts: Facts, location: str | None) -> Home | None:
    claim = facts.tail.claim if facts.tail else None
    if location is not None:
        return Home(location)
    if claim is not None:
        return seen(facts, f"the home {claim.home_path}", lambda: Home(claim.home_path))
    if facts.reachable and facts.tail is None and not facts.unseen:
        facts.unseen.append(
            Finding(
                "ledger-missing",
                f"pipeline {facts.pipeline} has no ledger on this cluster: it has never been started here, or its "
                "ledger was deleted",
                f"{listing.hint(facts.config, facts.pipeline)}. Check the name and bootstrap.servers; pass --home to "
                "compare with what its home knows",
            )
        )
    else:
        facts.unseen.append(
            Finding("home-unknown", "the ledger does not tell where the pipeline's home is", "pass --home DIR")
        )
    return None


def _probe_home(facts: Facts, home: Home, verified: dict[str, Sequence[Defect]]) -> None:
    facts.home = seen(facts, f"the home {home}", lambda: _look_at_home(facts, home))
    if facts.home is None or not facts.home.exists or facts.home.moved is not None:
        return
    if (lineage := facts.home.lineage) is not None:
        facts.checkpoint = seen(facts, "the checkpoint", lambda: _checkpoint(home, lineage, facts.tail))
    facts.savepoints = seen(facts, "the savepoints", lambda: _savepoints(Savepoints(home.savepoints), verified))


def _look_at_home(facts: Facts, home: Home) -> HomeFacts:
    """Look at the home's own documents; nothing is known of a home that can't be read to the end."""
    home_facts = HomeFacts(home=home, exists=is_there(home.path))
    facts.in_motion = leases.look(home.lease)[1] is Liveness.ALIVE
    if not home_facts.exists:
        return home_facts
    try:
        home_facts.identity, home_facts.pipeline = home.identity(), home.pipeline()
    except HomeMovedError as error:
        home_facts.moved = str(error)
        return home_facts
    except RefusedError as error:
        home_facts.torn = str(error)
    try:
        home_facts.lineage = home.current()
    except RefusedError as error:
        home_facts.lost = str(error)
    claim = facts.tail.claim if facts.tail else None
    home_facts.successors = _successors(home, claim.lineage) if claim else []
    home_facts.unfinished = [str(path) for path in lineages.unfinished(home.lineages)]
    return home_facts


def _successors(home: Home, lineage_id: str) -> list[Lineage]:
    """Return the lineage of the newest run and those that have replaced it, one after the other."""
    successors: list[Lineage] = []
    next_id: str | None = lineage_id
    while next_id is not None and next_id not in [successor.id for successor in successors]:
        lineage = home.lineage(next_id)
        if lineage is None:
            break
        successors.append(lineage)
        next_id = lineage.abandoned_for
    return successors


def _checkpoint(home: Home, lineage: Lineage, tail: LedgerTail | None) -> CheckpointFacts:
    checkpoint = Checkpoint(home.checkpoint(lineage.id))
    checkpoint_facts = CheckpointFacts(checkpoint=checkpoint, lineage=lineage)
    query = whole(checkpoint.query_id)
    checkpoint_facts.query_id_lost = query is None and checkpoint.newest_offsets() is not None
    commit = tail.place.commit if tail else lineage.last_commit
    for remaining_tries in reversed(range(_TRIES)):  # while a driver runs, Spark writes and removes files
        try:
            checkpoint_facts.restart = decide(checkpoint, Savepoints(home.savepoints), lineage, commit)
        except RefusedError as error:
            if query in (None, lineage.id):
                raise
            checkpoint_facts.foreign = str(error)
            return checkpoint_facts
        except FileNotFoundError:
            if not remaining_tries:
                raise
        if checkpoint_facts.restart is not None and checkpoint_facts.restart.source is RestartSource.CHECKPOINT:
            break
        if leases.look(home.lease)[1] is not Liveness.ALIVE:
            break
        time.sleep(_PAUSE_SECONDS)
    return checkpoint_facts


def _savepoints(store: Savepoints, verified: dict[str, Sequence[Defect]]) -> SavepointFacts:
    for savepoint_id in {savepoint.id for savepoint in store.list()} - verified.keys():
        try:
            verified[savepoint_id] = store.verify(savepoint_id)
        except RefusedError:
            if any(savepoint.id == savepoint_id for savepoint in store.list()):
                raise
    # A driver takes and deletes others.
    savepoints = [savepoint for savepoint in store.list() if savepoint.id in verified]
    damaged = dict.fromkeys(store.torn(), "its manifest is torn or was changed by hand")
    for savepoint in savepoints:
        if defects := verified[savepoint.id]:
            more = f"; and {len(defects) - 1} more" if len(defects) > 1 else ""
            damaged[savepoint.id] = f"{defects[0]}{more}"
    return SavepointFacts(
        whole=[savepoint for savepoint in savepoints if savepoint.id not in damaged],
        damaged=damaged,
        leftovers=store.leftovers(),
    )


def _history(facts: Facts, reader: LedgerReader) -> HistoryFacts | None:
    """Read the ledger once, for all that asks for its past."""
    from airflow_provider_exactlyonce.audit.findings import Findings
    from airflow_provider_exactlyonce.audit.ledger_check import LedgerCheck

    if facts.tail is None:
        return None
    newest = facts.newest
    findings = Findings()
    check = LedgerCheck(facts.pipeline, facts.tail.place.oldest, findings)
    spans = {start: CommitSpan(first=start + 1, last=newest) for start in _starts(facts)}
    expected = {start: start + 1 for start in spans}
    runs: list[ClaimRecord] = []
    done: CommitRecord | None = None
    for offset, record in reader.records():
        if offset >= facts.tail.end_offset:
            break
        check.add(offset, record)
        if isinstance(record, ClaimRecord):
            runs.append(record)
            continue
        if record.commit == facts.done:
            done = record
        for start, span in spans.items():
            if record.commit == expected[start]:
                span.add(record)
                expected[start] += 1
    return HistoryFacts(
        contradictions=[str(violation) for violation in findings.kept[:_CONTRADICTIONS_KEPT]],
        spans=spans,
        incomplete={start: commit for start, commit in expected.items() if commit <= newest},
        producer_ids=frozenset(check.producer_ids),
        runs=runs,
        done=done,
        settings=ledger_topics.look(facts.config, facts.pipeline),
    )


def _starts(facts: Facts) -> set[int]:
    """Return the commits after which a replay may have to begin."""
    commits = {savepoint.commit for savepoint in facts.savepoints.whole} if facts.savepoints else set()
    if facts.done is not None:
        commits.add(facts.done)
    return {commit for commit in commits if commit < facts.newest}
