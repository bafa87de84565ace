"""What the sinks that write versions of a table have in common, whichever table it is; each adds its own tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    FencedError,
    RecordRefusedError,
)
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext, SinkEntry
from airflow_provider_exactlyonce.tables.offsets import TableOffsets
from tests.flushed_names import FlushedNames
from tests.integration.streaming.sinks.lake import (
    COLUMNS,
    EVERY_TYPE,
    FAR_TIMES,
    FAR_VALUES,
    ODD,
    PIPELINE,
    VALUES,
    Lake,
    Live,
    rows,
)

Audited = tuple[Live, list[SinkEntry]]


class TableContract:
    """Derive from it where a fixture gives the ``lake``."""

    def test_every_type_comes_back_as_it_was_by_two_readers(self, lake: Lake, tmp_path: Path) -> None:
        Live(lake.sink(), tmp_path, columns=EVERY_TYPE).commit(VALUES[:1], VALUES[1:])
        assert lake.rows() == VALUES
        assert lake.library_rows() == VALUES

    def test_times_of_which_python_has_none_are_written_as_they_are(self, lake: Lake, tmp_path: Path) -> None:
        Live(lake.sink(), tmp_path, columns=FAR_TIMES).commit(FAR_VALUES[:3], FAR_VALUES[3:])
        assert lake.numbers() == FAR_VALUES

    def test_a_day_of_which_python_has_none_makes_no_partition(self, lake: Lake, tmp_path: Path) -> None:
        live = Live(lake.sink(partition_by="date"), tmp_path, columns=FAR_TIMES)
        for given in FAR_VALUES[1:3]:
            with pytest.raises(RecordRefusedError, match="of a year before 1 or after 9999"):
                live.stage([given])
            live.committer.abort()
        live.commit(FAR_VALUES[::3])
        assert len(lake.current_files()) == 2

    def test_odd_values_of_partitions_come_back_as_they_were(self, lake: Lake, tmp_path: Path) -> None:
        given = [{"id": number, "k": value} for number, value in enumerate(ODD)]
        Live(lake.sink(partition_by="k"), tmp_path).commit(given)
        assert lake.rows() == given
        assert lake.library_rows() == given
        assert len(lake.files()) == len(ODD)

    def test_a_file_that_has_its_size_is_closed_and_another_begun(self, lake: Lake, tmp_path: Path) -> None:
        columns = T.StructType().add("id", T.LongType()).add("b", T.BinaryType())
        live = Live(lake.sink(compression="none", max_file_bytes=2**20), tmp_path, columns=columns)
        given = [{"id": number, "b": os.urandom(100_000)} for number in range(55)]
        live.commit(given)
        assert lake.rows() == given
        sizes = sorted(file.stat().st_size for file in lake.current_files())
        assert len(sizes) == 5
        assert all(2**20 <= size < 2**20 + 110_000 for size in sizes), sizes

    def test_what_is_committed_is_found_again_after_a_loss_of_power(
        self, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = FlushedNames(tmp_path, monkeypatch)
        live = Live(lake.sink(), tmp_path)
        live.commit(rows(0, 5))
        assert live.committer.dataset is not None
        files = [path for path in Path(live.committer.dataset[1]).rglob("*") if path.is_file()]
        assert {file for file in lake.files() if file.exists()} <= set(files)
        assert names.lost(files) == set()

    def test_lineage_is_told_the_directory_in_which_the_rows_are(self, lake: Lake, tmp_path: Path) -> None:
        live = Live(lake.sink(), tmp_path)
        live.commit(rows(0, 5))
        assert live.committer.dataset is not None
        namespace, name = live.committer.dataset
        assert namespace == "file"
        assert lake.files()
        assert all(file.is_relative_to(name) for file in lake.files())

    def test_lineage_knows_the_table_as_a_source_by_the_name_that_it_has_as_a_sink(
        self, lake: Lake, tmp_path: Path
    ) -> None:
        live = Live(lake.sink(), tmp_path)
        live.commit(rows(0, 5))
        assert TableOffsets(lake.log()).dataset == live.committer.dataset

    def test_lineage_is_told_the_version_that_the_newest_commit_has_made(
        self, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        live = Live(lake.sink(), tmp_path)

        def told(run: Live) -> tuple[int, str | None]:
            table = run.committer.written_table
            assert table is not None and dict(table.columns) == {"id": "bigint", "k": "string"}
            return table.commit, table.version

        assert told(live) == (0, None)
        live.commit(rows(0, 2))
        assert told(live) == (1, lake.newest_version())
        lake.write(1000, 2)

        def lose_the_answer(write: Callable[[], None]) -> None:
            write()
            raise ConnectionError("the answer was lost")

        lake.at_next_write(monkeypatch, lose_the_answer)
        live.commit(rows(2, 2))
        second = lake.newest_version()
        assert told(live) == (2, second)
        lake.write(2000, 2)
        again = Live(lake.sink(), tmp_path, run=2)
        assert told(again) == (2, second), "its claim is a version, too"
        again.commit(rows(4, 2))
        assert told(again) == (3, lake.newest_version())

    # Others, and zombies

    def test_two_pipelines_write_to_one_table(self, lake: Lake, tmp_path: Path) -> None:
        lives = [Live(lake.sink(), tmp_path, pipeline=name) for name in (PIPELINE, "other")]
        entries: list[list[SinkEntry]] = [[], []]
        for number in range(5):
            staged = [live.stage(rows(number * 10 + index * 5, 5)) for index, live in enumerate(lives)]
            for live, entry, noted in zip(lives, staged, entries, strict=True):
                live.decide(entry)
                noted.append(entry)
        assert lake.ids() == list(range(50))
        assert [live.audit(noted) for live, noted in zip(lives, entries, strict=True)] == [[], []]
        assert Live(lake.sink(), tmp_path, run=2).number == 5

    def test_a_zombie_with_an_older_or_a_fresh_handle_commits_nothing(self, lake: Lake, tmp_path: Path) -> None:
        old = Live(lake.sink(), tmp_path)
        entry = old.stage(rows(0, 2))
        successor = Live(lake.sink(), tmp_path, run=2)
        with pytest.raises(FencedError, match="run 1 of pipeline shop is superseded by run 2"):
            old.committer.commit(entry)
        again = lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path))
        again.expect_columns(COLUMNS)
        with pytest.raises(FencedError):
            again.claim(1)
        successor.commit(rows(0, 2))
        assert lake.ids() == [0, 1]

    def test_a_run_whose_number_is_given_to_another_is_superseded(self, lake: Lake, tmp_path: Path) -> None:
        old = Live(lake.sink(), tmp_path)
        entries = [old.commit(rows(0, 2))]
        frozen = old.stage(rows(2, 2))
        successor = Live(lake.sink(), tmp_path)
        with pytest.raises(FencedError, match="run 1 of pipeline shop is superseded by another driver"):
            old.committer.commit(frozen)
        with pytest.raises(FencedError):
            old.committer.claim(1)
        entries += [successor.commit(rows(number, 2)) for number in (2, 4)]
        assert (lake.ids(), successor.audit(entries)) == (list(range(6)), [])
        lake.write(100, 1)
        lake.expire()
        with pytest.raises(FencedError):
            old.committer.claim(1)

    def test_a_run_that_claims_again_goes_on_after_its_own_claims(
        self, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        live = Live(lake.sink(), tmp_path)
        live.commit(rows(0, 2))
        late: list[Callable[[], None]] = []

        def delay(write: Callable[[], None]) -> None:
            late.append(write)
            raise ConnectionError("no answer yet")

        lake.at_next_write(monkeypatch, delay)
        with pytest.raises(BatchFailedError, match="claim of run 1"):
            live.committer.claim(1)
        late[0]()
        for _ in range(2):
            assert live.committer.claim(1) is not None
        live.commit(rows(2, 2))
        assert lake.ids() == [0, 1, 2, 3]

    def test_a_claim_of_a_release_that_gave_them_no_numbers_is_followed_and_supersedes(
        self, lake: Lake, tmp_path: Path
    ) -> None:
        Live(lake.sink(), tmp_path).commit(rows(0, 2))
        lake.claim_as_in_0_1_0(2)
        live = Live(lake.sink(), tmp_path, run=3)
        live.commit(rows(2, 2))
        entry = live.stage(rows(4, 2))
        lake.claim_as_in_0_1_0(4)
        with pytest.raises(FencedError, match="run 3 of pipeline shop is superseded by run 4"):
            live.committer.commit(entry)
        assert lake.ids() == [0, 1, 2, 3]

    @pytest.mark.parametrize(("run", "by"), [(3, "run 3"), (2, "another driver with the same run number")])
    def test_a_run_that_was_frozen_in_its_claim_and_was_followed_is_superseded(
        self, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: int, by: str
    ) -> None:
        kind = type(Live(lake.sink(), tmp_path).committer._table)  # type: ignore[attr-defined]
        real = kind.keep_after

        def keep_after(table: object, version: object) -> None:
            monkeypatch.setattr(kind, "keep_after", real)
            Live(lake.sink(), tmp_path, run=run).commit(rows(0, 2))
            real(table, version)

        monkeypatch.setattr(kind, "keep_after", keep_after)
        with pytest.raises(FencedError, match=f"run 2 of pipeline shop is superseded by {by}"):
            Live(lake.sink(), tmp_path, run=2)
        assert lake.ids() == [0, 1]

    @pytest.mark.parametrize("number", [1, 2])
    def test_a_run_that_was_frozen_since_its_claim_leaves_a_successors_attempt_alone(
        self, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        kind = type(Live(lake.sink(), tmp_path).committer)
        real = kind._sweep  # type: ignore[attr-defined]

        def sweep(committer: object, *given: object) -> None:
            monkeypatch.setattr(kind, "_sweep", real)
            successor = Live(lake.sink(), tmp_path, run=number)
            entry = successor.stage(rows(0, 2))
            real(committer, *given)
            successor.decide(entry)

        monkeypatch.setattr(kind, "_sweep", sweep)
        Live(lake.sink(), tmp_path, run=1)
        assert lake.ids() == [0, 1]

    @pytest.mark.parametrize("number", [1, 2])
    def test_a_run_that_was_frozen_right_after_its_claim_leaves_a_successors_attempt_alone(
        self, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        staged: list[tuple[Live, SinkEntry]] = []

        def reach(name: str) -> None:
            if name == "after-sink-fence" and not staged:
                monkeypatch.undo()
                successor = Live(lake.sink(), tmp_path, run=number)
                staged.append((successor, successor.stage(rows(0, 2))))

        monkeypatch.setattr(failpoints, "reach", reach)
        with pytest.raises(FencedError):
            Live(lake.sink(), tmp_path, run=1)
        for successor, entry in staged:
            successor.decide(entry)
        assert lake.ids() == [0, 1]

    @pytest.mark.parametrize(
        "change", [lambda lake: lake.write(1000, 2), lambda lake: lake.widen()], ids=["rows", "column"]
    )
    def test_a_change_between_look_and_write_is_followed(
        self, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Lake], None]
    ) -> None:
        live = Live(lake.sink(), tmp_path)
        live.commit(rows(0, 2))

        def be_faster(write: Callable[[], None]) -> None:
            change(lake)
            write()

        lake.at_next_write(monkeypatch, be_faster)
        live.commit(rows(10, 2))
        assert [number for number in lake.ids() if number < 1000] == [0, 1, 10, 11]

    # Outcomes that nobody knows

    def test_a_claim_whose_answer_is_lost_each_time_is_found(
        self, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        live = Live(lake.sink(), tmp_path)
        live.commit(rows(0, 2))
        kind, name = lake.WRITER
        real, lost = getattr(kind, name), list[str]()

        def lose_the_answer(*given: Any, **named: Any) -> None:
            real(*given, **named)
            lost.append(name)
            if len(lost) > 1:
                pytest.fail("its own claim is written over")
            raise ConnectionError("the answer was lost")

        with monkeypatch.context() as losing:
            losing.setattr(kind, name, lose_the_answer)
            successor = Live(lake.sink(), tmp_path, run=2)
        successor.commit(rows(2, 2))
        assert (len(lost), lake.ids()) == (1, [0, 1, 2, 3])
        with pytest.raises(FencedError):
            live.committer.claim(1)

    def test_a_commit_whose_answer_is_lost_is_found(
        self, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        live = Live(lake.sink(), tmp_path)

        def lose_the_answer(write: Callable[[], None]) -> None:
            write()
            raise ConnectionError("the answer was lost")

        lake.at_next_write(monkeypatch, lose_the_answer)
        live.commit(rows(0, 2))
        live.commit(rows(2, 2))
        assert lake.ids() == [0, 1, 2, 3]
        assert len(lake.files()) == 2

    def test_a_commit_whose_request_is_lost_is_in_doubt_until_a_claim(
        self, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        live = Live(lake.sink(), tmp_path)
        entry = live.stage(rows(0, 2))

        def lose_the_request(_: Callable[[], None]) -> None:
            raise ConnectionError("the request was lost")

        lake.at_next_write(monkeypatch, lose_the_request)
        with pytest.raises(CommitUnknownError, match=r"the \w+ of table .* after \d+ may be written or not"):
            live.committer.commit(entry)
        assert len(lake.files()) == 1, "they may be committed"
        assert live.committer.claim(1) is None
        assert lake.files() == []
        live.commit(rows(0, 2))
        assert lake.ids() == [0, 1]

    def test_a_request_that_arrives_after_the_claim_that_decided_is_refused(
        self, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        live = Live(lake.sink(), tmp_path)
        entry = live.stage(rows(0, 2))
        late: list[Callable[[], None]] = []

        def delay(write: Callable[[], None]) -> None:
            late.append(write)
            raise ConnectionError("no answer yet")

        lake.at_next_write(monkeypatch, delay)
        with pytest.raises(CommitUnknownError):
            live.committer.commit(entry)
        assert live.committer.claim(1) is None
        with pytest.raises(lake.REFUSAL):
            late[0]()
        live.commit(rows(0, 2))
        assert lake.ids() == [0, 1]

    def test_a_commit_whose_answer_is_lost_until_a_successor_has_committed_keeps_its_files(
        self, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        live = Live(lake.sink(), tmp_path)
        entry = live.stage(rows(0, 2))

        def lose_the_answer(write: Callable[[], None]) -> None:
            write()
            successor = Live(lake.sink(), tmp_path, run=2)
            assert successor.number == 1
            successor.commit(rows(2, 2))
            raise ConnectionError("the answer was lost")

        lake.at_next_write(monkeypatch, lose_the_answer)
        with pytest.raises(CommitUnknownError, match="has commit 2 by another attempt than the one at 1"):
            live.committer.commit(entry)
        with pytest.raises(FencedError):
            live.committer.claim(1)
        assert lake.ids() == [0, 1, 2, 3]

    # What is left over, and what was expired

    def test_what_a_task_that_ran_twice_has_left_goes_when_the_commit_is_settled(
        self, lake: Lake, tmp_path: Path
    ) -> None:
        live = Live(lake.sink(), tmp_path)
        entry = live.stage(rows(0, 2))
        (kept,) = lake.files()
        shutil.copy(kept, kept.with_name("00000-twice.parquet"))
        live.committer.commit(entry)
        assert len(lake.files()) == 2
        live.committer.settled(1)
        assert lake.files() == [kept]

    def test_files_that_the_driver_does_not_see_are_not_committed(self, lake: Lake, tmp_path: Path) -> None:
        live = Live(lake.sink(), tmp_path)
        written = live.write(live.begin(), 0, rows(0, 2))
        lake.files()[0].unlink()
        with pytest.raises(BatchFailedError, match="is not there for the driver: both have to see the same table"):
            live.committer.pre_commit([written])

    def test_the_newest_commit_is_known_when_its_version_has_expired(self, lake: Lake, tmp_path: Path) -> None:
        live = Live(lake.sink(), tmp_path)
        entries = [live.commit(rows(0, 2)), live.commit(rows(2, 2))]
        lake.write(100, 1)
        lake.compact()
        lake.expire()
        assert lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail() == entries[-1]
        newer = Live(lake.sink(), tmp_path, run=2)
        assert newer.number == 2
        entries.append(newer.commit(rows(4, 2)))
        assert lake.ids() == [0, 1, 2, 3, 4, 5, 100]
        assert newer.audit(entries) == []
        with pytest.raises(FencedError):
            live.committer.claim(1)

    @pytest.mark.parametrize("superseded", [False, True])
    def test_a_run_that_was_frozen_for_longer_than_versions_are_kept_sees_what_happened(
        self, lake: Lake, tmp_path: Path, superseded: bool
    ) -> None:
        live = Live(lake.sink(), tmp_path)
        live.commit(rows(0, 2))
        entry = live.stage(rows(2, 2))
        if superseded:
            Live(lake.sink(), tmp_path, run=2).commit(rows(2, 2))
        for _ in range(3):
            lake.write(100, 1)
        lake.expire()
        if superseded:
            with pytest.raises(FencedError):
                live.committer.commit(entry)
        else:
            live.committer.commit(entry)
        assert lake.ids() == [0, 1, 2, 3, 100, 100, 100]

    # The audit

    @pytest.fixture
    def audited(self, lake: Lake, tmp_path: Path) -> Audited:
        live = Live(lake.sink(), tmp_path)
        entries = [live.commit(rows(number * 10, 10)) for number in range(3)]
        assert live.audit(entries) == []
        return live, entries

    def test_the_audit_names_files_that_are_gone_or_cut(self, audited: Audited, lake: Lake) -> None:
        live, entries = audited
        first, second, _ = lake.files()
        first.unlink()
        second.write_bytes(second.read_bytes()[:-1])
        findings = live.audit(entries)
        assert len(findings) == 2
        assert any(f"{first}: a file of the table with 10 rows is missing" in finding for finding in findings)
        assert any(str(second) in finding and " bytes, and the " in finding for finding in findings)

    @pytest.mark.parametrize("compression", ["none", "zstd"])
    def test_the_audit_by_checksums_names_the_commit_of_a_file_whose_contents_have_changed(
        self, lake: Lake, tmp_path: Path, compression: str
    ) -> None:
        live = Live(lake.sink(compression=compression), tmp_path)
        entries = [live.commit([{"id": number, "k": f"text {number}"}]) for number in range(3)]
        lake.write(100, 2)
        assert live.audit_with_checksums(entries) == []
        (changed,) = (file for file in lake.files() if b"text 1" in file.read_bytes())
        changed.write_bytes(changed.read_bytes().replace(b"text 1", b"text 7"))
        assert live.audit(entries) == []
        (finding,) = live.audit_with_checksums(entries)
        assert finding.startswith("commit 2: ") and f"{changed}: it can't be read: " in finding

    def test_the_audit_names_rows_that_others_have_removed(self, audited: Audited, lake: Lake) -> None:
        live, entries = audited
        lake.delete("id = 15")
        (finding,) = live.audit(entries)
        assert finding.startswith("commit 2: ") and ") has changed or removed rows" in finding

    def test_the_audit_names_a_commit_that_the_ledger_lacks(self, audited: Audited) -> None:
        live, entries = audited
        assert live.audit(entries[:2]) == [], "the next one may be under way"
        (finding,) = live.audit(entries[:1])
        assert finding.startswith("commit 3: table ") and "the pipeline's ledger not" in finding

    def test_the_audit_says_that_there_is_no_table(self, lake: Lake, tmp_path: Path) -> None:
        entry = SinkEntry(commit=1, run=1, lineage="l", batch=0, source={}, rows=1, digest=1)
        (finding,) = lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path)).audit([entry])
        assert finding.startswith("commit 1: there is no table ")
