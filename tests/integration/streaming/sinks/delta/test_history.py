"""Delta tables that a ``RESTORE`` has set back or forward."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_provider_exactlyonce.exceptions import CommitUnknownError, FencedError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import DeltaFiles
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext, SinkEntry
from tests.integration.streaming.sinks.delta.lake import DeltaLake
from tests.integration.streaming.sinks.lake import PIPELINE, Live, rows


def newest_of(lake: DeltaLake, tmp_path: Path) -> SinkEntry | None:
    return lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail()


def begun(lake: DeltaLake, tmp_path: Path, commits: int = 4) -> tuple[Live, list[SinkEntry], list[int]]:
    """Return a sink with commits of two rows each, their entries, and the versions before the first and after each."""
    live = Live(lake.sink(), tmp_path)
    entries, versions = [], [lake.table.version()]
    for number in range(commits):
        entries.append(live.commit(rows(number * 2, 2)))
        versions.append(lake.table.version())
    return live, entries, versions


@pytest.mark.parametrize("left", [0, 2])
def test_the_commits_go_back_with_the_rows_and_are_written_again(lake: DeltaLake, tmp_path: Path, left: int) -> None:
    live, entries, versions = begun(lake, tmp_path)
    lake.table.restore(versions[left])
    assert newest_of(lake, tmp_path) == (entries[left - 1] if left else None)
    with pytest.raises(CommitUnknownError, match=rf"has commit {left} .* would write commit 5: it was set back"):
        live.committer.commit(live.stage(rows(8, 2)))
    assert [text.partition(":")[0] for text in live.audit(entries)] == [f"commit {n}" for n in range(left + 1, 5)]
    newer = Live(lake.sink(), tmp_path, run=2)
    assert newer.number == left
    again = [newer.commit(rows(number * 2, 2)) for number in range(left, 4)]
    assert lake.ids() == list(range(8))
    assert newer.audit([*entries[:left], *again]) == []
    third = Live(lake.sink(), tmp_path, run=3)
    assert third.number == 4
    assert DeltaTable(lake.path, version=versions[4]).to_pyarrow_table().num_rows == 8, "its files stay"
    with pytest.raises(FencedError):
        live.committer.claim(1)


def test_a_table_that_is_set_forward_again_has_all_commits(lake: DeltaLake, tmp_path: Path) -> None:
    live, entries, versions = begun(lake, tmp_path)
    lake.table.restore(versions[1])
    Live(lake.sink(), tmp_path, run=2)  # claims, and notes what is left
    assert newest_of(lake, tmp_path) == entries[0]
    lake.table.restore(versions[4])
    assert newest_of(lake, tmp_path) == entries[3]
    newer = Live(lake.sink(), tmp_path, run=3)
    entries.append(newer.commit(rows(8, 2)))
    assert lake.ids() == list(range(10))
    assert newer.audit(entries) == []
    with pytest.raises(FencedError):
        live.committer.claim(2)


def test_what_is_left_is_known_when_the_log_was_cleaned_up_since(lake: DeltaLake, tmp_path: Path) -> None:
    _, entries, versions = begun(lake, tmp_path)
    lake.table.restore(versions[2])
    Live(lake.sink(), tmp_path, run=2)
    lake.write(100, 1)
    lake.expire()
    assert newest_of(lake, tmp_path) == entries[1]
    newer = Live(lake.sink(), tmp_path, run=3)
    assert newer.number == 2
    newer.commit(rows(4, 2))
    assert lake.ids() == [*range(6), 100]


def test_versions_of_others_are_looked_through(lake: DeltaLake, tmp_path: Path) -> None:
    live, entries, versions = begun(lake, tmp_path, commits=1)
    lake.write(100, 1)
    entries.append(live.commit(rows(2, 2)))
    lake.table.restore(versions[1])
    lake.write(200, 1)
    with pytest.raises(CommitUnknownError, match=r"has commit 1 .* would write commit 3: it was set back"):
        live.committer.commit(live.stage(rows(4, 2)))
    assert newest_of(lake, tmp_path) == entries[0]
    newer = Live(lake.sink(), tmp_path, run=2)
    newer.commit(rows(2, 2))
    assert lake.ids() == [0, 1, 2, 3, 200]


def test_a_restore_behind_what_the_log_still_says_is_refused_by_name(lake: DeltaLake, tmp_path: Path) -> None:
    live, _, versions = begun(lake, tmp_path, commits=2)
    lake.table.create_checkpoint()
    for _ in range(2):
        live.commit(rows(10, 2))
    target = versions[2]
    for version in range(target):
        (lake.path / "_delta_log" / f"{version:020d}.json").unlink()
    entry = lake.path / "_delta_log" / f"{target:020d}.json"
    lake.table.restore(target)
    entry.unlink()
    restored = lake.table.version()
    with pytest.raises(RefusedError, match=rf"{restored:020d}\.json restores .* VERSION AS OF {restored - 1}"):
        newest_of(lake, tmp_path)


def test_a_restore_to_a_time_is_refused_by_name(lake: DeltaLake, tmp_path: Path) -> None:
    """As Spark writes it: the version is null, and the timestamp is there."""
    _, _, versions = begun(lake, tmp_path, commits=2)
    lake.table.restore(versions[1])
    newest = lake.table.version()
    entry = lake.path / "_delta_log" / f"{newest:020d}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"]["operationParameters"] = {"version": None, "timestamp": "2026-11-27 12:00:00.0"}
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RefusedError, match=rf"{newest:020d}\.json restores the table to a time"):
        newest_of(lake, tmp_path)


def test_a_commit_reads_no_entry_as_long_as_nobody_else_writes(
    lake: DeltaLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, _, _ = begun(lake, tmp_path, commits=1)
    real, read = DeltaFiles.read, []

    def noted(files: DeltaFiles, name: str) -> bytes:
        read.append(name)
        return real(files, name)

    monkeypatch.setattr(DeltaFiles, "read", noted)
    for number in range(1, 4):
        live.commit(rows(number * 2, 2))
    assert [name for name in read if "_delta_log" in name] == []
