"""The audit of rows that others have deleted beside their files: whose and how many, or that it is not known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import ManifestEntry, ManifestWriter, ManifestWriterV2
from pyiceberg.typedef import Record

from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry
from tests.integration.streaming.sinks.iceberg.lake import IcebergLake
from tests.integration.streaming.sinks.iceberg.merge_on_read import (
    delete_by_id,
    delete_positions,
    replace_by_id,
)
from tests.integration.streaming.sinks.lake import Live, rows

Written = tuple[Live, list[SinkEntry], list[Path]]


@pytest.fixture
def written(lake: IcebergLake, tmp_path: Path) -> Written:
    """Give three commits of ten rows, and their files in that order."""
    live, entries, files = Live(lake.sink(), tmp_path), list[SinkEntry](), list[Path]()
    for number in range(3):
        entries.append(live.commit(rows(number * 10, 10)))
        files += set(lake.files()) - set(files)
    return live, entries, files


def facts(findings: Sequence[str], lake: IcebergLake) -> list[str]:
    """Return findings without the number of the newest snapshot."""
    return [finding.replace(str(lake.opened.version), "NEWEST") for finding in findings]


def test_rows_that_are_deleted_by_position_are_counted_by_commit_and_once(lake: IcebergLake, written: Written) -> None:
    live, entries, (first, second, _) = written
    delete_positions(lake, {first: [0, 7], second: [3]})
    assert lake.ids() == [*range(1, 7), 8, 9, 10, 11, 12, *range(14, 30)]
    said = [
        f"commit 1: snapshot NEWEST (delete) has deleted 2 rows of file://{first}",
        f"commit 2: snapshot NEWEST (delete) has deleted 1 rows of file://{second}",
    ]
    assert facts(live.audit(entries), lake) == said
    before = live.audit(entries)
    delete_positions(lake, {first: [0, 7]})
    assert live.audit(entries) == before, "some writers put those of before into their next file again"
    delete_positions(lake, {first: [0, 7, 8], second: [3]})
    more = f"commit 1: snapshot NEWEST (delete) has deleted 1 rows of file://{first}"
    assert facts(live.audit(entries), lake) == [*before, more]


def test_rows_of_others_and_of_files_that_are_gone_are_nobodys(lake: IcebergLake, written: Written) -> None:
    live, entries, (first, *_) = written
    lake.write(100, 5)
    (others,) = set(lake.files()) - set(written[2])
    delete_positions(lake, {others: [0]})
    assert live.audit(entries) == []
    lake.delete("id < 10")
    (finding,) = live.audit(entries)
    assert finding.startswith("commit 1: ") and "has changed or removed rows" in finding
    delete_positions(lake, {first: [0]})
    assert live.audit(entries) == [finding]


def rewrite(lake: IcebergLake, file: Path, ids: Sequence[int]) -> set[Path]:
    """Write rows anew that a file has, without those deleted; the deletes stay, as Spark leaves them."""
    table, before = lake.opened, lake.current_files()
    (old,) = (of for of in lake.current_data_files() if of.file_path == f"file://{file}")
    written = pa.Table.from_pylist([{"id": number, "k": None} for number in ids], lake.table.schema().as_arrow())
    table.append(
        list(_dataframe_to_data_files(table.metadata, written, table.io)),
        {},
        lambda snapshot, sequence: {},
        [old],
        changes_rows=False,
    )
    return lake.current_files() - before


def test_a_rewrite_has_the_rows_that_were_left(lake: IcebergLake, written: Written) -> None:
    live, entries, (first, second, _) = written
    lake.write(100, 5)
    (others,) = set(lake.files()) - set(written[2])
    delete_positions(lake, {first: [0, 7], others: [4]})
    before = live.audit(entries)
    rewrite(lake, first, [*range(1, 7), 8, 9])
    rewrite(lake, others, range(100, 104))
    assert live.audit(entries) == before
    rewrite(lake, second, range(10, 19))
    too_few = "snapshot NEWEST (replace) has 9 rows instead of 10, and says that it has changed none"
    assert sorted(facts(live.audit(entries), lake)) == sorted([*before, too_few])


def test_a_rewrite_is_not_judged_where_nobody_knows_what_was_deleted(lake: IcebergLake, written: Written) -> None:
    live, entries, (first, *_) = written
    delete_by_id(lake, [3])
    before = live.audit(entries)
    rewrite(lake, first, range(9))
    assert live.audit(entries) == before


def test_rows_that_come_with_deletes_by_value_are_not_deleted_by_them(lake: IcebergLake, written: Written) -> None:
    live, entries, _ = written
    others = replace_by_id(lake, [3, 12])
    before = live.audit(entries)
    (doubted,) = facts(before, lake)
    assert doubted.startswith("commits 1 to 3: snapshot NEWEST (overwrite) has deleted rows by their values of id in ")
    rewrite(lake, others, [3])
    too_few = "snapshot NEWEST (replace) has 1 rows instead of 2, and says that it has changed none"
    assert facts(live.audit(entries), lake) == [*before, too_few]


@pytest.mark.parametrize("is_as_old", [True, False])
def test_deletes_by_value_concern_a_rewrite_that_is_as_old_as_what_it_began_with(
    lake: IcebergLake, written: Written, monkeypatch: pytest.MonkeyPatch, is_as_old: bool
) -> None:
    live, entries, (first, *_) = written
    began = lake.table.current_snapshot()
    delete_by_id(lake, [3])
    before = live.audit(entries)
    with monkeypatch.context() as patch:
        if is_as_old and began is not None:
            keep_age(patch, began.sequence_number)
        (second,) = rewrite(lake, first, range(10))
    rewrite(lake, second, [0, 1, 2, *range(4, 10)])
    too_few = "snapshot NEWEST (replace) has 9 rows instead of 10, and says that it has changed none"
    assert facts(live.audit(entries), lake) == [*before, *([] if is_as_old else [too_few])]


def test_a_rewrite_that_is_older_than_what_is_kept_may_have_rows_that_were_deleted_by_value(
    lake: IcebergLake, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, entries, (first, *_) = written
    began = lake.table.current_snapshot()
    assert began is not None
    delete_by_id(lake, [3])
    with monkeypatch.context() as patch:
        keep_age(patch, began.sequence_number)
        (second,) = rewrite(lake, first, range(10))
    lake.expire()
    (third,) = rewrite(lake, second, [0, 1, 2, *range(4, 10)])
    assert live.audit(entries) == []
    rewrite(lake, third, [0])
    too_few = "snapshot NEWEST (replace) has 1 rows instead of 9, and says that it has changed none"
    assert facts(live.audit(entries), lake) == [too_few]


def keep_age(patch: pytest.MonkeyPatch, sequence: int | None) -> None:
    """Let files be added with the sequence number of the snapshot that a rewrite began with, as Spark does it."""
    real = ManifestWriterV2.add

    def add(writer: ManifestWriterV2, entry: ManifestEntry) -> ManifestWriter:
        aged = ManifestEntry.from_args(sequence_number=sequence, data_file=entry.data_file)
        return real(writer, aged)

    patch.setattr(ManifestWriterV2, "add", add)


def test_a_rewrite_of_a_file_that_is_older_than_what_is_kept_is_not_judged(lake: IcebergLake, written: Written) -> None:
    live, entries, (first, *_) = written
    delete_positions(lake, {first: [0]})
    entries.append(live.commit(rows(30, 10)))
    lake.expire()
    rewrite(lake, first, range(1, 10))
    assert live.audit(entries) == []


def test_rows_that_are_deleted_by_value_are_named_as_not_known(lake: IcebergLake, written: Written) -> None:
    live, entries, _ = written
    deletes = delete_by_id(lake, [3, 12, 500])
    with pytest.raises(ValueError, match="PyIceberg does not yet support equality deletes"):
        lake.table.scan().to_arrow()
    before = live.audit(entries)
    assert facts(before, lake) == [
        "commits 1 to 3: snapshot NEWEST (delete) has deleted rows by their values of id in "
        f"file://{deletes}, which is not read, so it is not known whether theirs are among them"
    ]
    entries.append(live.commit(rows(30, 10)))
    assert live.audit(entries) == before, "the rows of later commits are not concerned"


def test_only_the_partition_of_rows_that_are_deleted_by_value_is_not_known(lake: IcebergLake, tmp_path: Path) -> None:
    live = Live(lake.sink(partition_by=["k"]), tmp_path)
    entries = [live.commit([{"id": number, "k": "odd" if number % 2 else "even"}]) for number in range(4)]
    delete_by_id(lake, [1, 2], Record("odd"))
    (finding,) = live.audit(entries)
    assert finding.startswith("commits 2 to 4: ")
    live, entries = Live(lake.sink(name="other", partition_by=["k"]), tmp_path), []
    entries.append(live.commit([{"id": 10, "k": "even"}]))
    delete_by_id(lake, [10], Record("odd"))
    assert live.audit(entries) == []


def test_deletes_that_can_not_be_read_are_named_as_not_known(lake: IcebergLake, written: Written) -> None:
    live, entries, (first, *_) = written
    gone, cut = delete_positions(lake, {first: [0]}), delete_positions(lake, {first: [1]})
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-9])
    missing, unreadable = live.audit(entries)
    for finding, file in ((missing, gone), (unreadable, cut)):
        assert finding.startswith("commits 1 to 3: ")
        assert f"has deleted rows by file://{file}, which can't be read (" in finding
        assert finding.endswith("so it is not known whether theirs are among them")


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_who_may_replace_rows_is_not_named(lake: IcebergLake, tmp_path: Path, mode: str) -> None:
    keyed = {"mode": "upsert", "key": "id"}
    live = Live(lake.sink(**(keyed if mode == "upsert" else {})), tmp_path)
    entries = [live.commit(rows(0, 10))]
    other = Live(lake.sink(name="other", **keyed), tmp_path)
    other.commit(rows(5, 10))
    findings = live.audit(entries)
    assert [finding.partition(":")[0] for finding in findings] == (["commit 1"] if mode == "append" else [])
