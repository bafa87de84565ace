"""Whether the savepoints are whole, and can be gone back to."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
from airflow_provider_exactlyonce.doctor import expiry
from airflow_provider_exactlyonce.doctor.facts import Facts
from airflow_provider_exactlyonce.doctor.findings import Finding, Remedy


def are_whole(facts: Facts) -> Iterator[Finding]:
    """Check the savepoints' bytes, and look for remains of interrupted saves, verifications and deletes."""
    savepoints = facts.savepoints
    if savepoints is None:
        return
    for name, reason in savepoints.damaged.items():
        yield Finding(
            "savepoint-damaged",
            f"savepoint {name} is damaged: {reason}",
            f"it can't be repaired; take another one: exactlyonce savepoint {facts.pipeline}",
            Remedy.SET_ASIDE,
            name,
        )
    for name in savepoints.leftovers:
        yield Finding(
            "unfinished-savepoint",
            f"{name} is left of a savepoint that was interrupted while it was taken, verified or deleted",
            "nothing: the next driver removes it, and so does --fix",
            Remedy.CLEAN_UP,
        )


def can_be_restored(facts: Facts) -> Iterator[Finding]:
    """Check that each savepoint is of this pipeline's past, and that the commits after it can be replayed."""
    savepoints, tail = facts.savepoints, facts.tail
    if savepoints is None or tail is None:
        return
    own_savepoints = [savepoint for savepoint in savepoints.whole if savepoint.pipeline == facts.pipeline]
    for savepoint in savepoints.whole:
        if savepoint.pipeline != facts.pipeline:
            yield Finding(
                "savepoint-of-another-pipeline",
                f"savepoint {savepoint.id} is of pipeline {savepoint.pipeline}",
                "move it to that pipeline's home",
            )
        elif savepoint.commit > facts.newest:
            yield Finding(
                "savepoint-ahead-of-ledger",
                f"savepoint {savepoint.id} is at commit {savepoint.commit}, and the ledger ends at {facts.newest}: "
                "this is another cluster, or the ledger was lost",
                "check bootstrap.servers; the savepoint does not have the later commits",
            )
        elif savepoint.commit < facts.newest:
            yield from _replayable(facts, savepoint, is_newest=savepoint is own_savepoints[-1])


def _replayable(facts: Facts, savepoint: Savepoint, *, is_newest: bool) -> Iterator[Finding]:
    history = facts.history
    if history is None:
        return
    command, span = f"exactlyonce savepoint {facts.pipeline}", history.spans[savepoint.commit]
    if savepoint.commit in history.incomplete:
        reason = f"commit {history.incomplete[savepoint.commit]} after it is not in the ledger any more"
        name, keep = "savepoint-history-gone", "more history with ledger_retention"
    elif (missing := facts.missing_input(span)) is not None:
        reason = f"{missing}, is gone"
        name, keep = "savepoint-input-gone", "the source's records longer than savepoints"
    else:
        soon = expiry.first(facts, span.positions)
        if soon is not None and is_newest:
            yield Finding(
                "savepoint-input-expiring",
                f"savepoint {savepoint.id} needs {soon.topic}-{soon.partition} from offset {soon.offset} on, and "
                f"{soon.when}",
                f"{command} before, or let {soon.topic} keep more",
                Remedy.SAVE,
            )
        return
    yield Finding(
        name if is_newest else "old-savepoint-useless",
        f"savepoint {savepoint.id} can't be restored: {reason}",
        f"{command}, and keep {keep}" if is_newest else f"exactlyonce savepoint delete {facts.pipeline} {savepoint.id}",
        Remedy.SAVE if is_newest else None,
    )
