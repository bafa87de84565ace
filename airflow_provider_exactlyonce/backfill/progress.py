"""How far a backfill's checkpoint is: ``steps.json`` beside it says which step each of its batches was.

It is flushed to disk before Spark writes ``commits/N``, which Spark does not flush: after a host's crash it may be any
number of batches ahead. What counts is the newest batch that is whole, and the steps up to it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.checkpoint import integrity
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.control import json_store

log = logging.getLogger("exactlyonce")

_FILE: Final = "steps.json"
_SCHEMA: Final = 2
_BY_BATCH: Final = ("differences", "diverged")


@dataclass(frozen=True, kw_only=True)
class BackfillProgress:
    """The progress; ``steps.json``.

    :param base: the batch that the lineage began with, -1 for none
    :param ran: the index of each later batch's step, in order; steps that were left out are not in it
    :param differences: {batch: (commit, rows and digest delivered, rows and digest found)} of batches that differ
    :param diverged: {batch: commit} before the range that gave other rows, which was accepted
    """

    base: int
    ran: Sequence[int] = ()
    differences: Mapping[int, tuple[int, int, str, int, str]] = field(default_factory=dict)
    diverged: Mapping[int, int] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """The newest batch."""
        return self.base + len(self.ran)

    @property
    def upcoming(self) -> int:
        """Index of the step after the newest batch's."""
        return self.ran[-1] + 1 if self.ran else 0

    def cut(self, batch: int) -> Self:
        """Return the progress after an older batch."""
        return replace(
            self,
            ran=self.ran[: max(0, batch - self.base)],
            differences={number: difference for number, difference in self.differences.items() if number <= batch},
            diverged={number: commit for number, commit in self.diverged.items() if number <= batch},
        )


def write(checkpoint: Checkpoint, done: BackfillProgress) -> None:
    """Store the progress."""
    batches = {name: {str(batch): outcome for batch, outcome in getattr(done, name).items()} for name in _BY_BATCH}
    json_store.write(checkpoint.path.parent / _FILE, {"schema": _SCHEMA, **codec.dump(done), **batches})


def read(checkpoint: Checkpoint) -> BackfillProgress | None:
    """Read ``steps.json``; None when it is lost, or of schema 1, which has only the newest batch's step."""
    path = checkpoint.path.parent / _FILE
    body = json_store.read(path, (1, _SCHEMA))
    return None if body is None or body.get("schema") != _SCHEMA else codec.load(BackfillProgress, body, str(path))


def settle(checkpoint: Checkpoint) -> BackfillProgress | None:
    """Return the progress up to the newest batch that is whole, and remove the remains of later batches.

    :returns: None when the checkpoint can't be continued
    """
    done = read(checkpoint)
    commits = {batch: checkpoint.removal("commits", batch) for batch in checkpoint.batches("commits")}
    whole_batch, defects = integrity.newest_whole(checkpoint)
    newest = -1 if whole_batch is None else whole_batch
    if done is None or not done.base <= newest <= done.batch:
        return None
    last = max(done.batch, checkpoint.newest_commit() or 0)
    if last <= newest + 1 and not defects:
        return done.cut(newest)  # Spark has not noted the last one: it runs it again, as after any death
    if newest < 0 or not checkpoint.state_names_are_unique(newest):
        return None  # remains of later states would be mixed with the states of the repetition
    for defect in defects:
        log.warning("%s/%s %s", checkpoint.path, defect.path, defect.reason)
    log.warning("what was run after batch %d of %s was lost with the host: it is run again", newest, checkpoint.path)
    for batch, remove in commits.items():
        if batch > newest:
            remove()
    return done.cut(newest)
