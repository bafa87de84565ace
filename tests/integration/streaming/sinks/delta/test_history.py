"""Delta tables that a ``RESTORE`` has set back or forward."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from airflow_provider_exactlyonce.exceptions import CommitUnknownError, FencedError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import DeltaFiles
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.attempts import AttemptNote
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext, SinkEntry
from tests.integration.streaming.sinks.delta.lake import LONG, TEXT, DeltaLake
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


def write_transactions(lake: DeltaLake, numbers: dict[str, int]) -> None:
    """Have others write some of the sink's transactions."""
    table, app = lake.table, f"{PIPELINE}/lake"
    written = CommitProperties(
        app_transactions=[Transaction(f"{app}{name}", number) for name, number in numbers.items()]
    )
    table.create_write_transaction([], "append", table.schema(), [], commit_properties=written)


def clean_up(lake: DeltaLake, before: int) -> None:
    """Remove entries of the log as its clean-up does: what they said is in a checkpoint."""
    for version in range(before):
        (lake.path / "_delta_log" / f"{version:020d}.json").unlink(missing_ok=True)


def test_a_restore_behind_what_the_log_still_says_is_refused_until_the_table_is_set_forward_as_it_says(
    lake: DeltaLake, tmp_path: Path
) -> None:
    live, entries, versions = begun(lake, tmp_path, commits=2)
    lake.table.create_checkpoint()
    for number in (2, 3):
        entries.append(live.commit(rows(number * 2, 2)))
    lake.table.restore(versions[2])
    lake.table.restore(versions[2])
    clean_up(lake, versions[2] + 1)
    for _ in range(2):
        with pytest.raises(RefusedError, match=r"\d{20}\.json restores the table, and nobody knows") as refused:
            newest_of(lake, tmp_path)
        (named,) = re.findall(r"VERSION AS OF (\d+)", str(refused.value))
        lake.table.restore(int(named))
    assert newest_of(lake, tmp_path) == entries[3]
    assert Live(lake.sink(), tmp_path, run=2).number == 4
    assert lake.ids() == list(range(8))


def test_a_restore_that_takes_out_no_commit_changes_nothing_though_the_log_was_cleaned_up(
    lake: DeltaLake, tmp_path: Path
) -> None:
    _, entries, _ = begun(lake, tmp_path, commits=1)
    lake.write(100, 1)
    lake.expire()
    kept = lake.table.version()
    lake.write(200, 1)
    lake.table.restore(kept)
    assert newest_of(lake, tmp_path) == entries[0]
    assert Live(lake.sink(), tmp_path, run=2).number == 1


def test_a_restore_behind_the_first_commit_leaves_nothing_though_the_log_was_cleaned_up(
    lake: DeltaLake, tmp_path: Path
) -> None:
    lake.create(LONG, TEXT)
    lake.write(100, 1)
    lake.expire()
    before = lake.table.version()
    begun(lake, tmp_path, commits=2)
    lake.table.restore(before)
    assert newest_of(lake, tmp_path) is None
    newer = Live(lake.sink(), tmp_path, run=2)
    assert newer.number == 0
    newer.commit(rows(0, 2))
    assert lake.ids() == [0, 1, 100]


def test_commits_that_were_made_twice_stay_readable_in_the_versions_that_have_them(
    lake: DeltaLake, tmp_path: Path
) -> None:
    _, entries, versions = begun(lake, tmp_path)
    lake.table.restore(versions[3])
    Live(lake.sink(), tmp_path, run=2).commit(rows(6, 2))
    second = lake.table.version()
    lake.table.restore(versions[4])
    assert Live(lake.sink(), tmp_path, run=3).number == 4
    assert newest_of(lake, tmp_path) == entries[3]
    assert DeltaTable(lake.path, version=second).to_pyarrow_table().num_rows == 8
    lake.table.restore(second)
    assert Live(lake.sink(), tmp_path, run=4).number == 4
    assert lake.ids() == list(range(8))


def restored_to_a_time(lake: DeltaLake, _: object = None) -> int:
    """Make the newest version a ``RESTORE`` to a time, as Spark writes it: the version is null."""
    newest = int(lake.table.version())
    entry = lake.path / "_delta_log" / f"{newest:020d}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"]["operationParameters"] = {"version": None, "timestamp": "2026-11-27 12:00:00.0"}
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return newest


def nothing(*_: object) -> None:
    """Nothing else happens."""


def superseded(lake: DeltaLake, home: Path) -> None:
    Live(lake.sink(), home, run=2)


