"""The tests that every sink has to pass: a user runs them on a sink of their own with pytest, without Kafka and Spark.

    class TestMySink(SinkConformance):
        def make_sink(self, folder): ...
        def visible(self, sink): ...
        def staged(self, sink): ...

Crashes are real: a forked process goes through a batch and is killed after each step, and at function calls spread over
each step that decides something. A frozen process is stopped there, and goes on when the next run has claimed the sink.
"""

from __future__ import annotations

import os
import pickle
import random
import unittest
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow_provider_exactlyonce.exceptions import CommitUnknownError, ExactlyOnceError, FencedError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.spi import (
    IDEMPOTENT,
    IDEMPOTENT_UNFENCED,
    OpenWriter,
    Sink,
    SinkAttempt,
    SinkCommitter,
    SinkContext,
    SinkEntry,
)
from airflow_provider_exactlyonce.testing.fault_injection import (
    BATCHES,
    PIPELINE,
    TASKS,
    Fault,
    Rehearsal,
    columns_of,
    context_in,
    doubts,
    single_faults,
)
from airflow_provider_exactlyonce.testing.sink_crashes import DECIDING, NOT_COMMITTED, STEPS, calls_of, die, frozen

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_ROWS: Final = 40  # of a commit


class SinkConformance:
    """Derive from it in a test file: implement how the sink is made and how its rows are read.

    ``kills`` is how many calls within a deciding step a process is killed at, each in a test of its own sink.
    ``faults`` is how many combinations of failing calls a pipeline goes through, and ``seed`` picks them.
    ``secrets`` are texts that the sink knows and must not show.
    """

    kills: ClassVar[int] = 8
    faults: ClassVar[int] = 12
    seed: ClassVar[int] = 1
    secrets: ClassVar[tuple[str, ...]] = ()
    #: Columns that :meth:`Sink.check_columns` refuses, and the one that the message names.
    refused_columns: ClassVar[tuple[StructType, str] | None] = None

    def make_sink(self, folder: Path) -> Sink:
        """Return a sink whose target is new, with all that it needs in place.

        :param folder: an empty directory of its own; its name can serve as the name of a target elsewhere
        """
        raise NotImplementedError

    def visible(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        """Return the rows that a reader of the target sees now, in any order."""
        raise NotImplementedError

    def staged(self, sink: Sink) -> Iterable[str]:
        """Return the names of everything staged in the target for attempts that are not committed."""
        raise NotImplementedError

    def make_rows(self, commit: int, task: int) -> pa.RecordBatch:
        """Return a task's rows of a commit; no two rows are equal. By default ``id``, ``k`` and ``v``."""
        import pyarrow as pa

        first = commit * 1000 + task * 100
        ids = list(range(first, first + _ROWS // TASKS))
        return pa.RecordBatch.from_pydict(
            {
                "id": pa.array(ids, pa.int64()),
                "k": [f"k{number % 5}" for number in ids],
                "v": [number / 4 for number in ids],
            }
        )

    # A commit and what it makes visible

    def test_rows_are_visible_once_after_the_commit_and_never_before(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        with closing(self._opened(sink, tmp_path)) as committer:
            _same(committer.tail(), None, "the newest entry of a new sink")
            _same(committer.claim(1), None, "what the claim of a new sink returns")
            for commit in (1, 2, 3):
                self._stage(committer, run=1, commit=commit)
                self._expect(sink, commit - 1, "before the commit")
                committer.commit(self._entry(commit, 1))
                committer.settled(commit)
                self._expect(sink, commit, "after the commit")
                _same(committer.tail(), self._entry(commit, 1), "the newest entry")

    def test_an_aborted_attempt_is_never_visible_and_leaves_nothing(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        with closing(self._opened(sink, tmp_path)) as committer:
            committer.claim(1)
            committer.abort()  # nothing is open
            self._stage(committer, run=1, commit=1)
            committer.abort()
            self._expect(sink, 0, "after an abort")
            committer.begin(_attempt(1, 1))
            committer.abort()
            self._commit(committer, run=1, commit=1)
            self._expect(sink, 1, "after the attempt that followed")
        self._next_run(sink, tmp_path, run=2, commits=1)

    def test_only_what_the_driver_was_told_is_committed_when_a_task_runs_twice(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        with closing(self._opened(sink, tmp_path)) as committer:
            committer.claim(1)
            open_writer, attempt = committer.open_writer(), _attempt(1, 1)
            committer.begin(attempt)
            self._write(open_writer, attempt, 0)
            results = [self._write(open_writer, attempt, task) for task in range(TASKS)]
            lost = open_writer(attempt, 1)
            lost.write(self.make_rows(1, 1))
            lost.close()
            committer.pre_commit(results)
            committer.commit(self._entry(1, 1))
            committer.settled(1)
            self._expect(sink, 1, "after a batch whose first task ran twice")
        self._next_run(sink, tmp_path, run=2, commits=1)

    def test_a_batch_without_rows_has_its_entry(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        with closing(self._opened(sink, tmp_path)) as committer:
            committer.claim(1)
            for commit, tasks in ((1, 0), (2, TASKS)):
                empty = replace(self._entry(commit, 1), rows=0, digest=0)
                attempt = _attempt(1, commit)
                committer.begin(attempt)
                results = []
                for task in range(tasks):
                    writer = committer.open_writer()(attempt, task)
                    results.append(writer.finish())
                    writer.close()
                committer.pre_commit(results)
                committer.commit(empty)
                committer.settled(commit)
                _same(committer.tail(), empty, "the newest entry after a batch without rows")
        self._expect(sink, 0, "after batches without rows")

    def test_what_the_pipeline_has_forgotten_may_go_and_the_newest_entry_stays(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        entries = [self._entry(commit, 1) for commit in (1, 2, 3)]
        with closing(self._opened(sink, tmp_path)) as committer:
            _same(committer.claim(1), None, "what the claim of a new sink returns")
            committer.forget(1)
            for entry in entries:
                self._commit(committer, run=1, commit=entry.commit)
            for before in (2, 99):
                committer.forget(before)
                _same(committer.tail(), entries[-1], "the newest entry when older ones are forgotten")
                kept = [entry for entry in entries if entry.commit >= min(before, 3)]
                _same(list(committer.audit(kept)), [], "what the audit of the others finds")
            self._expect(sink, 3, "after older entries are forgotten")
        self._next_run(sink, tmp_path, run=2, commits=3)

    # Claims

    def test_a_claim_can_be_repeated_and_says_what_is_committed(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        with closing(self._opened(sink, tmp_path)) as committer:
            for _ in range(2):
                _same(committer.claim(1), None, "what a claim returns before the first commit")
            self._commit(committer, run=1, commit=1)
            for _ in range(2):
                _same(committer.claim(1), self._entry(1, 1), "what a claim returns after a commit")
            self._stage(committer, run=1, commit=2)
            committer.abort()
            _same(committer.claim(1), self._entry(1, 1), "what a claim returns after an abort")
            self._commit(committer, run=1, commit=2)
        self._expect(sink, 2, "after claims in between")

    def test_a_superseded_run_commits_nothing_any_more(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        with closing(self._opened(sink, tmp_path)) as old, closing(self._opened(sink, tmp_path)) as new:
            old.claim(1)
            self._commit(old, run=1, commit=1)
            self._stage(old, run=1, commit=2)
            _same(new.claim(2), self._entry(1, 1), "what the next run's claim returns")
            _expect_refused(lambda: old.commit(self._entry(2, 1)))
            self._expect(sink, 1, "after a superseded run's commit")
            _expect_fenced(lambda: old.claim(1))
            self._commit(new, run=2, commit=2)
            self._expect(sink, 2, "after the new run's commit")
            _expect_fenced(lambda: old.claim(1))
        self._next_run(sink, tmp_path, run=3, commits=2)

    def test_a_superseded_run_cannot_even_note_a_batch_of_no_tasks(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        with closing(self._opened(sink, tmp_path)) as old, closing(self._opened(sink, tmp_path)) as new:
            old.claim(1)
            new.claim(2)

            def note() -> None:
                old.begin(_attempt(1, 1))
                old.pre_commit([])
                old.commit(replace(self._entry(1, 1), rows=0, digest=0))

            _expect_refused(note)
            _same(new.tail(), None, "the newest entry after a superseded run's batch of no tasks")
        self._next_run(sink, tmp_path, run=3, commits=0)

    def test_drivers_that_were_given_one_run_number_commit_nothing_twice_and_miss_nothing(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        with closing(self._opened(sink, tmp_path)) as old, closing(self._opened(sink, tmp_path)) as new:
            old.claim(1)
            new.claim(1)
            is_late = self._has_committed(old, 1)
            if not self._has_committed(new, 1):
                _same((is_late, new.claim(1)), (True, self._entry(1, 1)), "what is there after two tries of commit 1")
            self._commit(new, run=1, commit=2)
            new.forget(2)
            _same(self._has_committed(old, 1), False, "whether a commit is made that the sink's ledger has forgotten")
            _same(new.tail(), self._entry(2, 1), "the newest entry after a late commit")
            self._expect(sink, 2, "after the commits of two drivers of one run")

    def test_what_a_deleted_pipeline_has_left_is_refused_to_a_new_one_of_its_name(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        Rehearsal(sink, tmp_path, self.make_rows).run(until=1)
        try:
            Rehearsal(sink, tmp_path, self.make_rows).run()
        except RefusedError as error:
            if "ends at run 0" not in str(error):
                raise AssertionError(f"the refusal does not name the run: {error}") from error
        else:
            raise AssertionError("the commit of a deleted pipeline was taken for the first of a new one")

    def test_pipelines_that_share_a_target_do_not_meet(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        other = replace(context_in(tmp_path), pipeline="conformance-other", home=tmp_path / "other")
        with closing(self._opened(sink, tmp_path)) as first, closing(self._opened(sink, tmp_path, other)) as second:
            first.claim(5)
            self._commit(first, run=5, commit=1)
            _same(second.claim(1), None, "what another pipeline's claim returns")
            self._stage(first, run=5, commit=2)
            second.claim(2)
            first.commit(self._entry(2, 5))
            first.settled(2)
        self._expect(sink, 2, "after another pipeline's claim")

    # Calls that fail

    def set_back(self, sink: Sink, folder: Path) -> Callable[[], None]:
        """Back the target up as it is now; returns a function that restores the backup. Override it where possible."""
        raise unittest.SkipTest("how this sink is set back is not said")

    def test_rows_are_there_once_whichever_calls_fail(self, tmp_path: Path) -> None:
        for number, faults in enumerate(self._faults(tmp_path)):
            self.rehearse(tmp_path, f"{number}", faults)

    def test_rows_are_there_once_whichever_calls_fail_while_a_sink_that_was_set_back_gets_what_it_lacks(
        self, tmp_path: Path
    ) -> None:
        for number, faults in enumerate(self._faults(tmp_path)):
            self.rehearse(tmp_path, f"{number}", faults, set_back=True)

    def test_a_sink_that_is_set_back_while_its_driver_runs_gets_no_later_commit(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        with closing(self._opened(sink, tmp_path)) as committer:
            committer.claim(1)
            self._commit(committer, run=1, commit=1)
            restore_backup = self.set_back(sink, tmp_path)
            self._commit(committer, run=1, commit=2)
            restore_backup()
            if not _is_refused(lambda: self._commit(committer, run=1, commit=3)):
                raise AssertionError("commit 3 is made in a sink that was set back to commit 1: commit 2 is lost")
            _same(committer.claim(1), self._entry(1, 1), "what the claim of a sink that was set back returns")

    def rehearse(self, tmp_path: Path, name: str, faults: Sequence[Fault], *, set_back: bool = False) -> None:
        """Commit a few batches into a new sink through some faults, then compare the sink's rows one by one.

        :param set_back: the sink is set back by two commits before
        """
        folder, sink = self._new_sink(tmp_path, name)
        rehearsal = Rehearsal(sink, folder, self.make_rows)
        if set_back:
            rehearsal.run(until=1)
            restore_backup = self.set_back(sink, folder)
            rehearsal.run(until=BATCHES - 1)
            restore_backup()
            rehearsal.world.done = 1
        try:
            rehearsal.run(faults)
            rehearsal.run()  # the next claim settles what the last run could not
            expected = [
                self.make_rows(commit, task)
                for commit in range(1, BATCHES + 1)
                for task in range(TASKS)
                if not rehearsal.is_empty(commit)
            ]
            _same_rows(self.visible(sink), expected, "in the end")
            with closing(self._opened(sink, folder)) as committer:
                _same(list(committer.audit(rehearsal.entries())), [], "what the audit finds")
        except Exception as error:
            raise AssertionError(f"seed {self.seed}, {'; '.join(map(str, faults))}: {error}") from error

    def _faults(self, tmp_path: Path) -> list[Sequence[Fault]]:
        """Return the doubts, and so many random combinations of one to three faults."""
        folder, sink = self._new_sink(tmp_path, "counted")
        seam = Rehearsal(sink, folder, self.make_rows).run()
        faults, generator = single_faults(seam, following=(0, 2, 7)), random.Random(self.seed)
        return [*doubts(), *(generator.sample(faults, 1 + number % 3) for number in range(self.faults))]

    # Crashes

    def test_a_batch_is_there_once_whichever_step_its_process_dies_after(self, tmp_path: Path) -> None:
        for step in STEPS:
            folder, sink = self._new_sink(tmp_path, f"after-{step}")
            die(partial(self._life, sink, folder), folder, step, None)
            self._expect_recovery(sink, folder, f"killed after {step}")

    def test_a_batch_is_there_once_wherever_within_a_step_its_process_dies(self, tmp_path: Path) -> None:
        for step in DECIDING:
            for call in self._calls(tmp_path, step):
                folder, sink = self._new_sink(tmp_path, f"in-{step}-{call}")
                die(partial(self._life, sink, folder), folder, step, call)
                self._expect_recovery(sink, folder, f"killed at call {call} of {step}")

    def test_a_process_that_is_frozen_in_its_commit_never_adds_to_what_the_next_claim_saw(self, tmp_path: Path) -> None:
        for call in self._calls(tmp_path, "commit"):
            folder, sink = self._new_sink(tmp_path, f"frozen-{call}")
            life, claim = partial(self._life, sink, folder), partial(self._claim, sink, folder, 2)
            entry, ended = frozen(life, folder, call, claim)
            description = f"frozen at call {call} of commit"
            if entry is None and ended == 0:
                raise AssertionError(f"the process that was {description} committed what the next claim had not seen")
            self._expect_recovery(sink, folder, description, run=3)

    # What it says

    def test_the_audit_finds_what_differs_and_nothing_else(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        entries = [self._entry(commit, 1) for commit in (1, 2, 3)]
        with closing(self._opened(sink, tmp_path)) as committer:
            committer.claim(1)
            for commit in (1, 2, 3):
                self._commit(committer, run=1, commit=commit)
            _same(list(committer.audit(iter(entries))), [], "what the audit of a sound sink finds")
            changed = replace(entries[1], digest=entries[1].digest + 1)
            _expect_named(committer.audit([entries[0], changed, entries[2]]), "2", "a commit with another digest")
            _expect_named(committer.audit([*entries, self._entry(4, 1)]), "4", "a commit that the sink lacks")

    def test_it_travels_to_the_tasks(self, tmp_path: Path) -> None:
        from pyspark import cloudpickle

        sink = self.make_sink(tmp_path)
        copy = pickle.loads(cloudpickle.dumps(sink))
        with closing(self._opened(copy, tmp_path)) as committer:
            committer.claim(1)
            attempt = _attempt(1, 1)
            committer.begin(attempt)
            sent = pickle.loads(cloudpickle.dumps(committer.open_writer()))
            committer.pre_commit([self._write(sent, attempt, task) for task in range(TASKS)])
            committer.commit(self._entry(1, 1))
            committer.settled(1)
        self._expect(sink, 1, "after a batch by a copy of the sink")

    def test_no_secret_is_shown(self, tmp_path: Path) -> None:
        if not self.secrets:
            raise unittest.SkipTest("this sink has no secrets")
        sink = self.make_sink(tmp_path)
        for shown in (repr(sink), str(sink), repr(dict(sink.facts))):
            for secret in self.secrets:
                if secret in shown:
                    raise AssertionError(f"a secret is in {shown.replace(secret, '<the secret>')}")

    def test_columns_that_do_not_fit_are_refused_by_name(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        sink.check_columns(columns_of(self.make_rows))
        if self.refused_columns is None:
            raise unittest.SkipTest("this sink takes any columns")
        columns, column = self.refused_columns
        try:
            sink.check_columns(columns)
        except RefusedError as error:
            if column not in str(error):
                raise AssertionError(f"the message does not name {column}: {error}") from error
        else:
            raise AssertionError(f"{columns.simpleString()} was not refused")

    # Their parts

    def _new_sink(self, tmp_path: Path, name: str) -> tuple[Path, Sink]:
        """Return a directory of its own, and a new sink with it."""
        folder = tmp_path / name
        folder.mkdir()
        return folder, self.make_sink(folder)

    def _opened(self, sink: Sink, folder: Path, context: SinkContext | None = None) -> SinkCommitter:
        committer = sink.open(context or context_in(folder))
        committer.expect_columns(columns_of(self.make_rows))
        return committer

    def _claim(self, sink: Sink, folder: Path, run: int) -> SinkEntry | ExactlyOnceError | None:
        try:
            with closing(self._opened(sink, folder)) as committer:
                return committer.claim(run)
        except ExactlyOnceError as error:
            return error

    def _entry(self, commit: int, run: int) -> SinkEntry:
        ends = {0: (commit * _ROWS - _ROWS, commit * _ROWS)}
        return SinkEntry(
            commit=commit,
            run=run,
            lineage="lineage",
            batch=commit - 1,
            source={"events": ends},
            rows=sum(self.make_rows(commit, task).num_rows for task in range(TASKS)),
            digest=commit * 2**60 + 7919,
        )

    def _write(self, open_writer: OpenWriter, attempt: SinkAttempt, task: int) -> Mapping[str, Any]:
        rows = self.make_rows(attempt.commit, task)
        writer = open_writer(attempt, task)
        try:
            writer.write(rows.slice(0, rows.num_rows // 2))
            writer.write(rows.slice(rows.num_rows // 2))
            return writer.finish()
        finally:
            writer.close()

    def _stage(self, committer: SinkCommitter, *, run: int, commit: int) -> None:
        attempt = _attempt(run, commit)
        committer.begin(attempt)
        committer.pre_commit([self._write(committer.open_writer(), attempt, task) for task in range(TASKS)])

    def _commit(self, committer: SinkCommitter, *, run: int, commit: int) -> None:
        self._stage(committer, run=run, commit=commit)
        committer.commit(self._entry(commit, run))
        committer.settled(commit)

    def _has_committed(self, committer: SinkCommitter, commit: int) -> bool:
        """Attempt a commit of run 1, and abort it when it fails and is not in doubt."""
        try:
            self._commit(committer, run=1, commit=commit)
        except CommitUnknownError:
            return False
        except NOT_COMMITTED:
            committer.abort()
            return False
        return True

    def _expect(self, sink: Sink, commits: int, when: str) -> None:
        """Compare the visible rows with the rows of so many commits, row by row."""
        batches = [self.make_rows(commit, task) for commit in range(1, commits + 1) for task in range(TASKS)]
        _same_rows(self.visible(sink), batches, when, early=sink.guarantee in (IDEMPOTENT, IDEMPOTENT_UNFENCED))

    def _next_run(self, sink: Sink, folder: Path, *, run: int, commits: int) -> None:
        """Let the next run claim the sink, which has so many commits, and commit once more."""
        with closing(self._opened(sink, folder)) as committer:
            claimed = committer.claim(run)
            _same(claimed.commit if claimed else 0, commits, f"the commit that the claim of run {run} returns")
            _same(list(self.staged(sink)), [], f"what is still staged after the claim of run {run}")
            committer.settled(commits)
            self._expect(sink, commits, f"after the claim of run {run}")
            self._commit(committer, run=run, commit=commits + 1)
            self._expect(sink, commits + 1, f"after a commit of run {run}")

    def _expect_recovery(self, sink: Sink, folder: Path, description: str, run: int = 2) -> None:
        """After a crash in commit 1: the next run finishes it, and goes on."""
        try:
            with closing(self._opened(sink, folder)) as committer:
                entry = committer.claim(run)
                _same(list(self.staged(sink)), [], "what is still staged after the next claim")
                if entry is None:
                    self._expect(sink, 0, "before the batch is attempted again")
                    self._commit(committer, run=run, commit=1)
                else:
                    _same(replace(entry, run=1), self._entry(1, 1), "the entry that is there")
                    committer.settled(1)
                self._expect(sink, 1, "after the recovery")
                self._commit(committer, run=run, commit=2)
                self._expect(sink, 2, "after the next commit")
                entries = [self._entry(commit, run) for commit in (1, 2)]
                _same(list(committer.audit(entries)), [], "what the audit finds")
        except AssertionError as error:
            raise AssertionError(f"{description}: {error}") from error

    def _calls(self, tmp_path: Path, step: str) -> list[int]:
        """Return the calls within a step at which a process is killed."""
        folder, sink = self._new_sink(tmp_path, f"count-{step}")
        return calls_of(partial(self._life, sink, folder), folder, step, self.kills)

    def _life(self, sink: Sink, folder: Path) -> Iterator[str]:
        """Go through run 1 and its commit 1; yields each step when it is done."""
        committer = self._opened(sink, folder)
        yield "open"
        committer.claim(1)
        yield "claim"
        attempt = _attempt(1, 1)
        committer.begin(attempt)
        yield "begin"
        writer = committer.open_writer()(attempt, 0)
        writer.write(self.make_rows(1, 0))
        yield "write"
        results = [writer.finish()]
        writer.close()
        results += [self._write(committer.open_writer(), attempt, task) for task in range(1, TASKS)]
        yield "finish"
        committer.pre_commit(results)
        yield "pre_commit"
        committer.commit(self._entry(1, 1))
        yield "commit"
        committer.settled(1)
        yield "settled"


def _attempt(run: int, commit: int) -> SinkAttempt:
    return SinkAttempt(name=os.urandom(16).hex(), pipeline=PIPELINE, commit=commit, run=run)


def _row(row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(value)) for name, value in row.items()))


def _same(actual: object, expected: object, subject: str) -> None:
    if actual != expected:
        raise AssertionError(f"{subject} is {actual!r}, not {expected!r}")


def _same_rows(
    rows: Iterable[Mapping[str, Any]], expected_batches: Iterable[pa.RecordBatch], when: str, *, early: bool = False
) -> None:
    """Compare rows, whatever their order.

    :param early: rows that are not committed may be seen, too, by their keys once
    """
    expected = Counter(_row(row) for rows in expected_batches for row in rows.to_pylist())
    actual = Counter(_row(row) for row in rows)
    if early and expected <= actual:
        return
    missing, surplus = expected - actual, actual - expected
    if missing or surplus:
        raise AssertionError(
            f"{when}: {missing.total()} rows are missing, such as {list(missing)[:2]}, and {surplus.total()} are too "
            f"many, such as {list(surplus)[:2]}"
        )


def _expect_named(audited: Iterable[str], commit: str, subject: str) -> None:
    texts = list(audited)
    if not any(commit in text for text in texts):
        raise AssertionError(f"the audit of {subject} does not name it: {texts}")


def _expect_fenced(claim: Callable[[], object]) -> None:
    try:
        claim()
    except FencedError:
        return
    raise AssertionError("a superseded run claims, and is not told that it is superseded")


def _expect_refused(commit: Callable[[], object]) -> None:
    if not _is_refused(commit):
        raise AssertionError("a superseded run commits")


def _is_refused(commit: Callable[[], object]) -> bool:
    """Tell whether a commit fails; when its error can't name the cause, the next claim does."""
    try:
        commit()
    except NOT_COMMITTED:
        return True
    return False
