"""What is read of a Delta table's log, and what is refused, on tables that delta-rs has written."""

from __future__ import annotations

import datetime
import json
import pickle
import re
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_exactlyonce.exceptions import DataLostError, RefusedError
from airflow_provider_exactlyonce.tables import table_log
from airflow_provider_exactlyonce.tables.delta_log import DeltaTableLog
from airflow_provider_exactlyonce.tables.offsets import TableOffsets
from airflow_provider_exactlyonce.tables.positions import SNAPSHOT, Position
from airflow_provider_exactlyonce.tables.table_log import TableVersion
from tests.unit.tables.delta_tables import actions, append, entry, rows, three_versions, write_entry

#: A deletion vector.
BOTH_ROWS = {
    "storageType": "i",
    "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000315c8Xg00031",
    "sizeInBytes": 36,
    "cardinality": 2,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return three_versions(tmp_path / "orders")


def log_of(path: Path) -> DeltaTableLog:
    return DeltaTableLog(str(path), {})


def read(path: Path, start: int = 0) -> list[TableVersion]:
    return list(log_of(path).versions(Position(start)))


def ids(path: Path, version: TableVersion) -> list[int]:
    import pyarrow.parquet as pq

    store = log_of(path).store
    return [number for file in version.files for number in pq.read_table(store.open(file.path))["id"].to_pylist()]


def test_each_version_has_the_files_that_it_adds(path: Path) -> None:
    versions = read(path)
    assert [version.version for version in versions] == [0, 1, 2]
    assert [ids(path, version) for version in versions] == [[0, 1], [2, 3], [4, 5]]
    assert [file.rows for version in versions for file in version.files] == [2, 2, 2]
    assert versions[0].columns is not None
    assert [version.columns for version in versions[1:]] == [None, None]
    assert all(version.rewrite is None and version.committed > 0 for version in versions)
    assert [version.version for version in read(path, 2)] == [2]
    assert read(path, 3) == []
    log = log_of(path)
    assert (log.begin(), log.end(), log.identity()) == (Position(0), Position(3), str(DeltaTable(path).metadata().id))


def test_what_is_written_later_is_seen_by_the_same_log(path: Path) -> None:
    log = log_of(path)
    assert len(list(log.versions(Position(0)))) == 3
    append(path, 6)
    assert [version.version for version in log.versions(Position(3))] == [3]


def test_values_of_partitions_are_texts_and_an_empty_one_is_none(tmp_path: Path) -> None:
    table = pa.table(
        {"id": [1, 2, 3], "day of": ["a b/c", None, "z"]}, pa.schema([("id", pa.int64()), ("day of", pa.string())])
    )
    write_deltalake(tmp_path / "t", table, partition_by=["day of"])
    (version,) = read(tmp_path / "t")
    assert {file.partition["day of"] for file in version.files} == {"a b/c", None, "z"}
    assert sorted(ids(tmp_path / "t", version)) == [1, 2, 3]  # paths are escaped in the log


def test_a_compaction_adds_no_rows(path: Path) -> None:
    DeltaTable(path).optimize.compact()
    append(path, 6)
    versions = read(path)
    assert [len(version.files) for version in versions] == [1, 1, 1, 0, 1]
    assert [version.rewrite for version in versions] == [None] * 5


@pytest.mark.parametrize("what", ["delete", "overwrite", "update", "merge"])
def test_a_version_that_takes_rows_out_is_told(path: Path, what: str) -> None:
    table = DeltaTable(path)
    if what == "delete":
        table.delete("id = 2")
    elif what == "update":
        table.update(predicate="id = 2", updates={"text": "'x'"})
    elif what == "merge":
        table.merge(
            rows(2, 9), "t.id = s.id", "s", "t"
        ).when_matched_update_all().when_not_matched_insert_all().execute()
    else:
        write_deltalake(path, rows(7), mode="overwrite")
    last = read(path)[-1]
    assert last.rewrite is not None
    assert "out of it" in last.rewrite
    assert last.files == ()


def test_a_merge_that_only_inserts_adds_rows(path: Path) -> None:
    DeltaTable(path).merge(rows(2, 9), "t.id = s.id", "s", "t").when_not_matched_insert_all().execute()
    last = read(path)[-1]
    assert last.rewrite is None
    assert ids(path, last) == [9]


def test_a_version_that_was_cleaned_up_before_it_was_read_stops_by_name(path: Path) -> None:
    DeltaTable(path).create_checkpoint()
    append(path, 6)
    for version in (0, 1):
        entry(path, version).unlink()
    assert log_of(path).begin() == Position(2)
    assert [version.version for version in read(path, 2)] == [2, 3]
    assert read(path, 4) == []
    for start in (0, 1):
        with pytest.raises(DataLostError, match=rf"version {start} of table delta:{path} is not in its log any more"):
            read(path, start)


def test_nothing_new_behind_a_log_that_was_cleaned_up_to_its_end(path: Path) -> None:
    DeltaTable(path).create_checkpoint()
    for version in (0, 1, 2):
        entry(path, version).unlink()
    assert read(path, 3) == []
    assert log_of(path).begin() == Position(2)
    with pytest.raises(DataLostError, match="version 2 of table"):
        read(path, 2)


def clean_up(path: Path, before: int) -> None:
    """Clean the log up, as retention does behind a checkpoint."""
    DeltaTable(path, version=before).create_checkpoint()
    for version in range(before):
        entry(path, version).unlink(missing_ok=True)


def whole(path: Path, version: int) -> list[TableVersion]:
    return list(log_of(path).versions(Position(version, SNAPSHOT)))


def test_the_whole_table_at_a_version_is_read_first_and_then_what_later_ones_add(path: Path) -> None:
    append(path, 6)
    before = whole(path, 2)
    assert [(version.version, version.first) for version in before] == [(2, SNAPSHOT), (3, 0)]
    assert (sorted(ids(path, before[0])), ids(path, before[1])) == ([0, 1, 2, 3, 4, 5], [6])
    assert [file.rows for file in before[0].files] == [2, 2, 2]
    assert before[0].columns == log_of(path).columns()
    clean_up(path, 2)
    DeltaTable(path).optimize.compact()
    append(path, 7)
    after = whole(path, 2)
    assert after[:2] == before
    assert [len(version.files) for version in after[2:]] == [0, 1]
    newest = log_of(path).begin(), whole(path, 5)
    assert newest[0] == Position(2)
    assert sorted(ids(path, newest[1][0])) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_the_same_log_knows_the_whole_table_and_what_its_version_adds(path: Path) -> None:
    log = log_of(path)
    first, second = (next(log.versions(Position(1, file))) for file in (SNAPSHOT, 0))
    assert (len(first.files), len(second.files)) == (2, 1)
    assert next(log.versions(Position(1, SNAPSHOT + 1))) is first
    assert TableOffsets(log).rows(Position(1, SNAPSHOT).offset, Position(3).offset) == 6
    assert TableOffsets(log).rows(Position(1, SNAPSHOT + 1).offset, Position(2).offset) == 2


def test_rows_that_were_taken_out_before_it_are_not_in_the_whole_table(path: Path) -> None:
    DeltaTable(path).delete("id = 2")
    assert sorted(ids(path, whole(path, 3)[0])) == [0, 1, 3, 4, 5]
    assert [version.version for version in whole(path, 2)][1:] == [3]


def test_a_whole_table_that_nobody_knows_any_more_stops_by_name(path: Path) -> None:
    append(path, 6)
    DeltaTable(path).create_checkpoint()
    for version in (0, 1):
        entry(path, version).unlink()
    assert log_of(path).begin() == Position(2)
    for version in range(3):  # of the last one there is its own entry, and no checkpoint before it
        with pytest.raises(DataLostError, match=rf"had at version {version} is not known any more.*_version=3, with "):
            whole(path, version)
    assert sorted(ids(path, whole(path, 3)[0])) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("gone", [[0, 1], [0, 1, 2, 3]])
def test_a_new_pipeline_begins_where_it_can_go_on_and_nowhere_else(path: Path, gone: list[int]) -> None:
    append(path, 6)
    DeltaTable(path).create_checkpoint()
    for version in gone:
        entry(path, version).unlink()
    offsets = TableOffsets(log_of(path))
    for version in range(5):
        for begin in (Position(version), Position(version, SNAPSHOT)):
            try:
                list(log_of(path).versions(begin))
            except DataLostError as error:
                with pytest.raises(RefusedError, match=f"starting_version of the source: {re.escape(str(error))}"):
                    offsets.check_begin(begin.offset)
            else:
                offsets.check_begin(begin.offset)


def test_partitions_of_a_whole_table_have_the_texts_of_the_log_and_a_time_without_its_zone(tmp_path: Path) -> None:
    at = datetime.datetime(2024, 2, 29, 23, 59, 59, 1)
    values = {
        "text": pa.array(["a/b=ü 50%", None]),
        "day": pa.array([at.date(), None]),
        "local": pa.array([at, None], pa.timestamp("us")),
        "zoned": pa.array([at, None], pa.timestamp("us", "UTC")),
        "yes": pa.array([True, None]),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(12, 2)),
        "small": pa.array([-3, None], pa.int16()),
        "real": pa.array([-0.25, None]),
    }
    write_deltalake(tmp_path / "t", pa.table({"id": [1, 2], **values}), partition_by=list(values))
    (logged,), (known,) = read(tmp_path / "t"), whole(tmp_path / "t", 0)
    by_path = {file.path: file for file in logged.files}
    assert [file.path for file in known.files] == sorted(by_path)
    for file in known.files:
        assert file.partition == by_path[file.path].partition


