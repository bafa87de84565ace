"""Upserts into a Delta table, judged record by record against a plain dictionary by a reader that shares no code."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    FencedError,
    RecordRefusedError,
    RefusedError,
)
from airflow_provider_exactlyonce.streaming import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry
from tests.delta_reader import read_delta
from tests.integration.streaming.sinks.delta.runs import LONG, TEXT, Live, change, foreign, made

COLUMNS = (
    T.StructType()
    .add("id", T.LongType())
    .add("k", T.StringType())
    .add("v", T.LongType())
    .add("at", T.LongType())
    .add("gone", T.BooleanType())
)


class Model:
    """What the table should have: the rows by key, as a dictionary makes them."""

    def __init__(self, key: Sequence[str]) -> None:
        self.key, self.rows = key, dict[tuple[Any, ...], dict[str, Any]]()

    def apply(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in sorted(rows, key=lambda row: row["at"]):
            key = tuple(row[name] for name in self.key)
            if row["gone"]:
                self.rows.pop(key, None)
            else:
                self.rows[key] = {name: value for name, value in row.items() if name != "gone"}

    def check(self, table: Path) -> None:
        visible = sorted(read_delta(table), key=repr)
        assert visible == sorted(self.rows.values(), key=repr)


def row(id_: int, k: str = "a", v: int = 0, at: int = 0, gone: bool | None = False) -> dict[str, Any]:
    return {"id": id_, "k": k, "v": v, "at": at, "gone": gone}


def upsert(table: Path, **more: Any) -> DeltaSink:
    given: dict[str, Any] = {"key": "id", "order": "at", "deleted": "gone", **more}
    return DeltaSink(name="lake", path=str(table), mode="upsert", **given)


@pytest.mark.parametrize("by", [(), ("k",)], ids=["plain", "partitioned"])
@pytest.mark.parametrize("key", [("id",), ("k", "id")], ids="-".join)
def test_random_batches_give_what_a_dictionary_gives(
    table: Path, tmp_path: Path, key: tuple[str, ...], by: tuple[str, ...]
) -> None:
    chance, model, clock = random.Random(len(key) + len(by)), Model(key), 0
    live = Live(upsert(table, key=key, partition_by=by), tmp_path, columns=COLUMNS)
    entries = []
    for number in range(12):
        tasks: list[list[dict[str, Any]]] = [[], [], []]
        for _ in range(chance.randrange(60)):
            clock += 1
            at_key = chance.randrange(40)
            given = row(at_key, f"k{at_key % 3}", chance.randrange(1000), clock, chance.choice([True, False, None]))
            if key == ("id",):
                given["k"] = chance.choice(["k0", "k1", "a/b=ü\n"])  # a key moves between partitions
            chance.choice(tasks).append(given)
        entries.append(live.commit(*tasks))
        model.apply([given for rows in tasks for given in rows])
        model.check(table)
        if number == 6:
            DeltaTable(table).optimize.compact()
    assert list(live.committer.audit(entries)) == []
    assert Live(live.sink, tmp_path, run=2, columns=COLUMNS).number == 12
    model.check(table)


def test_a_batch_is_one_version_and_keys_without_rows_change_no_file(table: Path, tmp_path: Path) -> None:
    live = Live(upsert(table), tmp_path, columns=COLUMNS)
    live.commit([row(number) for number in range(10)])
    live.commit([row(number) for number in range(100, 110)])
    first, second = sorted(DeltaTable(table).file_uris(), key=lambda uri: read_ids(uri))
    before = DeltaTable(table).version()
    live.commit([row(105, v=1, at=1), row(3, at=1, gone=True), row(50, at=1, gone=True)])
    assert DeltaTable(table).version() == before + 1
    assert not {first, second} & set(DeltaTable(table).file_uris()), "both had one of the keys"
    kept = set(DeltaTable(table).file_uris())
    live.commit([row(500)])
    assert kept < set(DeltaTable(table).file_uris()), "none has the key"
    assert sorted(visible["id"] for visible in read_delta(table)) == [0, 1, 2, *range(4, 10), *range(100, 110), 500]
    assert {visible["id"]: visible["v"] for visible in read_delta(table)}[105] == 1


def read_ids(uri: str) -> list[int]:
    with open(uri.removeprefix("file://"), "rb") as file:
        return pa.parquet.ParquetFile(file).read(columns=["id"])["id"].to_pylist()  # type: ignore[no-any-return]


def test_a_batch_that_was_staged_for_another_version_is_planned_anew(table: Path, tmp_path: Path) -> None:
    live, model = Live(upsert(table), tmp_path, columns=COLUMNS), Model(["id"])
    stored = pa.schema([LONG, TEXT, ("v", pa.int64()), ("at", pa.int64())])

    def others(rows: list[dict[str, Any]]) -> None:
        model.apply(rows)
        kept = [{name: value for name, value in given.items() if name != "gone"} for given in rows]
        write_deltalake(str(table), pa.Table.from_pylist(kept, stored), mode="append")

    def merged() -> None:
        source = pa.Table.from_pylist([{"id": 3, "k": "m", "v": 77, "at": 0}], stored)
        merge = DeltaTable(table).merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        model.apply([row(3, "m", 77)])

    def deleted() -> None:
        DeltaTable(table).delete("id = 4")
        model.rows.pop((4,), None)

    changes: list[Callable[[], object]] = [
        lambda: others([row(number, "o", 50) for number in range(40, 50)]),
        lambda: DeltaTable(table).optimize.compact(),
        lambda: DeltaTable(table).create_checkpoint(),
        merged,
        deleted,
        lambda: DeltaTable(table).alter.add_columns([Field("more", PrimitiveType("string"), nullable=True)]),
        lambda: DeltaTable(table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False),
    ]
    entries: list[SinkEntry] = []
    for number, others_change in enumerate(changes):
        rows = [row(key, "u", number, number + 1, gone=key % 7 == number) for key in range(number, 60, 5)]
        if number == 6:
            others_change()  # without a retention it removes whatever is not committed
        entry = live.stage(rows)
        if number < 6:
            others_change()
        live.committer.commit(entry)
        live.number += 1
        live.committer.settled(live.number)
        entries.append(entry)
        model.apply(rows)
        contents = [{name: value for name, value in visible.items() if name != "more"} for visible in read_delta(table)]
        assert sorted(contents, key=repr) == sorted(model.rows.values(), key=repr), number
    left = {str(file) for file in (table / "exactlyonce").rglob("*.parquet")}
    assert {uri.removeprefix("file://") for uri in DeltaTable(table).file_uris() if "exactlyonce" in uri} <= left
    findings = list(live.committer.audit(entries))
    assert all("(DELETE)" in text or "(MERGE)" in text for text in findings), findings


def test_two_pipelines_upsert_into_one_table(table: Path, tmp_path: Path) -> None:
    model = Model(["id"])
    lives = [Live(upsert(table), tmp_path, columns=COLUMNS, pipeline=name) for name in ("one", "two")]
    entries: list[list[SinkEntry]] = [[], []]
    for number in range(6):
        batches = [[row(key, f"p{index}", number, number) for key in range(index * 5, 15)] for index in (0, 1)]
        staged = [live.stage(rows) for live, rows in zip(lives, batches, strict=True)]
        for index, live in enumerate(lives):
            live.committer.commit(staged[index])
            live.number += 1
            live.committer.settled(live.number)
            model.apply(batches[index])
            entries[index].append(staged[index])
    model.check(table)
    for live, known in zip(lives, entries, strict=True):
        assert list(live.committer.audit(known)) == []
        assert Live(live.sink, tmp_path, run=2, columns=COLUMNS, pipeline=live.pipeline).number == 6


def test_others_who_write_in_the_middle_of_a_try_make_it_plan_anew(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, model = Live(upsert(table), tmp_path, columns=COLUMNS), Model(["id"])
    first = [row(number) for number in range(10)]
    live.commit(first)
    model.apply(first)
    other, real = Live(upsert(table), tmp_path, columns=COLUMNS, pipeline="other"), DeltaLog.append
    tries: list[int] = []

    def append(log: DeltaLog, *given: Any) -> None:
        if len(tries) < 3:
            tries.append(log.version)
            monkeypatch.setattr(DeltaLog, "append", real)
            rows = [row(number, "other", len(tries), len(tries)) for number in (1, 2, 20 + len(tries))]
            other.commit(rows)
            model.apply(rows)
            monkeypatch.setattr(DeltaLog, "append", append)
        real(log, *given)

    monkeypatch.setattr(DeltaLog, "append", append)
    last = [row(2, "mine", 9, 9), row(21, at=9, gone=True), row(30, at=9)]
    live.commit(last)
    model.apply(last)
    model.check(table)
    assert len(tries) == 3
    left = {str(file) for file in (table / "exactlyonce" / "shop.lake").rglob("*.parquet")}
    named = {file for version in range(DeltaTable(table).version() + 1) for file in files_at(table, version)}
    assert left <= named, "what was copied for a version that others took is gone"


def files_at(table: Path, version: int) -> set[str]:
    return {uri.removeprefix("file://") for uri in DeltaTable(table, version=version).file_uris()}


def test_a_zombie_changes_nothing_and_its_successor_does_it_once(table: Path, tmp_path: Path) -> None:
    old, model = Live(upsert(table), tmp_path, columns=COLUMNS), Model(["id"])
    first = [row(number) for number in range(10)]
    old.commit(first)
    model.apply(first)
    rows = [row(3, at=1, gone=True), row(4, "new", 1, 1), row(11, at=1)]
    entry = old.stage(rows)
    successor = Live(upsert(table), tmp_path, run=2, columns=COLUMNS)
    with pytest.raises(FencedError):
        old.committer.commit(entry)
    model.check(table)
    successor.commit(rows)
    model.apply(rows)
    model.check(table)


@pytest.mark.parametrize("landed", [True, False])
def test_an_outcome_that_nobody_knows_is_decided_by_the_claim_and_applied_once(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    live, model, real = Live(upsert(table), tmp_path, columns=COLUMNS), Model(["id"]), DeltaLog.append
    first = [row(number) for number in range(10)]
    live.commit(first)
    rows = [row(number, "new", 1, 1, gone=number > 7) for number in range(5, 12)]
    for given in (first, rows):
        model.apply(given)
    entry = live.stage(rows)

    def append(log: DeltaLog, *given: Any) -> None:
        if landed:
            real(log, *given)
        monkeypatch.setattr(DeltaLog, "refresh", lambda log: (_ for _ in ()).throw(ConnectionError("no answer")))
        raise ConnectionError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaLog, "append", append)
        with pytest.raises(CommitUnknownError):
            live.committer.commit(entry)
    monkeypatch.undo()
    claimed = live.committer.claim(1)
    assert claimed == (entry if landed else live.committer.tail())
    if not landed:
        live.commit(rows)
    model.check(table)


def test_files_of_others_are_copied_as_they_are(table: Path, tmp_path: Path) -> None:
    """Columns that were added later, nested ones, times, and values of which statistics say nothing."""
    columns = pa.schema(
        [
            LONG,
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("amount", pa.decimal128(12, 2)),
            ("double", pa.float64()),
            ("nested", pa.struct([("a", pa.int64()), ("l", pa.list_(pa.string()))])),
        ]
    )
    utc = datetime.UTC
    given = [
        {
            "id": number,
            "at": datetime.datetime(1900, 1, 1, 0, 0, 0, number, utc),
            "local": datetime.datetime(2024, 2, 29, 23, 59, 59, 999999),
            "amount": Decimal(number) / 100,
            "double": float("inf"),
            "nested": {"a": None, "l": ["ü", None]},
        }
        for number in range(6)
    ]
    write_deltalake(str(table), pa.Table.from_pylist([{"id": 9}, {"id": 5}], pa.schema([LONG])))
    write_deltalake(str(table), pa.Table.from_pylist(given[:3], columns), mode="append", schema_mode="merge")
    kinds = T.StructType().add("id", T.LongType()).add("at", T.TimestampType()).add("local", T.TimestampNTZType())
    kinds = kinds.add("amount", T.DecimalType(12, 2)).add("double", T.DoubleType())
    kinds = kinds.add("nested", T.StructType().add("a", T.LongType()).add("l", T.ArrayType(T.StringType())))
    live = Live(DeltaSink(name="lake", path=str(table), mode="upsert", key="id"), tmp_path, columns=kinds)
    live.commit([{**given[1], "amount": None}], [given[4], given[5]])
    expected = [given[0], {**given[1], "amount": None}, given[2], *given[4:], {**dict.fromkeys(columns.names), "id": 9}]
    assert sorted(read_delta(table), key=lambda visible: visible["id"]) == expected
    assert sorted(DeltaTable(table).to_pyarrow_table().to_pylist(), key=lambda visible: visible["id"]) == expected


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (T.StringType(), ["a", "ü" * 40, "", "z" * 100]),
        (T.DateType(), [datetime.date(1582, 10, 15), datetime.date(2024, 2, 29), datetime.date(9999, 12, 31)]),
        (T.TimestampType(), [datetime.datetime(2024, 1, 1, 0, 0, 0, us, datetime.UTC) for us in (1, 999, 1001)]),
        (T.TimestampNTZType(), [datetime.datetime(1900, 1, 1), datetime.datetime(2024, 1, 1, 0, 0, 0, 1)]),
        (T.DecimalType(38, 10), [Decimal("-1.0000000001"), Decimal("1234567890123456789012345678.0123456789")]),
        (T.BooleanType(), [True, False]),
        (T.ShortType(), [-3, 0, 3]),
    ],
    ids=lambda given: given.simpleString() if isinstance(given, T.DataType) else "",
)
def test_a_key_of_each_type_finds_its_row(table: Path, tmp_path: Path, kind: T.DataType, values: list[Any]) -> None:
    columns = T.StructType().add("id", kind).add("v", T.LongType())
    live = Live(DeltaSink(name="lake", path=str(table), mode="upsert", key="id"), tmp_path, columns=columns)
    for value in values:
        live.commit([{"id": value, "v": 0}])
    live.commit([{"id": values[0], "v": 1}], [{"id": values[-1], "v": 2}])
    expected = {**dict.fromkeys(values, 0), values[0]: 1, values[-1]: 2}
    assert sorted((visible["id"], visible["v"]) for visible in read_delta(table)) == sorted(expected.items())


# Several rows of a key in one batch


def test_the_last_of_a_task_stays_where_no_order_is_declared(table: Path, tmp_path: Path) -> None:
    live = Live(upsert(table, order=None), tmp_path, columns=COLUMNS)
    live.commit([row(1, v=1), row(2, v=1), row(1, v=2), row(2, gone=True), row(3, gone=True), row(3, v=3)])
    assert sorted((visible["id"], visible["v"]) for visible in read_delta(table)) == [(1, 2), (3, 3)]


def test_rows_of_a_key_in_two_tasks_are_refused_where_no_order_is_declared(table: Path, tmp_path: Path) -> None:
    live = Live(upsert(table, order=None), tmp_path, columns=COLUMNS)
    with pytest.raises(RecordRefusedError, match=r"several rows for id=1 of .*, DeltaSink\(order=…\)"):
        live.stage([row(1)], [row(1, gone=True)])


@pytest.mark.parametrize("tasks", [([row(1), row(1, v=1)],), ([row(1)], [row(1, v=1)])], ids=["one-task", "two"])
def test_two_last_rows_of_a_key_are_refused(table: Path, tmp_path: Path, tasks: Any) -> None:
    live = Live(upsert(table), tmp_path, columns=COLUMNS)
    with pytest.raises(RecordRefusedError, match=r"id=1.* greatest at"):
        live.stage(*tasks)


def test_null_in_order_comes_before_all(table: Path, tmp_path: Path) -> None:
    live = Live(upsert(table), tmp_path, columns=COLUMNS)
    live.commit([{**row(1, v=1), "at": None}, row(1, v=2, at=-5)], [{**row(1, v=3), "at": None}])
    assert [(visible["id"], visible["v"]) for visible in read_delta(table)] == [(1, 2)]


def test_null_in_a_key_is_refused(table: Path, tmp_path: Path) -> None:
    live = Live(upsert(table, key=["id", "k"]), tmp_path, columns=COLUMNS)
    with pytest.raises(RecordRefusedError, match="null in its key, which replaces none: id=1, k=None"):
        live.stage([{**row(1), "k": None}])


# What is refused by name


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mode": "merge"}, r"mode='merge'\): 'append', 'upsert', 'overwrite partitions'"),
        ({"mode": "upsert"}, "goes by a key"),
        ({"key": "id"}, "goes by a key"),
        ({"order": "at"}, "order and deleted are for"),
        ({"mode": "upsert", "key": "id", "deleted": "id"}, "deleted='id'"),
        ({"mode": "overwrite partitions"}, "needs partition_by"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        DeltaSink(**{"name": "lake", "path": "/tmp/x", **changed})


@pytest.mark.parametrize(
    ("columns", "more", "said"),
    [
        (COLUMNS, {"key": "other"}, "names the column 'other'; the columns are id, k, v, at, gone"),
        (COLUMNS, {"deleted": "v"}, "deleted='v' must be a boolean column"),
        (COLUMNS, {"order": "other"}, "names the column 'other'"),
        (T.StructType().add("id", T.DoubleType()), {"order": None, "deleted": None}, "'id' of the key is double"),
        (
            T.StructType().add("id", T.LongType()).add("at", T.ArrayType(T.LongType())),
            {"deleted": None},
            "order='at' is array<bigint>",
        ),
    ],
)
def test_columns_that_cannot_be_are_refused_by_name(
    table: Path, columns: T.StructType, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(RefusedError, match=said):
        upsert(table, **more).check_columns(columns)


@pytest.mark.parametrize("mode", ["upsert", "overwrite partitions"])
@pytest.mark.parametrize("name", ["delta.appendOnly", "delta.enableChangeDataFeed", "deletionVectors"])
def test_what_a_table_has_that_cannot_be_kept_is_refused_by_name(table: Path, mode: str, name: str) -> None:
    made(table, pa.schema([LONG, TEXT]), partition_by=["k"])
    if name == "deletionVectors":
        change(table, "protocol", minReaderVersion=3, minWriterVersion=7, readerFeatures=[name], writerFeatures=[name])
    else:
        change(table, "metaData", configuration={name: "true"})
    columns = T.StructType().add("id", T.LongType()).add("k", T.StringType())
    key: dict[str, Any] = {"key": "id"} if mode == "upsert" else {}
    sink = DeltaSink(name="lake", path=str(table), mode=mode, partition_by="k", **key)
    if mode == "overwrite partitions" and name == "delta.enableChangeDataFeed":
        sink.check_columns(columns)  # whole files come and go
        return
    with pytest.raises(RefusedError, match=name):
        sink.check_columns(columns)


# Partitions that are replaced


def test_a_batch_replaces_its_partitions_and_no_other(table: Path, tmp_path: Path) -> None:
    sink = DeltaSink(name="lake", path=str(table), mode="overwrite partitions", partition_by=["day", "k"])
    columns = T.StructType().add("id", T.LongType()).add("day", T.DateType()).add("k", T.StringType())
    live, chance = Live(sink, tmp_path, columns=columns), random.Random(1)
    days = [datetime.date(2024, 2, 29), None, datetime.date(1999, 1, 1)]
    texts = ["a/b=ü\n", "50%", None, "null", "a b", "x%2Fy", "\\"]
    expected: dict[tuple[Any, Any], list[int]] = {}
    entries = []
    for number in range(10):
        parts = [(chance.choice(days), chance.choice(texts)) for _ in range(chance.randrange(5))]
        tasks: list[list[dict[str, Any]]] = [[], []]
        for place, part in enumerate(parts):
            tasks[place % 2].append({"id": number * 10 + place, "day": part[0], "k": part[1]})
        for part in parts:
            expected[part] = sorted(
                written["id"] for rows in tasks for written in rows if (written["day"], written["k"]) == part
            )
        version = DeltaTable(table).version()
        entries.append(live.commit(*tasks))
        assert DeltaTable(table).version() == version + 1
        visible_ids: dict[tuple[Any, Any], list[int]] = {}
        for visible in sorted(read_delta(table), key=lambda visible: visible["id"]):
            day = visible["day"] and datetime.date.fromisoformat(visible["day"])
            visible_ids.setdefault((day, visible["k"]), []).append(visible["id"])
        assert visible_ids == expected
        if number == 5:
            DeltaTable(table).optimize.compact()
    assert list(live.committer.audit(entries)) == []


def test_rows_that_others_write_into_a_partition_before_the_commit_are_replaced_too(
    table: Path, tmp_path: Path
) -> None:
    sink = DeltaSink(name="lake", path=str(table), mode="overwrite partitions", partition_by="k")
    columns = T.StructType().add("id", T.LongType()).add("k", T.StringType())
    live = Live(sink, tmp_path, columns=columns)
    entry = live.stage([{"id": 1, "k": "k0"}])
    foreign(table, 30, 6)
    live.committer.commit(entry)
    visible = sorted((visible_row["id"], visible_row["k"]) for visible_row in read_delta(table))
    assert visible == [(1, "k0"), (31, "k1"), (32, "k2"), (34, "k1"), (35, "k2")]


def test_a_file_that_is_gone_when_it_is_to_be_copied_fails_the_batch_and_nothing_else(
    table: Path, tmp_path: Path
) -> None:
    live = Live(upsert(table), tmp_path, columns=COLUMNS)
    live.commit([row(1), row(2)])
    entry = live.stage([row(1, v=1, at=1)])
    (uri,) = DeltaTable(table).file_uris()
    away = Path(uri.removeprefix("file://"))
    away.rename(away.with_suffix(".away"))
    with pytest.raises(BatchFailedError, match="does not answer: FileNotFoundError"):
        live.committer.commit(entry)
    away.with_suffix(".away").rename(away)
    live.committer.abort()
    live.commit([row(1, v=1, at=1)])
    assert sorted((visible["id"], visible["v"]) for visible in read_delta(table)) == [(1, 1), (2, 0)]
