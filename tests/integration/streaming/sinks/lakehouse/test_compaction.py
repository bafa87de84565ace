"""Small files that a sink writes together: killed, held and superseded at each step, beside others, and what is left.

The rows are judged one by one by readers that share no code with the sinks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import types as T

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.exceptions import BatchFailedError
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry
from tests.integration.streaming.sinks.compacting_run import (
    DELTA,
    EVERY,
    ICEBERG,
    ICEBERG_UPSERTS,
    UPSERTS,
    CompactingRun,
    batch_of,
    expected_rows,
    lake_of,
)
from tests.integration.streaming.sinks.lake import COLUMNS, EVERY_TYPE, ODD, VALUES, Lake, Live, rows
from tests.waiting import HANG_SECONDS, eventually

BEGUN, WRITTEN, COMMITTED = failpoints.COMPACTION_NAMES


@pytest.fixture(params=[DELTA, ICEBERG])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return lake_of(request.param, tmp_path / "lake")


def due(lake: Lake, home: Path) -> tuple[Live, list[SinkEntry]]:
    """Return a run that has committed what is to be written together, and was not told yet that it is settled."""
    live = Live(lake.sink(compact_every=3), home)
    entries = [live.commit(rows(0, 5)), live.commit(rows(5, 5)), live.stage(rows(10, 5))]
    live.committer.commit(entries[-1])
    live.number += 1
    return live, entries


# What is written together


def test_many_small_batches_leave_few_files_and_each_row(lake: Lake, tmp_path: Path) -> None:
    live = Live(lake.sink(compact_every=10, partition_by="k"), tmp_path)
    entries = [live.commit(rows(number * 6, 6)) for number in range(20)]
    assert lake.rows() == lake.library_rows() == rows(0, 120)
    assert live.audit(entries) == []
    assert len(lake.current_files()) == 3, "one of each partition"
    entries += [live.commit(rows(120 + number * 6, 6)) for number in range(9)]
    assert len(lake.current_files()) == 3 + 9 * 3
    assert lake.rows() == rows(0, 174)
    assert live.audit(entries) == []
    assert set(lake.files()) == lake.named_files()
    assert Live(live.sink, tmp_path, run=2).number == 29


def test_a_commit_is_followed_by_one_compaction_and_a_claim_by_none(lake: Lake, tmp_path: Path) -> None:
    due(lake, tmp_path)
    live = Live(lake.sink(compact_every=3), tmp_path)
    live.committer.settled(3)
    assert len(lake.current_files()) == 3, "a driver that dies of it must not do it again at each start"
    for number in range(3):
        live.commit(rows(15 + number, 1))
    assert len(lake.current_files()) == 1
    before = lake.files()
    live.committer.settled(6)
    assert lake.files() == before


def test_what_one_compaction_leaves_the_next_commits_go_on_with(lake: Lake, tmp_path: Path) -> None:
    columns = T.StructType().add("id", T.LongType()).add("b", T.BinaryType())
    live = Live(lake.sink(compact_every=8, max_file_bytes=2**20), tmp_path, columns=columns)
    given = [{"id": number, "b": os.urandom(300_000)} for number in range(11)]
    counts = []
    for row in given:
        live.commit([row])
        counts.append(len(lake.current_files()))
    assert counts == [1, 2, 3, 4, 5, 6, 7, 6, 5, 4, 5], "three files make one, and none is left after the tenth commit"
    assert lake.rows() == given


def test_every_type_comes_back_as_it_was(lake: Lake, tmp_path: Path) -> None:
    live = Live(lake.sink(compact_every=len(VALUES)), tmp_path, columns=EVERY_TYPE)
    for value in VALUES:
        live.commit([value])
    assert len(lake.current_files()) == 1
    assert lake.rows() == lake.library_rows() == VALUES


def test_odd_values_of_partitions_come_back_as_they_were(lake: Lake, tmp_path: Path) -> None:
    live = Live(lake.sink(compact_every=3, partition_by="k"), tmp_path)
    given = [{"id": number, "k": ODD[number % len(ODD)]} for number in range(3 * len(ODD))]
    for number in range(3):  # of two the larger one stays as it is, and checksums are not all of one length
        live.commit(given[number * len(ODD) : (number + 1) * len(ODD)])
    assert len(lake.current_files()) == len(ODD)
    assert lake.rows() == lake.library_rows() == given


def test_columns_that_the_rows_lack_are_kept_and_those_that_files_lack_are_null(lake: Lake, tmp_path: Path) -> None:
    Live(lake.sink(), tmp_path).commit(rows(0, 1))
    lake.widen()
    wider = T.StructType([*COLUMNS, T.StructField("more", T.StringType())])
    Live(lake.sink(), tmp_path, run=2, columns=wider).commit([{"id": 1, "k": "k1", "more": "m"}])
    Live(lake.sink(compact_every=3), tmp_path, run=3).commit(rows(2, 1))
    assert len(lake.current_files()) == 1
    assert lake.rows() == [{**row, "more": "m" if row["id"] == 1 else None} for row in rows(0, 3)]


def test_what_others_have_written_is_left_to_them(lake: Lake, tmp_path: Path) -> None:
    live = Live(lake.sink(compact_every=3), tmp_path)
    other = Live(lake.sink(), tmp_path, pipeline="other")
    for number in range(3):
        other.commit(rows(100 + number, 1))
        lake.write(200 + number, 1)
        live.commit(rows(number, 1))
    assert len(lake.current_files()) == 3 + 3 + 1
    assert lake.ids() == [0, 1, 2, 100, 101, 102, 200, 201, 202]


def test_the_audit_names_rows_that_were_removed_after_a_compaction(lake: Lake, tmp_path: Path) -> None:
    live, entries = due(lake, tmp_path)
    live.committer.settled(3)
    assert live.audit(entries) == []
    lake.delete("id = 7")
    (finding,) = live.audit(entries)
    assert finding.startswith("commits 1 to 3: ") and "has changed or removed rows" in finding


# Killed, held, superseded


def step_of(folder: Path, kind: str, step: str, commits: int = EVERY) -> subprocess.Popen[str]:
    """Start a run of a process that something happens to at a step."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.integration.streaming.sinks.compacting_run",
            kind,
            str(folder),
            "1",
            str(commits),
        ],
        env={**os.environ, failpoints.VARIABLE: step},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )


