"""Tables that pipelines read, and a reader of their logs and files that shares no code with the one under test."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyarrow.fs import AzureFileSystem, FileSelector, FileSystem, LocalFileSystem, S3FileSystem
from pyiceberg.catalog import load_catalog

from tests import azurite, commands, object_stores
from tests.integration.streaming.harness import Driver, World, check_ledger, clean_audit, rows_by_commit

JOB: Final = "table_counts.py"
DELTA, ICEBERG, IN_A_BUCKET = KINDS = ("delta", "iceberg", "delta on S3")
ON_AZURE: Final = "delta on Azure"
FILES: Final = 2  # that a version of the Delta table adds
ROWS: Final = 40  # that a version adds
_VERSION: Final = 1_000_000
_WHOLE: Final = 500_000  # how the first file of a whole table is counted
_SCHEMA: Final = pa.schema(
    [("id", pa.int64()), ("k", pa.string()), ("v", pa.decimal128(12, 2)), ("part", pa.int32()), ("note", pa.string())]
)


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    columns = {
        "id": list(numbers),
        "k": [f"k{number % 7}" for number in numbers],
        "v": [Decimal(number) / 100 for number in numbers],
        "part": [number % FILES for number in numbers],
        "note": [None] * count,
    }
    return pa.table(columns, _SCHEMA)


class ReadTable(ABC):
    """A table that rows are added to."""

    kind: str
    system: FileSystem = LocalFileSystem()

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder: Final = folder
        self.sent = 0
        self._whole: list[tuple[int, int, str]] = []

    def append(self, versions: int = 1) -> None:
        for _ in range(versions):
            self._append(rows(self.sent, ROWS))
            self.sent += ROWS

    @property
    def begins(self) -> dict[tuple[str, int], int]:
        """Where a pipeline begins that does not begin with the table's first version."""
        if not self._whole:
            return {}
        version, number, _ = self._whole[0]
        return {(self.name, 0): version * _VERSION + number}

    @property
    @abstractmethod
    def place(self) -> str:
        """What a source calls it."""

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.place}"

    @property
    def environment(self) -> dict[str, str]:
        return {"TEST_KIND": self.kind, "TEST_TABLE": self.place}

    @abstractmethod
    def _append(self, added: pa.Table) -> None: ...

    @abstractmethod
    def _files(self) -> Iterator[tuple[int, int, str]]:
        """Yield version, number and path of each file that was added, in their order."""

    def forget(self) -> int:
        """Leave nothing of its history but its newest version, as retention does; returns which that is."""
        version, files = self._expired()
        self._whole = [(version, _WHOLE + number, path) for number, path in enumerate(files)]
        return version

    @abstractmethod
    def _expired(self) -> tuple[int, list[str]]:
        """Leave nothing but the newest version; returns its number, and its files in their order."""

    @abstractmethod
    def delete(self, condition: str) -> None: ...

    def between(self, start: int, end: int) -> list[dict[str, Any]]:
        """Return the rows of the files from a position on to before another."""
        return [
            row
            for version, number, path in (*self._whole, *self._files())
            if start <= version * _VERSION + number < end
            for row in pq.read_table(path, filesystem=self.system, partitioning=None).to_pylist()
        ]


class ReadDelta(ReadTable):
    kind = DELTA
    options: Mapping[str, str] = {}

    @property
    def place(self) -> str:
        return str(self.folder / "orders")

    def _append(self, added: pa.Table) -> None:
        write_deltalake(self.place, added, mode="append", partition_by=["part"], storage_options={**self.options})

    def _files(self) -> Iterator[tuple[int, int, str]]:
        for version, entry in self._log():
            actions = [json.loads(line) for line in self.system.open_input_stream(entry).read().splitlines()]
            added = [action["add"] for action in actions if "add" in action and action["add"]["dataChange"]]
            if any(action["remove"]["dataChange"] for action in actions if "remove" in action):
                continue
            for number, file in enumerate(added):
                yield version, number, f"{self._root}/{unquote(file['path'])}"

    def _log(self) -> list[tuple[int, str]]:
        """Return the versions that are in the log, and their files."""
        listed = self.system.get_file_info(FileSelector(f"{self._root}/_delta_log"))
        return sorted((int(entry.base_name[:-5]), entry.path) for entry in listed if entry.extension == "json")

    @property
    def _root(self) -> str:
        return self.place

    def _opened(self) -> DeltaTable:
        return DeltaTable(self.place, storage_options={**self.options})

    def delete(self, condition: str) -> None:
        self._opened().delete(condition)

    def _expired(self) -> tuple[int, list[str]]:
        table = self._opened()
        table.create_checkpoint()
        for version, entry in self._log():
            if version < table.version():
                self.system.delete_file(entry)
        return table.version(), sorted(self._root + uri.removeprefix(self.place) for uri in table.file_uris())

    def compact(self) -> None:
        self._opened().optimize.compact()

    def vacuum(self) -> None:
        self._opened().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


