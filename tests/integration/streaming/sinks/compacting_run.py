"""A run of a sink that writes small files together, in a process of its own, which a test kills or holds at a step.

Arguments: the kind of table, its folder, the run's number, how many commits. It ends as a driver would.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from pyspark.sql import types as T

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.exceptions import BatchFailedError, ExactlyOnceError
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry
from tests.integration.streaming.sinks.delta.lake import DeltaLake
from tests.integration.streaming.sinks.iceberg.lake import IcebergLake
from tests.integration.streaming.sinks.lake import COLUMNS, Lake, Live, rows

EVERY: Final = 3  # commits
ROWS: Final = 6  # of a batch
DELTA, UPSERTS, ICEBERG, ICEBERG_UPSERTS = ("delta", "upserts", "iceberg", "iceberg-upserts")


def lake_of(kind: str, folder: Path) -> Lake:
    folder.mkdir(exist_ok=True)
    return IcebergLake(folder) if kind in (ICEBERG, ICEBERG_UPSERTS) else DeltaLake(folder / "table")


def _is_upsert(kind: str) -> bool:
    return kind in (UPSERTS, ICEBERG_UPSERTS)


class CompactingRun:
    """A run, and what it has committed.

    :ivar entries: of its commits
    """

    def __init__(self, kind: str, folder: Path, run: int) -> None:
        self.kind, self.lake = kind, lake_of(kind, folder)
        declared: dict[str, Any] = {"compact_every": EVERY, "partition_by": "k"}
        if _is_upsert(kind):
            declared |= {"mode": "upsert", "key": "id", "deleted": "gone"}
        columns = T.StructType([*COLUMNS, T.StructField("gone", T.BooleanType())]) if _is_upsert(kind) else COLUMNS
        self.live = Live(self.lake.sink(**declared), folder, run=run, columns=columns)
        self.entries: list[SinkEntry] = []

    def commit(self) -> None:
        """Commit the next batch; as in a driver what comes after it is not its error."""
        number = self.live.number
        batch = batch_of(self.kind, number)
        entry = self.live.stage(batch)
        failpoints.note(batch=number)
        try:
            self.live.decide(entry)
        except BatchFailedError as error:
            print(error, file=sys.stderr)
        self.entries.append(entry)


def batch_of(kind: str, number: int) -> list[dict[str, Any]]:
    """Return a batch's rows. With upserts each replaces some of the batch before, and deletes one of them."""
    if not _is_upsert(kind):
        return rows(number * ROWS, ROWS)
    first = max(0, number * ROWS - ROWS // 2)
    return [{**row, "gone": row["id"] == first and number > 0} for row in rows(first, (number + 1) * ROWS - first)]


def expected_rows(kind: str, batches: int) -> list[dict[str, Any]]:
    """Return the rows of a table with so many batches, as a dictionary makes them."""
    table: dict[int, dict[str, Any]] = {}
    for number in range(batches):
        for row in batch_of(kind, number):
            if row.pop("gone", False):
                del table[row["id"]]
            else:
                table[row["id"]] = row
    return [table[key] for key in sorted(table)]


def main() -> int:
    kind, folder, run, commits = sys.argv[1:]
    failpoints.note(run=run)
    try:
        compacting = CompactingRun(kind, Path(folder), int(run))
        for _ in range(int(commits)):
            compacting.commit()
    except ExactlyOnceError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
