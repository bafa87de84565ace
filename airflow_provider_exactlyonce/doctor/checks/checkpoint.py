"""Whether the current checkpoint is whole, is the lineage's own, and fits the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.checkpoint.layout import BatchOffsets, parse_offsets, whole
from airflow_provider_exactlyonce.checkpoint.restart import RestartSource
from airflow_provider_exactlyonce.checkpoint.start_checks import check_not_ahead, replay_is_needed
from airflow_provider_exactlyonce.control.status import DriverState, Status
from airflow_provider_exactlyonce.doctor.facts import CheckpointFacts, Facts
from airflow_provider_exactlyonce.doctor.findings import Finding, Remedy
from airflow_provider_exactlyonce.exceptions import BatchTimedOutError, RefusedError
from airflow_provider_exactlyonce.storage.opening import is_there, store_of

_PARTITIONS: Final = "spark.sql.shuffle.partitions"


def is_whole(facts: Facts) -> Iterator[Finding]:
    """Check the checkpoint's files, as a start does."""
    checkpoint_facts = facts.checkpoint
    mismatch = facts.mismatch(checkpoint_facts.lineage) if checkpoint_facts is not None and facts.reachable else None
    if checkpoint_facts is None or (mismatch is not None and mismatch.is_of_lineage):
        return  # it isn't the one that the pipeline goes on from
    path = checkpoint_facts.checkpoint.path
    if checkpoint_facts.foreign is not None:
        yield Finding(
            "foreign-checkpoint",
            checkpoint_facts.foreign,
            f"move it away and put the lineage's own back from a copy, or: exactlyonce restore {facts.pipeline}",
        )
        return
    if checkpoint_facts.query_id_lost:
        yield Finding(
            "query-id-lost",
            f"{path}/metadata is missing or torn; the home knows its content",
            "nothing: the next start writes it again",
            Remedy.REBUILD,
        )
    restart = checkpoint_facts.restart
    if restart is None or restart.source is RestartSource.CHECKPOINT:
        return
    if restart.source is RestartSource.NOTHING:
        yield Finding(
            "state-lost",
            f"no batch of {path} is whole, and there is no whole savepoint: {restart.damage}",
            "put the home back from a copy; or start once with --allow-empty-state, which begins with empty state "
            "after the last commit",
        )
    elif restart.savepoint is not None and not is_there(path):
        yield Finding(
            "checkpoint-gone",
            f"{path} is not there: somebody has removed it, or the job says on_cancellation=delete; savepoint "
            f"{restart.savepoint.id} is whole",
            "start the pipeline: it restores that savepoint, and what was committed since is not written again",
            Remedy.RESTORE,
        )
    elif restart.savepoint is not None:
        yield Finding(
            "torn-files",
            f"{path}: {restart.damage}; the newest that is whole is savepoint {restart.savepoint.id}",
            f"exactlyonce restore {facts.pipeline} --savepoint {restart.savepoint.id}; the next start does so too",
            Remedy.RESTORE,
        )
    else:
        yield Finding(
            "torn-files",
            f"{path}: {restart.damage}; batch {restart.batch} is whole",
            "start the pipeline: it goes on from that batch, and what was committed since is not written again",
            Remedy.REBUILD,
        )


def fits_ledger(facts: Facts) -> Iterator[Finding]:
    """Compare checkpoint and ledger; of a pipeline that runs, its driver has."""
    checkpoint_facts, tail = facts.checkpoint, facts.tail
    if checkpoint_facts is None or tail is None or tail.claim is None or facts.runs or not _belongs(facts):
        return
    if checkpoint_facts.restart is None or checkpoint_facts.restart.source is not RestartSource.CHECKPOINT:
        return  # torn files come first
    checkpoint, lineage = checkpoint_facts.checkpoint, checkpoint_facts.lineage
    try:
        check_not_ahead(checkpoint, lineage, tail)
    except RefusedError as error:
        yield Finding(
            "checkpoint-ahead-of-ledger",
            str(error),
            "find the ledger's cluster, or put home and ledger back from one backup; never start it like this",
        )
        return
    record, batch = facts.history.done if facts.history else None, checkpoint_facts.restart.batch
    if record is not None and batch is not None and record.commit == lineage.state_of(batch):
        offsets = whole(checkpoint.offsets, batch)
        if offsets is not None and not offsets.same_sources(parse_offsets(record.offsets)):
            yield Finding(
                "offsets-differ-from-ledger",
                f"{checkpoint.path}/offsets/{batch} ends at {offsets.kafka_ends()}, and commit {record.commit} in the "
                f"ledger at {parse_offsets(record.offsets).kafka_ends()}: the state is of other data than the output, "
                "or the files are of another pipeline",
                f"exactlyonce restore {facts.pipeline}",
                _restore(facts),
            )
            return
    yield from _behind(facts, checkpoint_facts)


def _belongs(facts: Facts) -> bool:
    return facts.home is not None and facts.mismatch(facts.home.lineage) is None


