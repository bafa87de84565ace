"""Runs of a Delta sink without Spark, and what other writers do to its table."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import types as T

from airflow_provider_exactlyonce.streaming import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.delta.committer import DeltaCommitter
from airflow_provider_exactlyonce.streaming.sinks.delta.schema import arrow_columns
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkContext, SinkEntry
from tests.delta_reader import read_delta

PIPELINE = "shop"
COLUMNS = T.StructType().add("id", T.LongType()).add("k", T.StringType())


LONG, TEXT = pa.field("id", pa.int64()), pa.field("k", pa.string())


class Live:
    """A run of a sink; each :meth:`commit` gives it some tasks' rows."""

    def __init__(
        self, sink: DeltaSink, home: Path, run: int = 1, columns: T.StructType = COLUMNS, pipeline: str = PIPELINE
    ) -> None:
        self.sink, self.run, self.pipeline = sink, run, pipeline
        committer = sink.open(SinkContext(pipeline=pipeline, home=home))
        assert isinstance(committer, DeltaCommitter)
        self.committer, self.columns = committer, arrow_columns(columns)
        sink.check_columns(columns)
        committer.expect_columns(columns)
        claimed = committer.claim(run)
        self.number = claimed.commit if claimed else 0

    def stage(self, *tasks: Sequence[dict[str, Any]]) -> SinkEntry:
        attempt = SinkAttempt(name=os.urandom(8).hex(), pipeline=self.pipeline, commit=self.number + 1, run=self.run)
        self.committer.begin(attempt)
        written = []
        for task, rows in enumerate(tasks):
            with closing(self.committer.open_writer()(attempt, task)) as writer:
                writer.write(pa.RecordBatch.from_pylist(list(rows), self.columns))
                written.append(writer.finish())
        self.committer.pre_commit(written)
        count = sum(len(rows) for rows in tasks)
        return SinkEntry(
            commit=self.number + 1,
            run=self.run,
            lineage="l",
            batch=self.number,
            source={"events": {0: (self.number, self.number + 1)}},
            rows=count,
            digest=count,
        )

    def commit(self, *tasks: Sequence[dict[str, Any]]) -> SinkEntry:
        entry = self.stage(*tasks)
        self.committer.commit(entry)
        self.number += 1
        self.committer.settled(self.number)
        return entry


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": number, "k": f"k{number % 3}"} for number in range(first, first + count)]


def ids(path: Path) -> list[int]:
    return sorted(row["id"] for row in read_delta(path))


def made(table: Path, columns: pa.Schema, **more: Any) -> DeltaTable:
    return DeltaTable.create(str(table), columns, **more)


def change(table: Path, kind: str, **changed: Any) -> None:
    """Change what the first version says, as a writer that can do more would have written it."""
    first = table / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    first.write_text(
        "".join(json.dumps({kind: {**line[kind], **changed}} if kind in line else line) + "\n" for line in lines)
    )


def log_entry(table: Path, version: int) -> list[str]:
    return (table / "_delta_log" / f"{version:020d}.json").read_text().splitlines()


def foreign(table: Path, first: int, count: int) -> None:
    write_deltalake(str(table), pa.Table.from_pylist(rows(first, count), pa.schema([LONG, TEXT])), mode="append")


def merge(table: Path, number: int) -> None:
    DeltaTable(table).merge(
        pa.table({"id": [number], "k": ["m"]}), "t.id = s.id", source_alias="s", target_alias="t"
    ).when_not_matched_insert({"id": "s.id", "k": "s.k"}).execute()


def cleaned(table: Path) -> None:
    """Leave nothing of the log before the newest version, as clean-up after its retention does."""
    handle = DeltaTable(table)
    handle.create_checkpoint()
    for file in (table / "_delta_log").glob("*.json"):
        if int(file.stem) < handle.version():
            file.unlink()