class ReadDeltaInABucket(ReadDelta):
    bucket = "s3://bucket"

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder)
        self.options, self.system = self._reached(address)

    def _reached(self, address: str) -> tuple[Mapping[str, str], FileSystem]:
        """Return how delta-rs and Arrow get to a server."""
        options = {**object_stores.environment(address), "AWS_ALLOW_HTTP": "true"}
        region = options["AWS_REGION"]
        keys = {"access_key": object_stores.KEY, "secret_key": object_stores.SECRET}
        return options, S3FileSystem(**keys, endpoint_override=address, region=region)

    @property
    def place(self) -> str:
        return f"{self.bucket}{self.folder}/orders"

    @property
    def _root(self) -> str:
        return f"bucket{self.folder}/orders"

    @property
    def environment(self) -> dict[str, str]:
        stores = json.dumps({"lake": self.options})
        return {**super().environment, "TEST_CONN_ID": "lake", "EXACTLYONCE_STORES": stores}


class ReadDeltaOnAzure(ReadDeltaInABucket):
    bucket = f"abfss://bucket@{azurite.ACCOUNT}.dfs.core.windows.net"

    def _reached(self, address: str) -> tuple[Mapping[str, str], FileSystem]:
        scheme, _, server = address.partition("://")
        at = {"blob_storage_authority": server, "blob_storage_scheme": scheme}
        directories = {"dfs_storage_authority": server, "dfs_storage_scheme": scheme}
        system = AzureFileSystem(account_name=azurite.ACCOUNT, account_key=azurite.KEY, **at, **directories)
        return {**azurite.environment(address), "ALLOW_HTTP": "true"}, system


class ReadIceberg(ReadTable):
    kind = ICEBERG

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._properties: Final = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }
        (folder / "warehouse").mkdir(exist_ok=True)
        catalog = load_catalog("shop", **self._properties)
        catalog.create_namespace("sales")
        catalog.create_table("sales.orders", _SCHEMA)
        catalog.close()

    @property
    def place(self) -> str:
        return "shop.sales.orders"

    @property
    def environment(self) -> dict[str, str]:
        stores = json.dumps({"shop_iceberg": self._properties})
        return {**super().environment, "TEST_CONN_ID": "shop_iceberg", "EXACTLYONCE_STORES": stores}

    def _append(self, added: pa.Table) -> None:
        self._table().append(added)

    def _files(self) -> Iterator[tuple[int, int, str]]:
        table = self._table()
        for snapshot in table.metadata.snapshots:
            if snapshot.summary is None or snapshot.summary.operation.value != "append":
                continue
            added = [
                entry["data_file"]["file_path"]
                for entry in table.inspect.entries(snapshot.snapshot_id).to_pylist()
                if entry["snapshot_id"] == snapshot.snapshot_id
            ]
            for number, path in enumerate(added):
                yield int(snapshot.sequence_number or 0), number, urlsplit(path).path

    def delete(self, condition: str) -> None:
        self._table().delete(condition)

    def _expired(self) -> tuple[int, list[str]]:
        table = self._table()
        older = [snapshot.snapshot_id for snapshot in table.metadata.snapshots][:-1]
        table.maintenance.expire_snapshots().by_ids(older).commit()
        newest = table.current_snapshot()
        entries = table.inspect.entries(newest.snapshot_id).to_pylist()
        return newest.sequence_number, [urlsplit(entry["data_file"]["file_path"]).path for entry in entries]

    def _table(self) -> Any:
        return load_catalog("shop", **self._properties).load_table("sales.orders")


class TablePipeline:
    """The world's pipeline, which counts what is added to a table."""

    def __init__(self, world: World, table: ReadTable) -> None:
        self.world, self.table = world, table
        world.job = JOB
        self.environment: dict[str, str] = dict(table.environment)

    def start(self, step: str | None = None, *arguments: str, **how: Any) -> Driver:
        return self.world.start(*arguments, environment=self.environment, failpoints=step, **how)

    def finish(self, *arguments: str) -> Driver:
        last = self.start(None, *arguments)
        assert last.wait() == 0, last.output()[-4000:]
        return last

    def command(self, *words: str) -> None:
        """Run a command on the pipeline in a process of its own."""
        world = self.world
        given = {**os.environ, **world.names, **self.environment}
        commands.run_apart(words[0], world.pipeline, *words[1:], *world.at_home, environment=given)

    def check(self, *, complete: bool = True) -> None:
        """Recompute each commit's rows from its source ranges, and compare them with the sink record by record."""
        world, table = self.world, self.table
        commits = check_ledger(world, table.begins)
        totals: Counter[str] = Counter()
        sums: dict[str, Decimal] = {}
        used: list[int] = []
        expected: list[tuple[int, str, Decimal, int]] = []
        for commit in commits:
            ((name, ranges),) = commit.source.items()
            assert name == table.name
            touched, (start, end) = set(), ranges[0]
            read = table.between(start, end)
            assert commit.records == len(read)
            for row in read:
                used.append(row["id"])
                touched.add(row["k"])
                totals[row["k"]] += 1
                sums[row["k"]] = sums.get(row["k"], Decimal(0)) + row["v"]
            expected += [(commit.commit, k, sums[k], totals[k]) for k in touched]
        written = []
        for number, record in rows_by_commit(world.config, world.sink, commits):
            row = json.loads(record.value or b"", parse_float=Decimal)
            written.append((number, row["k"], Decimal(row["total"]), row["n"]))
        assert sorted(written) == sorted(expected)
        assert len(used) == len(set(used))
        if complete:
            assert sorted(used) == list(range(table.sent))
            clean_audit(world.config, world.pipeline)
