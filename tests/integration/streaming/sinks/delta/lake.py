"""A Delta table, and what other writers do to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType
from typing_extensions import override

from airflow_provider_exactlyonce.streaming import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog
from airflow_provider_exactlyonce.tables.delta_log import DeltaTableLog
from tests.delta_reader import read_delta
from tests.integration.streaming.sinks.lake import PIPELINE, Lake

LONG, TEXT = pa.field("id", pa.int64()), pa.field("k", pa.string())


class DeltaLake(Lake):
    """A directory for a table.

    :ivar path: of the table
    """

    WRITER = (DeltaLog, "append")
    REFUSAL = CommitFailedError
    CONFLICTS = (CommitFailedError,)

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.path)

    @override
    def handle(self) -> DeltaLog:
        log = DeltaLog(str(self.path), {})
        assert log.open()
        return log

    @override
    def sink(self, **changed: Any) -> DeltaSink:
        return DeltaSink(**{"name": "lake", "path": str(self.path), **changed})

    @override
    def claim_as_in_0_1_0(self, run: int) -> None:
        told = {"pipeline": PIPELINE, "sink": "lake", "claim": run}
        self.handle().append([], {f"{PIPELINE}/lake/run": run}, told)

    @override
    def log(self) -> DeltaTableLog:
        return DeltaTableLog(str(self.path), {})

    @override
    def read(self) -> list[dict[str, Any]]:
        return read_delta(self.path)

    @override
    def read_by_library(self) -> list[dict[str, Any]]:
        return self.table.to_pyarrow_table().to_pylist()  # type: ignore[no-any-return]

    @override
    def files(self) -> list[Path]:
        return sorted((self.path / "exactlyonce").rglob("*.parquet"))

    @override
    def named_files(self) -> set[Path]:
        return {file for version in range(self.table.version() + 1) for file in self.files_at(version)}

    @override
    def current_files(self) -> set[Path]:
        return self.files_at(self.table.version())

    @override
    def notes(self) -> list[Path]:
        return sorted((self.path / "_exactlyonce").rglob("*.json"))

    @override
    def insert(self, rows: Sequence[Mapping[str, Any]]) -> None:
        is_there = DeltaTable.is_deltatable(str(self.path))
        columns = pa.schema(self.table.schema().to_arrow()) if is_there else pa.schema([LONG, TEXT])
        write_deltalake(self.path, pa.Table.from_pylist(list(rows), columns), mode="append")

    @override
    def versions(self) -> int:
        return int(self.table.version()) + 1

    @override
    def newest_version(self) -> str:
        return str(self.table.version())

    @override
    def widen(self) -> None:
        self.table.alter.add_columns([Field("more", PrimitiveType("string"), nullable=True)])

    @override
    def compact(self) -> None:
        self.table.optimize.compact()

    @override
    def delete(self, condition: str) -> None:
        self.table.delete(condition)

    @override
    def expire(self) -> None:
        handle = self.table
        handle.create_checkpoint()
        for file in (self.path / "_delta_log").glob("*.json"):
            if int(file.stem) < handle.version():
                file.unlink()

    @override
    def maintain(self) -> None:
        self.table.create_checkpoint()

    @override
    def keep(self) -> Callable[[], object]:
        backup = shutil.copytree(self.path, self.path.with_name("backup"))

        def set_back() -> None:
            shutil.rmtree(self.path)
            shutil.move(backup, self.path)

        return set_back

    def files_at(self, version: int) -> set[Path]:
        uris = DeltaTable(self.path, version=version).file_uris()
        return {Path(uri.removeprefix("file://")) for uri in uris}

    def create(self, *fields: Any, **more: Any) -> DeltaTable:
        return DeltaTable.create(str(self.path), pa.schema(fields), **more)

    def vacuum(self) -> None:
        """Remove whatever is not committed, and what older versions had."""
        self.table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    def merge(self, number: int) -> None:
        self.table.merge(
            pa.table({"id": [number], "k": ["m"]}), "t.id = s.id", source_alias="s", target_alias="t"
        ).when_not_matched_insert({"id": "s.id", "k": "s.k"}).execute()

    def change(self, kind: str, **changed: Any) -> None:
        """Change what the first version says, as a writer that can do more would have written it."""
        first = self.path / "_delta_log" / f"{0:020d}.json"
        lines = [json.loads(line) for line in first.read_text().splitlines()]
        first.write_text(
            "".join(json.dumps({kind: {**line[kind], **changed}} if kind in line else line) + "\n" for line in lines)
        )

    def log_entry(self, version: int) -> list[str]:
        return (self.path / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
