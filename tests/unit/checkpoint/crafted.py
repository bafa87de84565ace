"""Checkpoints in the layout of Spark 4.2, made without Spark: RocksDB, checkpoint format 2, one aggregation."""

from __future__ import annotations

import io
import json
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

from crc32c import crc32c

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.ledger.reader import LedgerReader, LedgerTail
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord, LedgerPointer, Record, SinkRange
from tests.ledger_records import claim_record, commit_record

LINEAGE = "4a5e4b1e-0000-4000-8000-000000000001"
CONF = {"spark.sql.streaming.stateStore.providerClass": "o.a.s.s.e.s.state.RocksDBStateStoreProvider"}
PARTITIONS = 2


def offsets_text(batch: int) -> str:
    header = {"batchWatermarkMs": 1000 * batch, "batchTimestampMs": 1_790_000_000_000 + batch, "conf": CONF}
    return f"v1\n{json.dumps(header)}\n" + json.dumps({"in": {"0": 10 * (batch + 1), "1": 5 * (batch + 1)}})


def _with_crc(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    note = {"algorithm": "CRC32C", "value": crc32c(data), "mainFileSize": len(data)}
    file.with_name(f"{file.name}.crc").write_text(json.dumps(note))


def checkpoint(path: Path, batches: int = 3, table_bytes: int = 1000) -> Checkpoint:
    """Make a checkpoint whose last batch is ``batches - 1``; every batch adds a table to each state partition."""
    for name in ("offsets", "commits", "sources/0", "state/0/_metadata"):
        (path / name).mkdir(parents=True)
    (path / "metadata").write_text(json.dumps({"id": LINEAGE}))
    (path / "sources/0/0").write_bytes(b'\x00v1\n{"in":{"0":0,"1":0}}')
    stores = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": PARTITIONS}]
    operator = {"operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"}, "stateStoreInfo": stores}
    (path / "state/0/_metadata/metadata").write_text("v1\n" + json.dumps(operator))
    for batch in range(batches):
        run(path, batch, table_bytes=table_bytes)
    return Checkpoint(path)


def run(path: Path, batch: int, *, table_bytes: int = 1000) -> None:
    """Run one more batch, as Spark does: what is there of it is not used."""
    ids = []
    for partition in range(PARTITIONS):
        store = path / f"state/0/{partition}"
        (store / "SSTs").mkdir(parents=True, exist_ok=True)
        name = f"{batch:06d}-{uuid.uuid4()}.sst"
        older = sorted(table.name for table in (store / "SSTs").iterdir() if int(table.name[:6]) < batch)
        (store / "SSTs" / name).write_bytes(bytes([batch + 1]) * table_bytes)
        ids.append([str(uuid.uuid4())])
        _write_zip(store / f"{batch + 1}_{ids[-1][0]}.zip", [*older, name], table_bytes)
    (path / f"offsets/{batch}").write_text(offsets_text(batch))
    commit = {"nextBatchWatermarkMs": 1000 * (batch + 1), "stateUniqueIds": {"0": ids}}
    (path / f"commits/{batch}").write_text("v2\n" + json.dumps(commit))


def _write_zip(file: Path, tables: list[str], table_bytes: int) -> None:
    listed = [{"localFileName": name[:6], "dfsSstFileName": name, "sizeBytes": table_bytes} for name in tables]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("MANIFEST-000005", "manifest")
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": listed, "numKeys": 1}))
    _with_crc(file, content.getvalue())


def record(batch: int, commit: int | None = None) -> CommitRecord:
    """Return what the ledger has of a batch."""
    return commit_record(
        batch + 1 if commit is None else commit,
        lineage=LINEAGE,
        batch=batch,
        version="abc",
        source={"in": {0: (10 * batch, 10 * (batch + 1)), 1: (5 * batch, 5 * (batch + 1))}},
        source_topic_ids={"in": "id"},
        sink={"out": {0: SinkRange(first=batch, last=batch, rows=1, digest=7)}},
        offsets=offsets_text(batch),
        watermark=1000 * batch,
        batch_timestamp=1_790_000_000_000 + batch,
        rows=1,
        digest=7,
        committed=1,
    )


def reemitting(home: Home) -> Lineage:
    """Make a home whose lineage begins with batch 2, which was commit 3, after commit 20: restored in mode reemit."""
    home.create("p")
    checkpoint(home.checkpoint(LINEAGE))
    lineage = Lineage(
        id=LINEAGE, cluster_id="c", ledger_topic_id="t", base_batch=2, base_commit=20, reemits=3, parent="l"
    )
    home.remember(lineage)
    home.use(LINEAGE)
    return lineage


class Ledger(LedgerReader):
    """A ledger without a broker: commits, and a claim that comes before them."""

    def __init__(self, *commits: CommitRecord, claim: ClaimRecord | None = None) -> None:
        self.topic, self.pipeline = "ledger", "p"  # type: ignore[misc]
        self.claim = claim or claim_record()
        self.written = [
            replace(commit, before=LedgerPointer(commit_offset=offset - 1)) for offset, commit in enumerate(commits)
        ]

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Close nothing."""

    def tail(self) -> LedgerTail | None:
        commit = self.written[-1] if self.written else None
        return LedgerTail(
            cluster_id="c",
            topic_id="t",
            end_offset=len(self.written),
            claim=self.claim,
            commit=commit,
            commit_offset=len(self.written) - 1,
        )

    def records(self, start_offset: int = 0, end_offset: int | None = None) -> Iterator[tuple[int, Record]]:
        yield from list(enumerate(self.written))[start_offset:end_offset]


def reemitted() -> Ledger:
    """Return the ledger of :func:`reemitting`: the commit that was restored, and those that are written again."""
    return Ledger(record(2), record(3), record(9, commit=20))
