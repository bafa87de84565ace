"""Pipelines that write to Kafka and to a table of a lake in one query, and what both then have."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
from tests.integration.streaming.harness import JOBS, Driver, World, check_ledger, read_committed
from tests.integration.streaming.sinks.delta.lake import DeltaLake
from tests.integration.streaming.sinks.iceberg.lake import IcebergLake
from tests.integration.streaming.sinks.lake import Lake

BATCH: Final = 100
JOB: Final = JOBS / "lakehouse.py"
DELTA, UPSERTS, ICEBERG, ICEBERG_UPSERTS = KINDS = ("delta", "upserts", "iceberg", "iceberg-upserts")


class LakePipeline:
    """The world's pipeline, and its table.

    :param kind: of the table
    :param folder: of the table, or of its catalog and warehouse
    :ivar compact_every: after how many commits its driver writes small files together, 0 for never
    """

    def __init__(self, world: World, kind: str, folder: Path) -> None:
        self.world, self.kind, self.folder, self.compact_every = world, kind, folder, 0
        folder.mkdir()
        self.lake: Lake = IcebergLake(folder) if kind in (ICEBERG, ICEBERG_UPSERTS) else DeltaLake(folder)
        world.job = JOB.name

    def environment(self) -> Mapping[str, str]:
        return {
            **self.world.names,
            "TEST_LAKE": self.kind,
            "TEST_TABLE": str(self.folder),
            "TEST_BATCH": str(BATCH),
            "TEST_COMPACT_EVERY": str(self.compact_every),
        }

    def start(self, step: str | None = None, **how: Any) -> Driver:
        return self.world.start(environment=self.environment(), failpoints=step, **how)

    def finish(self) -> None:
        last = self.start()
        assert last.wait() == 0, last.output()[-3000:]

    def check(self) -> None:
        """The table has what is expected, as it was, and the topic each record once; ledgers agree, no file is left.

        Each commit names where its rows are.
        """
        assert self.lake.rows() == expected(self.kind, range(self.world.sent))
        values = [json.loads(record.value or b"") for record in read_committed(self.world.config, self.world.sink)]
        assert sorted(value["id"] for value in values) == list(range(self.world.sent))
        records = check_ledger(self.world)
        told = status.read(Home(self.world.home).status)
        assert told is not None
        [table] = told.tables.values()
        assert (table.commit, table.version is None) == (records[-1].commit, False)
        assert table.storage == ("iceberg" if isinstance(self.lake, IcebergLake) else "delta")
        assert {name for name, _ in table.columns} == self.lake.rows()[0].keys()
        for record in records:
            [share] = record.others.values()
            assert share.dataset is not None
            assert all(file.is_relative_to(share.dataset[1]) for file in self.lake.files())
        assert set(self.lake.files()) == self.lake.named_files()


def expected(kind: str, numbers: Iterable[int]) -> list[dict[str, Any]]:
    """Return the rows that records of the source make, by their ids."""
    numbers = sorted(numbers)
    if kind not in (UPSERTS, ICEBERG_UPSERTS):
        return [_row(number) for number in numbers]
    latest = {f"k{number % 37}": number for number in numbers}
    rows = [{"k": key, "id": number, "v": Decimal(number) / 100} for key, number in latest.items() if number % 5]
    return sorted(rows, key=lambda row: row["id"])


def _row(number: int) -> dict[str, Any]:
    key, at = f"k{number % 37}", datetime.datetime(2024, 1, 1) + datetime.timedelta(microseconds=number)
    return {
        "id": number,
        "k": key,
        "v": Decimal(number) / 100,
        "shop": f"a/b={number % 3}",
        "at": at.replace(tzinfo=datetime.UTC),
        "local": at,
        "parts": {"n": number, "l": [key, None], "s": [{"k": key, "id": number}]},
        "labels": [(key, number), ("none", None)],
    }