def test_files_without_some_of_their_rows_are_refused_in_a_whole_table(path: Path) -> None:
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    write_entry(path, 3, [{"protocol": {**protocol, **features}}])
    assert sorted(ids(path, whole(path, 3)[0])) == [0, 1, 2, 3, 4, 5]
    (added,) = (action["add"] for action in actions(path, 0) if "add" in action)
    removed = {"path": added["path"], "dataChange": True, "deletionTimestamp": 1}
    write_entry(path, 4, [{"remove": removed}, {"add": {**added, "deletionVector": BOTH_ROWS}}])
    with pytest.raises(RefusedError, match="without some of their rows at version 4"):
        whole(path, 4)


def test_a_table_that_was_made_anew_stops_by_name(path: Path) -> None:
    offsets = TableOffsets(log_of(path))
    before = offsets.identity()
    shutil.rmtree(path)
    assert offsets.identity() is None
    append(path, 1)
    with pytest.raises(DataLostError, match=f"was recreated: its id is .*, and was {before}"):
        offsets.identity()
    with pytest.raises(DataLostError, match="is at version 0, and versions up to 2 were read"):
        read(path, 3)


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    assert log_of(tmp_path / "none").identity() is None
    assert TableOffsets(log_of(tmp_path / "none")).describe(["x"]) == {}
    with pytest.raises(DataLostError, match="is not there"):
        read(tmp_path / "none")


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (
            {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["typeWidening"]}},
            "typeWidening",
        ),
        (
            {"metaData": {"schemaString": "{}", "configuration": {"delta.columnMapping.mode": "name"}}},
            "maps its columns",
        ),
        ({"add": {"path": "s3://other/file.parquet", "size": 1}}, "a clone"),
        ({"add": {"path": "file:/other/file.parquet", "size": 1}}, "a clone"),
        ({"add": {"path": "/other/file.parquet", "size": 1}}, "a clone"),
        ({"add": {"path": "a.parquet", "size": 1, "deletionVector": {"storageType": "u"}}}, "deletion vector"),
        ({"newKind": {}}, "newKind"),
    ],
)
def test_what_can_t_be_read_is_refused_by_name(path: Path, version: dict[str, Any], said: str) -> None:
    write_entry(path, 3, [version])
    with pytest.raises(RefusedError, match=said):
        read(path, 3)


