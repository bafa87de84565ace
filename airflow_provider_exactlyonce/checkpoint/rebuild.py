"""Makes a fresh lineage from the whole files of the current one, without damaged files and leftovers.

The original stays as it is, marked as abandoned, unless nobody has ever started it. The next start replays the
ledger's later commits without writing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_exactlyonce.checkpoint import integrity, lineages
from airflow_provider_exactlyonce.checkpoint import job as jobs
from airflow_provider_exactlyonce.checkpoint.layout import (
    BatchOffsets,
    Checkpoint,
    KafkaOffsets,
    begun_sources,
    parse_offsets,
)
from airflow_provider_exactlyonce.checkpoint.request import record_of
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.commit_range import RecordedCommits, check_input
from airflow_provider_exactlyonce.ledger.reader import LedgerReader, LedgerTail
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.tables.positions import is_table


def rebuild(home: Home, pipeline: str, config: Mapping[str, Any], *, cut: bool = False) -> Lineage:
    """Make the lineage and point ``current`` to it; may be repeated after it was killed.

    :param config: client configuration in librdkafka's names
    :param cut: the batch that is planned and not committed goes on in it with half of its records
    :raises RefusedError: when the checkpoint does not fit the ledger, or a replay would lack something
    :raises AlreadyRunningError: when a driver lives
    """
    held = leases.holding_stopped(home.lease, pipeline, "rebuild")
    with held as hold, LedgerReader(config, pipeline) as reader:
        tail, old = reader.tail(), home.current()
        if tail is None or tail.claim is None or old is None:
            raise RefusedError(f"{home} has no lineage that a run has claimed: there is nothing to make one of")
        checkpoint = Checkpoint(home.checkpoint(old.id))
        newest, _ = integrity.newest_whole(checkpoint, known_query=True)
        batch = -1 if newest is None else newest
        _check(home, checkpoint, old, batch, reader, tail, config)
        texts = _cut(checkpoint, batch, committed=old.batch_of(tail.place.commit)) if cut else {}
        lineage = replace(
            old,
            id=str(uuid.uuid4()),
            last_commit=tail.place.commit,
            base_batch=batch,
            base_commit=old.commit_of(batch),
            parent=tail.claim.lineage,
            parent_run=tail.claim.run,
            parent_commit=tail.place.commit,
            reemits=old.reemits if batch == old.base_batch else None,
        )
        lineages.remove_unfinished(home.lineages, hold)
        lineages.make(home.lineages / lineage.id, checkpoint.path, _files(checkpoint, batch), lineage, texts)
        jobs.copy(home, old.id, lineage.id)
        lineages.switch(home, lineage, hold)
        return lineage


def _files(checkpoint: Checkpoint, batch: int) -> Iterable[str]:
    if batch >= 0:
        return integrity.files_of(checkpoint, batch).files
    return begun_sources(checkpoint.path)


def _check(
    home: Home,
    checkpoint: Checkpoint,
    lineage: Lineage,
    batch: int,
    reader: LedgerReader,
    tail: LedgerTail,
    config: Mapping[str, Any],
) -> None:
    """Check that the ledger continues where the batch ends, and that the later commits can be replayed."""
    commit, state, newest = lineage.commit_of(batch), lineage.state_of(batch), tail.place.commit
    if commit > newest:
        raise RefusedError(
            f"batch {batch} of {checkpoint.path} would be commit {commit}, and the ledger ends at {newest}: it was set "
            "back, or the checkpoint is of another pipeline"
        )
    if batch < 0 and commit < newest:
        raise RefusedError(f"no batch of {checkpoint.path} is whole: restore a savepoint, exactlyonce restore")
    if batch >= 0:
        record, offsets = record_of(reader, state), checkpoint.offsets(batch)
        if record is None or offsets is None or not offsets.same_sources(parse_offsets(record.offsets)):
            raise RefusedError(
                f"batch {batch} of {checkpoint.path} is not what the ledger has as commit {state}, or the ledger has "
                "forgotten it: restore a savepoint, exactlyonce restore"
            )
    if commit < newest:
        span = RecordedCommits(reader, commit + 1, newest).check()
        check_input(SourceClusters.claimed(config, tail.claim), span)
        if not lineage.accept_nondeterminism:
            jobs.check_deterministic(home, span)


def _cut(checkpoint: Checkpoint, batch: int, *, committed: int) -> dict[str, str]:
    """Return the plan of the next batch with half of its records."""
    planned = checkpoint.offsets(batch + 1)
    if batch != committed or planned is None:
        raise RefusedError(f"{checkpoint.path} has no batch that is planned and not committed: there is nothing to cut")
    return {f"offsets/{batch + 1}": halved(planned, checkpoint.kafka_starts(batch + 1))}


def halved(planned: BatchOffsets, starts: KafkaOffsets) -> str:
    """Return a batch's offset log entry with half of its records.

    Partitions that the batch is the first to read are left out: Spark finds them again with the next one.

    :param starts: where the batch begins
    :raises RefusedError: when it can't be made smaller
    """
    version, header, _ = planned.text.split("\n", 2)
    lines: list[dict[str, dict[str, int]] | None] = []
    halved_total = total = 0
    first_nonempty: tuple[dict[str, int], str] | None = None
    for line, position in zip(planned.sources, planned.positions, strict=True):
        if position is not None and not all(isinstance(offsets, dict) for offsets in position.values()):
            raise RefusedError(f"a batch of a source that isn't Kafka can't be cut: it ends at {line}")
        if any(map(is_table, position or {})):
            raise RefusedError(
                "a batch of a table can't be cut: give it more time (transaction_timeout_seconds of the KafkaSink, or "
                "CheckpointConfig(timeout=…)) or the query more cores; later ones are smaller with "
                "max_files_per_trigger"
            )
        ends: dict[str, dict[str, int]] = {}
        for topic, partitions in (position or {}).items():
            ends[topic] = {}
            for partition, end in partitions.items():
                start = starts.get(topic, {}).get(int(partition))
                if start is None:
                    continue
                ends[topic][partition] = start + (end - start) // 2
                total, halved_total = total + end - start, halved_total + (end - start) // 2
                if end > start and first_nonempty is None:
                    first_nonempty = ends[topic], partition
        halved_ends = {topic: topic_ends for topic, topic_ends in ends.items() if topic_ends or len(ends) == 1}
        lines.append(halved_ends if position is not None else None)
    if total < 2 or first_nonempty is None:
        raise RefusedError(
            f"the batch has {total} records in the partitions that it goes on in, and can't be cut: give it more time "
            "(transaction_timeout_seconds of the KafkaSink, or CheckpointConfig(timeout=…)) or the query more cores"
        )
    if halved_total == 0:
        first_nonempty[0][first_nonempty[1]] += 1
    texts = ["-" if ends is None else json.dumps(ends, separators=(",", ":")) for ends in lines]
    return "\n".join([version, header, *texts])


def set_aside(home: Home, path: Path) -> Path:
    """Move a directory of the home out of everybody's way; returns where it is now."""
    aside, store = _aside(home, path), store_of(path)
    for file in store.files(path):
        store.copy(path / file, aside / file, final=True)
    store.remove(path)
    return aside


def keep_copy(home: Home, path: Path) -> Path | None:
    """Keep a copy of a file that is about to be replaced; returns where it is, None when there is no such file."""
    aside, store = _aside(home, path), store_of(path)
    if store.facts(path) is None:
        return None
    store.copy(path, aside)
    return aside


def _aside(home: Home, path: Path) -> Path:
    return home.path / "set-aside" / f"{path.name}-{uuid.uuid4().hex[:8]}"
