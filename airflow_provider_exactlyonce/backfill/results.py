"""A backfill's written batches and its result: in its ledger, even if its home is lost.

The claim of each run has the resolved request, so that a request for the same in other words, or from another home,
runs the same batches; a backfill's last record has its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_provider_exactlyonce.backfill.request import BackfillRequest, BackfillState, digits, ranges_to_json
from airflow_provider_exactlyonce.backfill.resolve import Resolved, Span
from airflow_provider_exactlyonce.backfill.workspace import StartedBackfill
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka.topic_partition import by_topic
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord, backfill_pipeline


@dataclass(frozen=True, kw_only=True)
class BackfillWritten:
    """One backfill's records in the ledger of backfills.

    :param batches: the record of each batch that it wrote, oldest first
    :param result: its result, None when it has not ended
    :param begun: the resolved request of the first written batch; None when there is none, or by an older release
    """

    batches: Sequence[CommitRecord] = ()
    result: Mapping[str, Any] | None = None
    begun: Resolved | None = None

    def check_asked(self, name: str, commits: tuple[int, int] | None) -> None:
        """Check that it is of the commits that are asked for: those without data make ranges of one name.

        :param commits: first and last, None for a range that is not of whole commits
        :raises RefusedError: when others were asked for then
        """
        then = self.result["commits"] if self.result is not None else self.begun and self.begun.commits
        if commits is None or not then or tuple(then) == commits:
            return
        raise RefusedError(
            f"backfill {name} was asked for as commits {then[0]}..{then[1]}, and commits {commits[0]}..{commits[1]} "
            "have the same source records: those that only one of them has are without data. Ask for these alone, or "
            f"for {then[0]}..{then[1]} again"
        )


def name_of(pipeline: str, version: str, request: BackfillRequest, span: Span | None) -> str:
    """Return the backfill's name: of the range as it was resolved, or of the times that were asked for.

    Where a range of time begins in the source depends on when it is asked, if records are late; it is one range all the
    same.

    :param span: the range; a range of time needs none
    """
    return digits(
        {
            "pipeline": pipeline,
            "version": version,
            "range": list(request.time) if request.time else span and source_of(span),
            "state": request.state.value,
            "warm_up": str(request.warm_up) if request.state is BackfillState.EMPTY else None,
            "output": str(request.output),
        }
    )


def source_of(span: Span) -> dict[str, dict[str, list[int]]]:
    """Return a range's source offsets as JSON values."""
    return ranges_to_json(by_topic({partition: (span.starts[partition], end) for partition, end in span.ends.items()}))


def written_of(config: Mapping[str, Any], pipeline: str, name: str) -> BackfillWritten:
    """Return one backfill's records in the ledger of a pipeline's backfills; empty when there is no ledger.

    :raises RefusedError: when records of the ledger are lost, so that the written batches can't be determined
    """
    with LedgerReader(config, backfill_pipeline(pipeline)) as reader:
        if reader.tail() is None:
            return BackfillWritten()
        own_records: list[CommitRecord] = []
        claims: dict[int, ClaimRecord] = {}
        expected = 1
        for _, record in reader.records():
            if isinstance(record, ClaimRecord):
                claims[record.run] = record
                continue
            if record.commit != expected:
                raise RefusedError(
                    f"{reader.topic} lacks record {expected}, the next one is {record.commit}: what backfills of "
                    f"{pipeline} have written can't be told, and {name} may have been one of them. If nothing of it "
                    f"was, delete {reader.topic} and the directory backfills of the pipeline's home"
                )
            expected += 1
            if record.backfill == name:
                own_records.append(record)
    claim = claims.get(own_records[0].run) if own_records else None
    return BackfillWritten(
        batches=[record for record in own_records if record.result is None],
        result=next((record.result for record in own_records if record.result is not None), None),
        begun=Resolved.from_json(claim.plan) if claim is not None and claim.plan is not None else None,
    )


def describe(
    pipeline: str,
    request: BackfillRequest,
    begun: StartedBackfill,
    written: Sequence[CommitRecord],
    *,
    suppressed: int,
    compared: int,
    differences: Sequence[tuple[int, int, str, int, str]],
    diverged: Sequence[int],
) -> dict[str, Any]:
    """Return the result as JSON values; differences have the form of an audit's violations.

    :param written: its commits
    :param suppressed: batches before the range, which ran without output
    :param compared: commits that were compared with their delivered rows
    :param differences: (commit, rows and digest delivered, rows and digest found)
    :param diverged: commits before the range that gave other rows, which was accepted
    """
    resolved = begun.resolved
    violations = [
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
        "records": sum(end - resolved.starts[partition] for partition, end in resolved.ends.items()),
        "rows": sum(record.rows for record in written),
        "batches": len(written),
        "suppressed_batches": suppressed,
        "compared": compared,
        "clean": not violations,
        "violations": {"I7": len(violations)} if violations else {},
        "found": violations,
        "diverged": list(diverged),
        "finished": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