@pytest.mark.parametrize("then", [nothing, restored_to_a_time, superseded])
def test_a_commit_that_was_restored_over_before_its_answer_was_lost_is_in_doubt_and_keeps_its_files(
    lake: DeltaLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: Callable[[DeltaLake, Path], object]
) -> None:
    live, _, versions = begun(lake, tmp_path, commits=1)
    entry = live.stage(rows(2, 2))
    real = DeltaLog.append

    def lose(*given: Any, **named: Any) -> None:
        monkeypatch.setattr(DeltaLog, "append", real)
        real(*given, **named)
        lake.table.restore(versions[1])
        then(lake, tmp_path)
        raise ConnectionError("no answer")

    monkeypatch.setattr(DeltaLog, "append", lose)
    with pytest.raises(CommitUnknownError):
        live.committer.commit(entry)
    assert DeltaTable(lake.path, version=versions[1] + 1).to_pyarrow_table().num_rows == 4


def test_a_restore_to_a_time_is_refused_by_name_until_one_to_a_version_follows(lake: DeltaLake, tmp_path: Path) -> None:
    _, entries, versions = begun(lake, tmp_path, commits=2)
    lake.table.restore(versions[1])
    newest = restored_to_a_time(lake)
    with pytest.raises(RefusedError, match=rf"{newest:020d}\.json restores the table, and nobody knows"):
        newest_of(lake, tmp_path)
    lake.table.restore(versions[1])
    assert newest_of(lake, tmp_path) == entries[0]


def test_a_restore_to_a_time_before_the_first_commit_is_no_finding(lake: DeltaLake, tmp_path: Path) -> None:
    lake.create(LONG, TEXT)
    lake.write(100, 1)
    lake.table.restore(0)
    restored_to_a_time(lake)
    live, entries, _ = begun(lake, tmp_path, commits=2)
    assert live.audit(entries) == []
    assert [text.partition(":")[0] for text in live.audit([*entries, replace(entries[1], commit=3)])] == ["commit 3"]


def test_transactions_that_a_checkpoint_of_others_has_wrong_are_corrected(lake: DeltaLake, tmp_path: Path) -> None:
    """Trino's checkpoints keep the greatest version of a transaction, and not the last."""
    _, entries, versions = begun(lake, tmp_path)
    lake.table.restore(versions[2])
    Live(lake.sink(), tmp_path, run=2)
    write_transactions(lake, {"": 4})
    assert newest_of(lake, tmp_path) == entries[1]
    newer = Live(lake.sink(), tmp_path, run=3)
    newer.commit(rows(4, 2))
    assert lake.ids() == list(range(6))


def test_the_note_of_an_older_commit_is_not_taken_for_the_newest_where_a_checkpoint_names_its_attempt(
    lake: DeltaLake, tmp_path: Path
) -> None:
    live = Live(lake.sink(), tmp_path)
    live.put(live.stage(rows(0, 2)))
    (note,) = lake.notes()
    older = AttemptNote.decoded(note.read_bytes(), str(note)).attempt
    newest = live.stage(rows(2, 2))
    live.put(newest)  # and is killed before it settles
    write_transactions(lake, {"/attempt": int.from_bytes(hashlib.sha256(older.encode()).digest()[:8], "big") >> 1})
    assert newest_of(lake, tmp_path) == newest
    newer = Live(lake.sink(), tmp_path, run=2)
    newer.commit(rows(4, 2))
    assert lake.ids() == list(range(6))


def test_a_restore_from_which_no_way_leads_back_says_so(lake: DeltaLake, tmp_path: Path) -> None:
    live, _, versions = begun(lake, tmp_path, commits=2)
    lake.table.create_checkpoint()
    live.commit(rows(4, 2))
    lake.table.restore(versions[2])
    lake.expire()
    with pytest.raises(RefusedError, match=r"restores the table, .* Put the table's directory back from a backup"):
        newest_of(lake, tmp_path)


def test_what_a_dead_attempt_has_left_is_removed_also_after_a_table_was_set_back(
    lake: DeltaLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, versions = begun(lake, tmp_path, commits=2)
    lake.table.restore(versions[1])
    newer = Live(lake.sink(), tmp_path, run=2)
    newer.commit(rows(2, 2))
    entry = newer.stage(rows(4, 2))

    def lose(*_: Any, **__: Any) -> None:
        raise ConnectionError("no answer, and nothing was written")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaLog, "append", lose)
        with pytest.raises(CommitUnknownError):
            newer.committer.commit(entry)
    Live(lake.sink(), tmp_path, run=3)
    assert set(lake.files()) == lake.named_files()


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
