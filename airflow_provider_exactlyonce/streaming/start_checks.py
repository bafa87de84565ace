"""Steps (a) and (d) of a run's start: what has to fit between home, ledger and checkpoint."""

from __future__ import annotations

import logging

from airflow_provider_exactlyonce.checkpoint.layout import BatchOffsets, Checkpoint, TornFileError, parse_offsets
from airflow_provider_exactlyonce.control.home import Lineage
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.records import CommitRecord

log = logging.getLogger(__name__)


def check_start(
    *,
    pipeline: str,
    home_path: str,
    home_id: str | None,
    home_pipeline: str | None,
    lineage: Lineage | None,
    tail: LedgerTail | None,
    accept_home: bool,
) -> None:
    """Check that this home and this ledger belong together.

    :param home_id: identity of the home, None when the directory is no home yet
    :param home_pipeline: the pipeline whose home it is
    :param lineage: the home's current lineage
    :param tail: the ledger's end, None when there is no ledger topic
    :param accept_home: the home was moved on purpose
    :raises RefusedError: with the reason and what to do
    """
    if home_pipeline is not None and home_pipeline != pipeline:
        raise RefusedError(f"{home_path} is the home of pipeline {home_pipeline}, not of {pipeline}; give each its own")
    _check_ledger_is_ours(pipeline, home_path, lineage, tail)
    claim = tail.claim if tail else None
    if claim is None:
        return
    if home_id is None or lineage is None:
        raise RefusedError(
            f"{home_path} is empty, but pipeline {pipeline} has a home: {claim.home_path} (run {claim.run}, "
            f"commit {tail.place.commit if tail else 0}). Start it from there, or give the new pipeline another name"
        )
    if home_id != claim.home:
        raise RefusedError(
            f"{home_path} is not the home of pipeline {pipeline}: its last run {claim.run} started from "
            f"{claim.home_path}. Start it from there, or give the new pipeline another name"
        )
    if home_path != claim.home_path and not accept_home:
        raise RefusedError(
            f"{home_path} is a copy: run {claim.run} of pipeline {pipeline} started from {claim.home_path}. "
            "Start it from there; if the home was moved for good, pass --accept-home once"
        )
    if lineage.id != claim.lineage:
        raise RefusedError(
            f"{home_path}/current points to lineage {lineage.id}; run {claim.run} of pipeline {pipeline} went on in "
            f"lineage {claim.lineage}. A lineage that isn't current would repeat what is committed; point current to "
            f"{claim.lineage} again"
        )


def _check_ledger_is_ours(pipeline: str, home_path: str, lineage: Lineage | None, tail: LedgerTail | None) -> None:
    if lineage is None or lineage.ledger_topic_id is None:
        return
    if tail is None:
        raise RefusedError(
            f"the ledger of pipeline {pipeline} was deleted: {home_path} knows it up to commit {lineage.last_commit}, "
            "and its topic does not exist on this cluster. Without it committed batches would be written again"
        )
    if tail.cluster_id != lineage.cluster_id:
        raise RefusedError(
            f"this is Kafka cluster {tail.cluster_id}; the ledger of {home_path} is on cluster {lineage.cluster_id}. "
            "Check bootstrap.servers"
        )
    if tail.topic_id != lineage.ledger_topic_id:
        raise RefusedError(
            f"the ledger of pipeline {pipeline} was recreated: its topic has id {tail.topic_id}, {home_path} knows "
            f"{lineage.ledger_topic_id} up to commit {lineage.last_commit}. Committed batches would be written again"
        )
    if tail.place.commit < lineage.last_commit:
        raise RefusedError(
            f"the ledger of pipeline {pipeline} ends at commit {tail.place.commit}; {home_path} has seen commit "
            f"{lineage.last_commit}. The ledger was set back; committed batches would be written again"
        )


def reconcile(checkpoint: Checkpoint, lineage: str, tail: LedgerTail) -> None:
    """Step (d): make the checkpoint fit the ledger, where one lost or torn file is all that is missing.

    Equal, or the ledger one batch ahead: go on; Spark runs that batch again and the coordinator only rebuilds its
    state. A missing, torn or different ``offsets/N`` of a committed batch is put back from the ledger. Torn entries
    that the ledger does not know are removed: their batch was never begun.

    :raises RefusedError: when the checkpoint is further behind, or ahead of the ledger
    """
    record = tail.commit if tail.commit and tail.commit.lineage == lineage else None
    committed = record.batch if record else -1
    newest = checkpoint.newest_commit()
    if newest is not None and not checkpoint.commit_is_whole(newest) and newest == committed:
        log.warning("commits/%d of %s is torn and is removed; its batch is in the ledger", newest, checkpoint.path)
        checkpoint.remove("commits", newest)
        newest = checkpoint.newest_commit()
    done = -1 if newest is None else newest
    if done > committed:
        raise RefusedError(
            f"{checkpoint.path} is at batch {done}, and the ledger knows lineage {lineage} only up to batch "
            f"{committed}: the ledger was set back, or the checkpoint is of another pipeline"
        )
    if done < committed - 1:
        raise RefusedError(
            f"{checkpoint.path} is at batch {done}, and the ledger has batch {committed} of lineage {lineage}: the "
            "checkpoint was rolled back. Going on would lose the batches between; put the newer checkpoint back"
        )
    if record is not None:
        _restore_offsets(checkpoint, record, spark_is_done=done == committed)
    planned = checkpoint.newest_offsets()
    if planned is not None and planned > committed and _offsets(checkpoint, planned) is None:
        log.warning("offsets/%d of %s is torn and is removed; its batch was not begun", planned, checkpoint.path)
        checkpoint.remove("offsets", planned)


def _restore_offsets(checkpoint: Checkpoint, record: CommitRecord, *, spark_is_done: bool) -> None:
    batch = record.batch
    found = _offsets(checkpoint, batch)
    if found is not None and found.same_sources(parse_offsets(record.offsets)):
        return
    if found is not None and spark_is_done:  # its state was built from them, and nothing would build it again
        raise RefusedError(
            f"{checkpoint.path}/offsets/{batch} ends at {found.kafka_ends()}, and commit {record.commit} in the ledger "
            f"at {parse_offsets(record.offsets).kafka_ends()}: the state is of other data than the output. "
            "Put the checkpoint back from a copy"
        )
    state = "is missing or torn" if found is None else "differs from the ledger"
    log.warning("offsets/%d of %s %s and is put back from the ledger", batch, checkpoint.path, state)
    checkpoint.write_offsets(batch, record.offsets)


def _offsets(checkpoint: Checkpoint, batch: int) -> BatchOffsets | None:
    try:
        return checkpoint.offsets(batch)
    except TornFileError:
        return None