def _behind(facts: Facts, checkpoint_facts: CheckpointFacts) -> Iterator[Finding]:
    tail = facts.tail
    if tail is None:
        return
    checkpoint, lineage = checkpoint_facts.checkpoint, checkpoint_facts.lineage
    restored = tail.commit is not None and tail.commit.lineage != lineage.id
    newest = checkpoint.newest_commit()
    done = lineage.commit_of(-1 if newest is None else newest)
    try:
        needs_replay = replay_is_needed(checkpoint, lineage, tail)
    except RefusedError as error:
        remedy = _restore(facts) if newest is None else Remedy.REBUILD
        yield Finding("checkpoint-behind-ledger", str(error), f"exactlyonce restore {facts.pipeline}", remedy)
        return
    if done < facts.newest and (missing := _missing(facts, done)) is not None:
        yield Finding(
            "replay-impossible",
            f"the checkpoint of lineage {lineage.id} is at commit {done} and the ledger at {facts.newest}: the next "
            f"start has to run commits {done + 1} to {facts.newest} again, and {missing}",
            "put a newer checkpoint back from a copy of the home, or restore a newer savepoint: exactlyonce restore "
            f"{facts.pipeline}",
        )
    elif needs_replay and not restored:
        yield Finding(
            "checkpoint-behind-ledger",
            f"{checkpoint.path} is at commit {done}, and the ledger is at {facts.newest}: files were lost, or an older "
            "copy was put back",
            f"start the pipeline: it runs commits {done + 1} to {facts.newest} again without writing",
            Remedy.REBUILD,
        )
    elif done == facts.newest - 1 and not restored:
        yield Finding(
            "batch-not-recorded-by-spark",
            f"batch {lineage.batch_of(facts.newest)} is commit {facts.newest} in the ledger, and Spark had not noted "
            "it when the driver ended",
            "nothing: the next start builds its state again and writes nothing",
        )
    if done == facts.newest:
        yield from _planned(facts, checkpoint_facts)


def _restore(facts: Facts) -> Remedy | None:
    return Remedy.RESTORE if facts.savepoints is not None and facts.savepoints.whole else None


def _missing(facts: Facts, done: int) -> str | None:
    """Return which record or commit a replay of everything after a commit would lack, None when it lacks none."""
    history = facts.history
    if history is None or done not in history.spans:
        return None
    if done in history.incomplete:
        return f"commit {history.incomplete[done]} is not in the ledger any more"
    missing = facts.missing_input(history.spans[done])
    return None if missing is None else f"{missing}, is gone"


def _planned(facts: Facts, checkpoint_facts: CheckpointFacts) -> Iterator[Finding]:
    """Judge batches that are planned and not committed: as a rule one, which a stop has left to the next start."""
    checkpoint, lineage = checkpoint_facts.checkpoint, checkpoint_facts.lineage
    committed = lineage.batch_of(facts.newest)
    planned = [batch for batch in checkpoint.batches("offsets") if batch > committed]
    if not planned:
        return
    first, file = planned[0], checkpoint.path / "offsets" / str(planned[0])
    status = facts.driver.status if facts.driver else None
    if status is not None and status.lineage != lineage.id:
        status = None
    error = status.error if status is not None else None
    previous, offsets = whole(checkpoint.offsets, committed), whole(checkpoint.offsets, first)
    if offsets is None or planned[1:] or first != committed + 1:
        batches = ", ".join(map(str, planned))
        torn = "; it is torn" if offsets is None else ""
        yield _leftover(
            f"{file.parent} has {batches} after the newest commit, batch {committed}{torn}: the batch was never begun"
        )
    elif previous is not None and previous.conf.get(_PARTITIONS) != offsets.conf.get(_PARTITIONS):
        yield Finding(
            "unfinished-repartition",
            f"{file} has {offsets.conf.get(_PARTITIONS)} state partitions and the batch before it "
            f"{previous.conf.get(_PARTITIONS)}: a repartitioning was begun and not finished, and Spark refuses to "
            "start",
            f"drop it with --fix, then: exactlyonce rescale {facts.pipeline} --state-partitions N",
            Remedy.REBUILD,
        )
    elif previous is not None and (reason := _does_not_follow(previous, offsets)):
        yield _leftover(f"{file} does not follow the batch before it: {reason}")
    elif error is not None and error.kind == BatchTimedOutError.__name__:
        yield Finding(
            "batch-too-long",
            f"{file}: {error.message}",
            "raise transaction_timeout_seconds of the KafkaSink, or timeout of the CheckpointConfig, or lower "
            "max_offsets_per_trigger and let --fix cut the batch in half",
            Remedy.CUT,
        )
    elif status is not None and _failed_at_once(facts, status, file):
        yield _leftover(f"{file} is of run {status.run}, which failed before it committed anything")


def _leftover(what: str) -> Finding:
    return Finding(
        "leftover-offsets", what, "drop it with --fix: Spark plans the batch anew at the next start", Remedy.REBUILD
    )


def _failed_at_once(facts: Facts, status: Status, planned: Path) -> bool:
    claim = facts.tail.claim if facts.tail else None
    return (
        status.state is DriverState.FAILED
        and status.commits_of_run == 0
        and claim is not None
        and status.token == claim.token
        and (facts_of_plan := store_of(planned).facts(planned)) is not None
        and facts_of_plan.modified * 1000 >= claim.claimed
    )


def _does_not_follow(previous: BatchOffsets, offsets: BatchOffsets) -> str | None:
    """Return why a plan can't come after a batch of the same job."""
    for name in previous.conf.keys() & offsets.conf.keys():  # Spark takes them over from batch to batch
        if previous.conf[name] != offsets.conf[name]:
            return f"it has {name}={offsets.conf[name]}, and that one {previous.conf[name]}"
    if len(previous.sources) != len(offsets.sources):
        return f"it has {len(offsets.sources)} sources, and that one {len(previous.sources)}"
    current_ends = offsets.kafka_ends()
    for topic, partitions in previous.kafka_ends().items():
        if topic not in current_ends:
            return f"it lacks topic {topic}"
        for partition, end in partitions.items():
            if current_ends[topic].get(partition, -1) < end:
                return f"{topic}-{partition} ends at {current_ends[topic].get(partition)}, and before it at {end}"
    return None