def entries_of(kind: str, first: int, last: int, run: int) -> list[SinkEntry]:
    """Return the ledger's entries of some commits."""
    return [
        SinkEntry(
            commit=number,
            run=run,
            lineage="l",
            batch=number - 1,
            source={"events": {0: (number - 1, number)}},
            rows=len(batch_of(kind, number - 1)),
            digest=len(batch_of(kind, number - 1)),
        )
        for number in range(first, last + 1)
    ]


def check(compacting: CompactingRun, entries: list[SinkEntry], batches: int) -> None:
    assert compacting.lake.rows() == expected_rows(compacting.kind, batches)
    assert compacting.live.audit(entries) == []


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        (DELTA, BEGUN),
        (ICEBERG, COMMITTED),
        *(
            pytest.param(kind, step, marks=pytest.mark.slow)
            for kind, step in [
                (DELTA, WRITTEN),
                (UPSERTS, WRITTEN),
                (DELTA, COMMITTED),
                (UPSERTS, BEGUN),
                (UPSERTS, COMMITTED),
                (ICEBERG, BEGUN),
                (ICEBERG, WRITTEN),
                (ICEBERG_UPSERTS, BEGUN),
                (ICEBERG_UPSERTS, WRITTEN),
                (ICEBERG_UPSERTS, COMMITTED),
            ]
        ),
    ],
)
def test_a_run_that_dies_at_a_step_leaves_each_row_once(tmp_path: Path, kind: str, step: str) -> None:
    killed = step_of(tmp_path, kind, step)
    _, said = killed.communicate(timeout=HANG_SECONDS)
    assert killed.returncode == -signal.SIGKILL, said
    successor = CompactingRun(kind, tmp_path, 2)
    assert successor.live.number == EVERY
    entries = entries_of(kind, 1, EVERY, run=1)
    check(successor, entries, EVERY)
    for _ in range(EVERY):
        successor.commit()
    check(successor, [*entries, *successor.entries], 2 * EVERY)
    assert len(successor.lake.current_files()) == 3, "one of each partition"
    left = set(successor.lake.files()) - successor.lake.named_files()
    assert bool(left) == (step == WRITTEN), "files that somebody has tried to commit stay"
    assert all("compaction-" in str(file) for file in left)


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        (UPSERTS, WRITTEN),
        *(
            pytest.param(kind, step, marks=pytest.mark.slow)
            for kind, step in [
                (ICEBERG, WRITTEN),
                (DELTA, BEGUN),
                (DELTA, WRITTEN),
                (UPSERTS, BEGUN),
                (ICEBERG, BEGUN),
                (ICEBERG_UPSERTS, WRITTEN),
            ]
        ),
    ],
)
def test_a_superseded_run_that_was_held_in_a_compaction_changes_nothing(tmp_path: Path, kind: str, step: str) -> None:
    """At the second step it has checked claim and files, and what it does next is to write the version."""
    held = tmp_path / "held"
    old = step_of(tmp_path, kind, f"{step}:hold={held}")
    eventually(held.exists, "the old run is at its step")
    successor = CompactingRun(kind, tmp_path, 2)
    for _ in range(2 * EVERY - 1):
        successor.commit()
    held.unlink()
    _, said = old.communicate(timeout=HANG_SECONDS)
    assert old.returncode == 66, said
    check(successor, [*entries_of(kind, 1, EVERY, run=1), *successor.entries], 3 * EVERY - 1)
    successor.commit()
    check(successor, [*entries_of(kind, 1, EVERY, run=1), *successor.entries], 3 * EVERY)