@pytest.mark.parametrize(
    "added", [{"deletionVector": BOTH_ROWS}, {"path": "dbfs:/other/file.parquet"}], ids=["vector", "clone"]
)
def test_a_version_that_takes_rows_out_is_told_whatever_it_adds(path: Path, added: dict[str, Any]) -> None:
    (body,) = (action["add"] for action in actions(path, 0) if "add" in action)
    removed = {"path": body["path"], "dataChange": True, "deletionTimestamp": 1}
    write_entry(path, 3, [{"remove": removed}, {"add": {**body, **added}}])
    append(path, 9)
    third, fourth = read(path, 3)
    assert third.rewrite == "takes 1 files out of it"
    assert third.files == ()
    assert ids(path, fourth) == [9]


@pytest.mark.parametrize("feature", ["typeWidening", "unheardOf", "catalogManaged"])
def test_a_table_with_a_feature_that_nobody_here_knows_is_refused_by_name(path: Path, feature: str) -> None:
    write_entry(path, 3, [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [feature]}}])
    with pytest.raises(RefusedError, match=f"has the features {feature}, which can't be read"):
        log_of(path).identity()


def test_an_entry_that_is_no_entry_is_refused(path: Path) -> None:
    entry(path, 3).write_text("{torn")
    with pytest.raises(RefusedError, match=r"version 3 of table .* is no entry of a Delta log"):
        read(path, 3)


