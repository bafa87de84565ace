"""What a backfill gave: in its ledger, where the last record of each has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_provider_exactlyonce.backfill.homes import Begun
from airflow_provider_exactlyonce.backfill.request import BackfillRequest, BackfillState, digits
from airflow_provider_exactlyonce.backfill.resolve import Positions, Resolved
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord, backfill_pipeline


def name_of(pipeline: str, version: str, request: BackfillRequest, resolved: Resolved) -> str:
    """Return the backfill's name: of the range as it was resolved, or of the times that were asked for.

    Where a range of time begins in the source depends on when it is asked, if records are late; it is one range all the
    same.
    """
    return digits(
        {
            "pipeline": pipeline,
            "version": version,
            "range": list(request.time) if request.time else source_of(resolved),
            "state": request.state.value,
            "warm_up": str(request.warm_up) if request.state is BackfillState.EMPTY else None,
            "output": str(request.output),
        }
    )


def source_of(resolved: Resolved) -> dict[str, dict[str, list[int]]]:
    """Return a range's source offsets as JSON values."""
    found: dict[str, dict[str, list[int]]] = {}
    for (topic, partition), end in sorted(resolved.ends.items()):
        found.setdefault(topic, {})[str(partition)] = [resolved.starts[topic, partition], end]
    return found


def records_of(config: Mapping[str, Any], pipeline: str, name: str) -> list[CommitRecord]:
    """Return what the ledger of a pipeline's backfills has of one, oldest first; empty when it has no ledger."""
    with LedgerReader(config, backfill_pipeline(pipeline)) as reader:
        if reader.tail() is None:
            return []
        return [record for record in reader.commits() if record.backfill == name]


def describe(
    pipeline: str,
    request: BackfillRequest,
    begun: Begun,
    written: Sequence[CommitRecord],
    *,
    suppressed: int,
    compared: int,
    differences: Sequence[tuple[int, int, str, int, str]],
    diverged: Sequence[int],
) -> dict[str, Any]:
    """Return the result as JSON values; what is compared is told as an audit tells it.

    :param written: its commits
    :param suppressed: batches before the range, which ran without output
    :param compared: commits that were compared with what was delivered
    :param differences: (commit, rows and digest that were delivered, that were found)
    :param diverged: commits before the range that gave other rows, which was accepted
    """
    resolved = begun.resolved
    found = [
        {
            "invariant": "I7",
            "commit": commit,
            "message": f"{rows} rows with digest {digest} were delivered; run again it gives {other} with "
            f"{other_digest}",
        }
        for commit, rows, digest, other, other_digest in differences
    ]
    return {
        "pipeline": pipeline,
        "backfill": begun.name,
        "version": begun.version,
        "output": str(request.output),
        "state": request.state.value,
        "savepoint": resolved.savepoint,
        "commits": list(resolved.commits) if resolved.commits else None,
        "source": source_of(resolved),
        "records": sum(end - resolved.starts[place] for place, end in resolved.ends.items()),
        "rows": sum(record.rows for record in written),
        "batches": len(written),
        "suppressed_batches": suppressed,
        "compared": compared,
        "clean": not found,
        "violations": {"I7": len(found)} if found else {},
        "found": found,
        "diverged": list(diverged),
        "finished": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def ends_as_ranges(ends: Positions) -> dict[str, dict[int, tuple[int, int]]]:
    """Return source ranges without a record, at the end of what was read."""
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for (topic, partition), end in sorted(ends.items()):
        found.setdefault(topic, {})[partition] = (end, end)
    return found