# Beside others


def test_rows_that_others_delete_between_look_and_write_stay_deleted(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, _ = due(lake, tmp_path)

    def be_faster(write: Callable[[], None]) -> None:
        lake.delete("id = 7")
        write()

    lake.at_next_write(monkeypatch, be_faster)
    with pytest.raises(BatchFailedError, match=r"after commit 3: others have taken out .* left to the next time"):
        live.committer.settled(3)
    expected = [row for row in rows(0, 15) if row["id"] != 7]
    assert lake.rows() == expected
    for number in range(3):
        live.commit(rows(15 + number, 1))
    assert lake.rows() == expected + rows(15, 3)
    assert [row["id"] for row in lake.library_rows()] == lake.ids()


@pytest.mark.parametrize(
    "change", [lambda lake: lake.write(1000, 2), lambda lake: lake.widen()], ids=["rows", "column"]
)
def test_a_change_between_look_and_write_that_leaves_the_files_is_followed(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Lake], None]
) -> None:
    live, entries = due(lake, tmp_path)

    def be_faster(write: Callable[[], None]) -> None:
        change(lake)
        write()

    lake.at_next_write(monkeypatch, be_faster)
    live.committer.settled(3)
    assert len([file for file in lake.current_files() if file in lake.files() and "compaction-" in str(file)]) == 1
    assert [number for number in lake.ids() if number < 1000] == list(range(15))
    assert live.audit(entries) == []