def test_positions_are_asked_for_as_those_of_topics_are(path: Path) -> None:
    name, offsets = f"delta:{path}", TableOffsets(log_of(path))
    places = [(name, 0)]
    assert offsets.partitions([name]) == places
    assert offsets.topic_ids([name]) == {name: str(DeltaTable(path).metadata().id)}
    assert offsets.starts(places) == {(name, 0): 0}
    assert offsets.last_stable(places) == offsets.ends(places) == {(name, 0): 3_000_000}
    assert offsets.last_stable([]) == {}
    assert offsets.rows(0, 3_000_000) == 6
    assert offsets.rows(1_000_000, 2_000_000) == 2


def test_a_time_is_the_position_before_all_that_was_committed_then_or_later(path: Path) -> None:
    for version, committed in enumerate((100, 300, 200)):
        changed = actions(path, version)
        for action in changed:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] = committed
        write_entry(path, version, changed)
    place = (f"delta:{path}", 0)
    found = {
        time: TableOffsets(log_of(path)).at_timestamp([place], time)[place] for time in (50, 100, 101, 200, 201, 301)
    }
    assert found == {50: 0, 100: 0, 101: 1_000_000, 200: 1_000_000, 201: None, 301: None}


def test_a_file_that_was_vacuumed_is_found_before_a_replay_needs_it(path: Path) -> None:
    offsets = TableOffsets(log_of(path))
    DeltaTable(path).optimize.compact()
    assert offsets.first_gone(0, 3_000_000) is None
    DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    gone = offsets.first_gone(1_000_000, 3_000_000)
    assert gone == read(path)[1].files[0].path
    assert offsets.first_gone(3_000_000, 4_000_000) is None


def test_rows_that_nobody_has_counted_are_not_known(path: Path) -> None:
    changed = actions(path, 1)
    for action in changed:
        action.get("add", {}).pop("stats", None)
    write_entry(path, 1, changed)
    assert TableOffsets(log_of(path)).rows(0, 3_000_000) is None
    assert TableOffsets(log_of(path)).rows(0, 1_000_000) == 2


def test_a_store_goes_to_tasks(path: Path) -> None:
    store = log_of(path).store
    assert store.is_there(read(path)[0].files[0].path)
    again = pickle.loads(pickle.dumps(store))
    assert again.is_there(read(path)[0].files[0].path)
    assert not again.is_there("none.parquet")


def test_the_columns_are_as_spark_writes_them(path: Path) -> None:
    fields = json.loads(log_of(path).columns())["fields"]
    assert [(field["name"], field["type"]) for field in fields] == [("id", "long"), ("text", "string")]


def test_a_log_knows_the_versions_that_were_read_last_and_no_others(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_log, "_REMEMBERED", 2)
    log = log_of(path)
    first, second = (list(log.versions(Position(0))) for _ in range(2))
    assert first == second
    assert [version.version for version in log._known.values()] == [version.version for version in first[-2:]]
