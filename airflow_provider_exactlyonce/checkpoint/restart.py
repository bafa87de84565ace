"""What a restart goes on from: the retained checkpoint, a batch before its newest, or a savepoint.

A crash of the machine can tear the files of the newest batch, and people delete files. Spark would fail on them without
a way out, or begin with empty state where it finds none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from airflow_provider_exactlyonce.checkpoint.integrity import newest_whole
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint, removal_of, whole
from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.checkpoint.state import Defect
from airflow_provider_exactlyonce.control.home import Lineage
from airflow_provider_exactlyonce.exceptions import RefusedError, required


class RestartSource(Enum):
    """What a restart goes on from."""

    CHECKPOINT = "checkpoint"  # as it is
    NEWEST_AGAIN = "newest again"  # the batch before the newest; Spark runs the newest again, in the same checkpoint
    OLDER_BATCH = "older batch"  # a batch after which Spark can't go on in the same checkpoint
    SAVEPOINT = "savepoint"
    NOTHING = "nothing"  # state was there, and none is left


@dataclass(frozen=True, kw_only=True)
class RestartDecision:
    """What a restart goes on from, and why not from something newer.

    :param batch: the newest batch of the checkpoint that is whole, None when there is none
    :param savepoint: the newest savepoint whose bytes are whole; looked for only where the checkpoint does not do
    :param defects: files of newer batches that are damaged
    :param bad_savepoints: {id: files of newer savepoints that are damaged}
    """

    source: RestartSource
    batch: int | None = None
    savepoint: Savepoint | None = None
    defects: Sequence[Defect] = ()
    bad_savepoints: Mapping[str, Sequence[Defect]] = field(default_factory=dict)

    @property
    def damage(self) -> str:
        """Say what is damaged: the first files, and how many there are."""
        damaged = [str(defect) for defect in self.defects]
        damaged += [f"savepoint {name}: {defects[0]}" for name, defects in self.bad_savepoints.items()]
        return "; ".join(damaged[:5]) + (f"; and {len(damaged) - 5} more" if len(damaged) > 5 else "")


def decide(
    checkpoint: Checkpoint, savepoints: Savepoints, lineage: Lineage, commit: int, *, deleted: bool = False
) -> RestartDecision:
    """Choose what a restart goes on from, once the query id is repaired. Changes nothing.

    :param lineage: the lineage whose checkpoint it should be
    :param commit: the ledger's newest commit, 0 for none
    :param deleted: it was deleted, or is being deleted: what is left of it does not count
    :raises RefusedError: when the checkpoint is of another query
    """
    if deleted:
        defect = Defect(path="checkpoint", reason="was deleted when the pipeline was cancelled")
        return _further_back(savepoints, lineage, None, [defect])
    if (query := whole(checkpoint.query_id)) not in (None, lineage.id):
        raise RefusedError(
            f"{checkpoint.path} is the checkpoint of query {query}, not of lineage {lineage.id}: it was put there from "
            "elsewhere. Put the lineage's own back, or restore a savepoint: exactlyonce restore"
        )
    newest = checkpoint.newest_commit()
    if newest is None:
        if lineage.batch_of(commit) <= 0:  # Spark has recorded no batch: the first one is run from its beginning
            return RestartDecision(source=RestartSource.CHECKPOINT)
        return _further_back(savepoints, lineage, None, [Defect(path="commits", reason="is missing or empty")])
    batch, defects = newest_whole(checkpoint, known_query=True)
    if batch is not None and batch >= newest:  # a newer one: another driver has gone on meanwhile
        return RestartDecision(source=RestartSource.CHECKPOINT, batch=batch)
    if batch is not None and batch == newest - 1 and _may_run_again(checkpoint, lineage, batch, commit):
        return RestartDecision(source=RestartSource.NEWEST_AGAIN, batch=batch, defects=defects)
    return _further_back(savepoints, lineage, batch, defects)


def _may_run_again(checkpoint: Checkpoint, lineage: Lineage, batch: int, commit: int) -> bool:
    """Whether Spark may go on after a batch in the same checkpoint.

    Where the ledger is further ahead than by one batch, the state of the next but one may be there. Spark would take it
    for its own if its files have the same names, so a start refuses the replay.
    """
    return lineage.batch_of(commit) <= batch + 1 or checkpoint.state_names_are_unique(batch)


def _further_back(
    savepoints: Savepoints, lineage: Lineage, batch: int | None, defects: Sequence[Defect]
) -> RestartDecision:
    savepoint, bad_savepoints = savepoints.newest_good()
    if batch is not None and (savepoint is None or savepoint.commit < lineage.commit_of(batch)):
        return RestartDecision(
            source=RestartSource.OLDER_BATCH, batch=batch, defects=defects, bad_savepoints=bad_savepoints
        )
    source = RestartSource.NOTHING if savepoint is None else RestartSource.SAVEPOINT
    return RestartDecision(
        source=source, batch=batch, savepoint=savepoint, defects=defects, bad_savepoints=bad_savepoints
    )


def repair_query_id(checkpoint: Checkpoint, lineage: str) -> bool:
    """Write a query id that is missing or torn again, where the checkpoint has batches; returns whether it was."""
    if whole(checkpoint.query_id) is not None or checkpoint.newest_offsets() is None:
        return False
    checkpoint.write_query_id(lineage)
    return True


def removals_for(checkpoint: Checkpoint, restart: RestartDecision) -> Sequence[Callable[[], None]]:
    """Return what removes the newest batch's commit and its damaged files, so that Spark runs it again.

    It is as after a crash in that batch. Each removes a file only as it is now, see :func:`removal_of`.
    """
    newest = f"commits/{required(restart.batch, 'the batch before the newest is whole') + 1}"
    return [removal_of(checkpoint.path / path) for path in dict.fromkeys((newest, *(d.path for d in restart.defects)))]