def test_a_compaction_whose_answer_is_lost_is_found(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, entries = due(lake, tmp_path)

    def lose_the_answer(write: Callable[[], None]) -> None:
        write()
        raise ConnectionError("the answer was lost")

    lake.at_next_write(monkeypatch, lose_the_answer)
    live.committer.settled(3)
    entries.append(live.commit(rows(15, 5)))
    assert lake.rows() == rows(0, 20)
    assert len(lake.current_files()) == 2
    assert live.audit(entries) == []


@pytest.mark.parametrize("is_late", [False, True])
def test_a_compaction_whose_request_is_lost_or_late_is_no_error_of_a_batch(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    live, entries = due(lake, tmp_path)
    late: list[Callable[[], None]] = []

    def lose_the_request(write: Callable[[], None]) -> None:
        late.append(write)
        raise ConnectionError("the request was lost")

    lake.at_next_write(monkeypatch, lose_the_request)
    with pytest.raises(BatchFailedError, match="may be written or not"):
        live.committer.settled(3)
    if is_late:
        late[0]()
    entries.append(live.commit(rows(15, 5)))
    if not is_late:
        with pytest.raises(lake.REFUSAL):
            late[0]()
    assert len(lake.current_files()) == (2 if is_late else 4)
    assert lake.rows() == rows(0, 20)
    assert Live(live.sink, tmp_path, run=2).number == 4
    assert lake.named_files() <= set(lake.files()), "what may be in the table is not removed"
    assert lake.rows() == rows(0, 20)
    assert live.audit(entries) == []


@pytest.mark.slow
def test_compactions_of_two_pipelines_run_beside_each_other_and_beside_appends(lake: Lake, tmp_path: Path) -> None:
    lives = [Live(lake.sink(compact_every=2), tmp_path, pipeline=name) for name in ("shop", "other")]

    def run(live: Live, first: int) -> list[SinkEntry]:
        return [live.commit(rows(first + 5 * number, 5)) for number in range(8)]

    with ThreadPoolExecutor() as threads:
        running = [threads.submit(run, live, 100 * index) for index, live in enumerate(lives)]
        lake.insist(lambda: lake.write(1000, 5))
        entries = [of.result() for of in running]
    assert lake.rows() == rows(0, 40) + rows(100, 40) + rows(1000, 5)
    assert len(lake.current_files()) == 3
    assert [live.audit(noted) for live, noted in zip(lives, entries, strict=True)] == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "every"), [(DELTA, 20), (ICEBERG, 20), (DELTA, None)])
def test_a_thousand_commits_stay_whole_beside_compactions_maintenance_and_readers(
    tmp_path: Path, kind: str, every: int | None
) -> None:
    lake = lake_of(kind, tmp_path / "lake")
    maintain = lake.maintain if every else lake.compact
    lives = {
        first: Live(lake.sink(compact_every=every), tmp_path, pipeline=name)
        for first, name in ((0, "shop"), (10_000, "other"))
    }

    def run(live: Live, first: int) -> list[SinkEntry]:
        entries = []
        for number in range(500):
            entries.append(live.stage(rows(first + 4 * number, 4)))
            with suppress(BatchFailedError):  # of a compaction whose files others have compacted meanwhile
                live.decide(entries[-1])
        return entries

    with ThreadPoolExecutor() as threads:
        running = [threads.submit(run, live, first) for first, live in lives.items()]
        while not all(of.done() for of in running):
            with suppress(*lake.CONFLICTS):  # as in every day's maintenance: it is tried again
                maintain()
            seen = lake.ids()
            for first in lives:
                own = [number for number in seen if first <= number < first + 10_000]
                assert own == list(range(first, first + len(own) // 4 * 4)), "whole commits, each once, none left out"
        entries = [of.result() for of in running]
    assert lake.rows() == [row for first in lives for row in rows(first, 2000)]
    assert [live.audit(noted) for live, noted in zip(lives.values(), entries, strict=True)] == [[], []]
    assert len(lake.current_files()) < 200


@pytest.mark.slow  # two tests above have both orders of a deletion and a compaction
def test_deletions_of_others_beside_compactions_are_neither_lost_nor_undone(lake: Lake, tmp_path: Path) -> None:
    live = Live(lake.sink(compact_every=2), tmp_path)

    def run() -> None:
        for number in range(6):
            with suppress(BatchFailedError):
                live.commit(rows(5 * number, 5))

    with ThreadPoolExecutor() as threads:
        running = threads.submit(run)
        for number in range(0, 30, 5):
            eventually(partial(_is_there, lake, number, running), f"row {number} is there")
            lake.insist(partial(lake.delete, f"id = {number}"))
        running.result()
    assert lake.rows() == [row for row in rows(0, 30) if row["id"] % 5]
    assert live.number == 6


def _is_there(lake: Lake, number: int, running: Future[None]) -> bool:
    return number in lake.ids() or running.done()
