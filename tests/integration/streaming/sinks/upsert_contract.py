"""What upserts into a table have in common, whichever table it is, judged row by row against a plain dictionary.

The rows are read by a reader that shares no code with the sink.
"""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    FencedError,
    RecordRefusedError,
    RefusedError,
)
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.attempts import Attempts
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.upserts import UpsertedRows
from airflow_provider_exactlyonce.streaming.sinks.spi import Sink, SinkContext, SinkEntry
from tests.integration.streaming.sinks.lake import (
    EVERY_TYPE,
    FAR_TIMES,
    FAR_VALUES,
    ODD,
    PIPELINE,
    UTC,
    VALUES,
    Lake,
    Live,
)

COLUMNS = (
    T.StructType()
    .add("id", T.LongType())
    .add("k", T.StringType())
    .add("v", T.LongType())
    .add("at", T.LongType())
    .add("gone", T.BooleanType())
)
Row = dict[str, Any]


class Model:
    """What the table should have: the rows by key, as a dictionary makes them."""

    def __init__(self, key: Sequence[str] = ("id",)) -> None:
        self.key, self.rows = key, dict[tuple[Any, ...], Row]()

    def apply(self, *tasks: Sequence[Row]) -> None:
        for given in sorted((given for rows in tasks for given in rows), key=lambda given: given["at"]):
            key = tuple(given[name] for name in self.key)
            if given["gone"]:
                self.rows.pop(key, None)
            else:
                self.rows[key] = stored(given)

    def check(self, lake: Lake) -> None:
        visible = sorted(({**given} for given in lake.read()), key=repr)
        for given in visible:
            given.pop("more", None)
        assert visible == sorted(self.rows.values(), key=repr)


def stored(given: Row) -> Row:
    return {name: value for name, value in given.items() if name != "gone"}


def row(id_: int, k: str = "a", v: int = 0, at: int = 0, gone: bool | None = False) -> Row:
    return {"id": id_, "k": k, "v": v, "at": at, "gone": gone}


def upsert(lake: Lake, **more: Any) -> Sink:
    given: dict[str, Any] = {"key": "id", "order": "at", "deleted": "gone", **more}
    return lake.sink(mode="upsert", **given)


def begun(lake: Lake, home: Path, **more: Any) -> tuple[Live, Model, list[SinkEntry]]:
    """Return a run that has committed ten rows."""
    live, model = Live(upsert(lake, **more), home, columns=COLUMNS), Model()
    first = [row(number) for number in range(10)]
    model.apply(first)
    return live, model, [live.commit(first)]


class Story:
    """Batches, their repetitions, others, lost answers and requests, zombies, and runs that follow each other."""

    KINDS = ("plain", "aborted", "others", "disturbed", "lost answer", "lost request", "zombie", "next run")

    def __init__(self, lake: Lake, home: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.lake, self.home, self.monkeypatch = lake, home, monkeypatch
        self.chance, self.model, self.clock, self.run = random.Random(seed), Model(), 0, 1
        partition_by, compact_every = self.chance.choice([(), ("k",)]), self.chance.choice([None, 3])
        self.sink = upsert(lake, partition_by=partition_by, compact_every=compact_every)
        self.live, self.entries, self.told = self.opened(), list[SinkEntry](), list[str]()

    def opened(self) -> Live:
        return Live(self.sink, self.home, run=self.run, columns=COLUMNS)

    def go_on(self) -> None:
        """Commit a batch, with what happens meanwhile."""
        tasks, kind = self.batch(), self.chance.choice(self.KINDS)
        self.told.append(kind)
        if kind == "aborted":
            self.live.stage(*self.batch())
            self.live.committer.abort()
        entry, zombie = self.live.stage(*tasks), None
        if kind == "others":
            self.interfere()
        elif kind == "zombie":
            zombie = self.live, entry
            entry = self.succeed(tasks)
        elif kind in ("disturbed", "lost answer", "lost request"):
            self.lake.at_next_write(self.monkeypatch, partial(self.happen, kind))
        entry = self.commit(entry, tasks)
        self.model.apply(*tasks)
        self.live.number += 1
        self.live.committer.settled(self.live.number)
        self.entries.append(entry)
        if zombie is not None:
            with pytest.raises((FencedError, CommitUnknownError)):
                zombie[0].committer.commit(zombie[1])
        if kind == "next run":
            self.run += 1
            self.live = self.opened()
        assert self.live.number == len(self.entries)
        self.model.check(self.lake)

    def batch(self) -> list[list[Row]]:
        tasks: list[list[Row]] = [[], []]
        for _ in range(self.chance.randrange(1, 25)):
            self.clock += 1
            key, gone = self.chance.randrange(30), self.chance.random() < 0.3
            self.chance.choice(tasks).append(row(key, f"k{key % 2}", self.clock, self.clock, gone))
        return tasks

    def succeed(self, tasks: Sequence[Sequence[Row]]) -> SinkEntry:
        self.run += 1
        self.live = self.opened()
        return self.live.stage(*tasks)

    def commit(self, entry: SinkEntry, tasks: Sequence[Sequence[Row]]) -> SinkEntry:
        try:
            self.live.committer.commit(entry)
        except CommitUnknownError:
            claimed = self.live.committer.claim(self.run)
            if claimed is None or claimed.commit != entry.commit:
                entry = self.live.stage(*tasks)
                self.live.committer.commit(entry)
        return entry

    def happen(self, kind: str, write: Callable[[], None]) -> None:
        if kind == "disturbed":
            self.interfere()
        if kind != "lost request":
            write()
        if kind != "disturbed":
            raise ConnectionError(kind)

    def interfere(self) -> None:
        kind = self.chance.choice(["insert", "delete", "compact", "maintain"])
        self.told.append(kind)
        if kind == "insert":
            given = row(1000 + len(self.told), "o", 1, 1)
            self.lake.insert([stored(given)])
            self.model.apply([given])
        elif kind == "delete":
            least = self.chance.randrange(30)
            self.lake.delete(f"id >= {least} and id < {least + 3}")
            self.model.rows = {key: kept for key, kept in self.model.rows.items() if not least <= key[0] < least + 3}
        elif kind == "compact":
            self.lake.compact()
        else:
            self.lake.maintain()

    def findings(self) -> list[str]:
        """Return what the audit finds beside what others have done."""
        return [text for text in self.live.audit(self.entries) if "has changed or removed rows" not in text]


class UpsertContract:
    """Derive from it where a fixture gives the ``lake``."""

    @pytest.mark.parametrize(
        ("key", "by"),
        [
            pytest.param(("id",), (), marks=pytest.mark.slow),
            (("id",), ("k",)),
            pytest.param(("k", "id"), (), marks=pytest.mark.slow),
            pytest.param(("k", "id"), ("k",), marks=pytest.mark.slow),
        ],
    )
    def test_random_batches_give_what_a_dictionary_gives(
        self, lake: Lake, tmp_path: Path, key: tuple[str, ...], by: tuple[str, ...]
    ) -> None:
        chance, model, clock = random.Random(len(key) + len(by)), Model(key), 0
        live = Live(upsert(lake, key=key, partition_by=by), tmp_path, columns=COLUMNS)
        entries = []
        for number in range(12):
            tasks: list[list[Row]] = [[], [], []]
            for _ in range(chance.randrange(60)):
                clock += 1
                at_key = chance.randrange(40)
                given = row(at_key, f"k{at_key % 3}", chance.randrange(1000), clock, chance.choice([True, False, None]))
                if key == ("id",):
                    given["k"] = chance.choice(["k0", "k1", "a/b=ü\n"])  # a key moves between partitions
                chance.choice(tasks).append(given)
            entries.append(live.commit(*tasks))
            model.apply(*tasks)
            model.check(lake)
            if number == 6:
                lake.compact()
        findings = live.audit(entries)
        assert all("has changed or removed rows" in finding for finding in findings), "of the other's compaction"
        assert Live(live.sink, tmp_path, run=2, columns=COLUMNS).number == 12
        model.check(lake)

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(8))
    def test_whatever_happens_in_whichever_order_the_table_has_what_a_dictionary_has(
        self, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
    ) -> None:
        story = Story(lake, tmp_path, monkeypatch, seed)
        for _ in range(16):
            story.go_on()
        assert story.findings() == [], story.told
        assert set(lake.files()) <= lake.named_files() or "maintain" in story.told, "of failed tries nothing is left"

    def test_a_batch_is_one_version_and_keys_without_rows_change_no_file(self, lake: Lake, tmp_path: Path) -> None:
        live, model, _ = begun(lake, tmp_path)
        second, later = [row(number) for number in range(100, 110)], [row(500)]
        live.commit(second)
        before, files = lake.versions(), lake.current_files()
        changes = [row(105, v=1, at=1), row(3, at=1, gone=True), row(50, at=1, gone=True)]
        live.commit(changes)
        assert lake.versions() == before + 1
        assert not files & lake.current_files(), "both had one of the keys"
        kept = lake.current_files()
        live.commit(later)
        assert kept < lake.current_files(), "none has the key"
        live.commit([row(700, gone=True)])
        model.apply(second)
        model.apply(changes)
        model.apply(later)
        model.check(lake)

    @pytest.mark.slow
    def test_a_batch_that_was_staged_for_another_version_is_planned_anew(self, lake: Lake, tmp_path: Path) -> None:
        live, model = Live(upsert(lake), tmp_path, columns=COLUMNS), Model()

        def inserted() -> None:
            given = [row(number, "o", 50) for number in range(40, 50)]
            model.apply(given)
            lake.insert([stored(one) for one in given])

        def deleted() -> None:
            lake.delete("id = 43")
            del model.rows[43,]

        entries: list[SinkEntry] = []
        changes: list[Callable[[], object]] = [inserted, lake.compact, deleted, lake.widen, lake.maintain]
        for number, others_change in enumerate(changes):
            rows = [row(key, "u", number, number + 1, gone=key % 7 == number) for key in range(number, 60, 5)]
            entry = live.stage(rows)
            others_change()
            live.decide(entry)
            entries.append(entry)
            model.apply(rows)
            model.check(lake)
        assert lake.current_files() <= lake.named_files()
        assert all("has changed or removed rows" in finding for finding in live.audit(entries))

    def test_two_pipelines_upsert_into_one_table(self, lake: Lake, tmp_path: Path) -> None:
        model = Model()
        lives = [Live(upsert(lake), tmp_path, columns=COLUMNS, pipeline=name) for name in ("one", "two")]
        entries: list[list[SinkEntry]] = [[], []]
        for number in range(6):
            batches = [[row(key, f"p{index}", number, number) for key in range(index * 5, 15)] for index in (0, 1)]
            staged = [live.stage(rows) for live, rows in zip(lives, batches, strict=True)]
            for index, live in enumerate(lives):
                live.decide(staged[index])
                model.apply(batches[index])
                entries[index].append(staged[index])
        model.check(lake)
        for live, known in zip(lives, entries, strict=True):
            assert live.audit(known) == []
            assert Live(live.sink, tmp_path, run=2, columns=COLUMNS, pipeline=live.pipeline).number == 6

    def test_others_who_write_in_the_middle_of_a_try_make_it_plan_anew(
        self, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        live, model, _ = begun(lake, tmp_path)
        other, tries = Live(upsert(lake), tmp_path, columns=COLUMNS, pipeline="other"), list[int]()

        def be_faster(write: Callable[[], None]) -> None:
            tries.append(len(tries) + 1)
            rows = [row(number, "other", len(tries), len(tries)) for number in (1, 2, 20 + len(tries))]
            other.commit(rows)
            model.apply(rows)
            if len(tries) < 3:
                lake.at_next_write(monkeypatch, be_faster)
            write()

        lake.at_next_write(monkeypatch, be_faster)
        last = [row(2, "mine", 9, 9), row(21, at=9, gone=True), row(30, at=9)]
        live.commit(last)
        model.apply(last)
        model.check(lake)
        assert len(tries) == 3
        assert set(lake.files()) <= lake.named_files(), "what was copied for a version that others took is gone"

    @pytest.mark.parametrize(
        "step",
        [
            *(pytest.param(name, marks=pytest.mark.slow) for name in ("begun", "written", "copied", "noted")),
            "staged",
            "sent",
        ],
    )
    def test_a_zombie_changes_nothing_whichever_step_it_was_frozen_in(
        self, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        old, model, _ = begun(lake, tmp_path)
        rows = [row(3, at=1, gone=True), row(4, "new", 1, 1), row(11, at=1)]
        done: list[Live] = []

        def follow() -> None:
            successor = Live(upsert(lake), tmp_path, run=2, columns=COLUMNS)
            successor.commit(rows)
            done.append(successor)

        def frozen_after(kind: type, name: str) -> None:
            real = getattr(kind, name)

            def call(*given: Any) -> Any:
                result = real(*given)
                if not done:
                    monkeypatch.setattr(kind, name, real)
                    follow()
                return result

            monkeypatch.setattr(kind, name, call)

        def send_late(write: Callable[[], None]) -> None:
            follow()
            write()

        def reached(name: str) -> None:
            if name == step:
                follow()

        def go_on() -> None:
            attempt = old.begin()
            reached("begun")
            written = old.write(attempt, 0, rows)
            reached("written")
            old.committer.pre_commit([written])
            reached("staged")
            inside.get(step, lambda: None)()
            source = {"events": {0: (1, 2)}}
            old.committer.commit(SinkEntry(commit=2, run=1, lineage="l", batch=1, source=source, rows=3, digest=3))

        inside = {
            "copied": lambda: frozen_after(UpsertedRows, "_copy"),
            "noted": lambda: frozen_after(Attempts, "write"),
            "sent": lambda: lake.at_next_write(monkeypatch, send_late),
        }
        with pytest.raises((FencedError, CommitUnknownError, BatchFailedError)):
            go_on()
        assert len(done) == 1
        model.apply(rows)
        model.check(lake)
        with pytest.raises(FencedError):
            old.committer.claim(1)
        done[0].commit([row(1, at=2, gone=True)])
        model.apply([row(1, at=2, gone=True)])
        model.check(lake)

    @pytest.mark.parametrize("landed", [True, False])
    def test_an_outcome_that_nobody_knows_is_decided_by_the_claim_and_applied_once(
        self, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, landed: bool
    ) -> None:
        live, model, _ = begun(lake, tmp_path)
        rows = [row(number, "new", 1, 1, gone=number > 7) for number in range(5, 12)]
        model.apply(rows)
        entry, kind = live.stage(rows), type(live.committer._table)  # type: ignore[attr-defined]
        real = kind.refresh

        def no_answer(_: object) -> None:
            raise ConnectionError("no answer")

        def lose(write: Callable[[], None]) -> None:
            if landed:
                write()
            monkeypatch.setattr(kind, "refresh", no_answer)
            raise ConnectionError("no answer")

        lake.at_next_write(monkeypatch, lose)
        with pytest.raises(CommitUnknownError):
            live.committer.commit(entry)
        monkeypatch.setattr(kind, "refresh", real)
        claimed = live.committer.claim(1)
        assert claimed == (entry if landed else live.committer.tail())
        if not landed:
            live.commit(rows)
        model.check(lake)

    def test_a_table_that_was_set_back_gets_the_batches_since_once_more(self, lake: Lake, tmp_path: Path) -> None:
        live, model, entries = begun(lake, tmp_path)
        set_back = lake.keep()
        rows = [row(3, at=1, gone=True), row(4, "new", 1, 1), row(11, at=1)]
        lost = live.commit(rows)
        set_back()
        model.check(lake)
        assert lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail() == entries[0]
        again = Live(live.sink, tmp_path, run=2, columns=COLUMNS)
        assert again.number == 1
        entries.append(again.commit(rows))
        assert entries[1].is_same_output(lost)
        model.apply(rows)
        model.check(lake)
        assert again.audit(entries) == []

    def test_rows_of_every_type_are_copied_as_they_are(self, lake: Lake, tmp_path: Path) -> None:
        live = Live(lake.sink(mode="upsert", key="id"), tmp_path, columns=EVERY_TYPE)
        other = {**VALUES[0], "id": 4}
        live.commit([*VALUES, other])
        live.commit([{**VALUES[1], "id": 4, "text": "new"}])
        expected = [*VALUES, {**VALUES[1], "id": 4, "text": "new"}]
        assert lake.rows() == lake.library_rows() == expected

    def test_a_large_file_of_others_is_copied_into_files_of_the_size_that_is_declared(
        self, lake: Lake, tmp_path: Path
    ) -> None:
        columns = T.StructType().add("id", T.LongType()).add("b", T.BinaryType())
        small = {"mode": "upsert", "key": "id", "compression": "none", "max_file_bytes": 2**20}
        live = Live(lake.sink(**small), tmp_path, columns=columns)
        live.commit([{"id": 100, "b": b"mine"}])
        given = [{"id": number, "b": os.urandom(100_000)} for number in range(45)]
        lake.insert(given)
        live.commit([{"id": 7, "b": b"new"}])
        given[7] = {"id": 7, "b": b"new"}
        assert lake.rows() == [*given, {"id": 100, "b": b"mine"}]
        sizes = sorted(file.stat().st_size for file in lake.current_files())
        assert len(sizes) == 2 + 4
        assert all(size < 2**20 + 110_000 for size in sizes), sizes

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            (T.StringType(), ["a", "ü" * 40, "", "z" * 100, *(text for text in ODD if text is not None)]),
            (T.DateType(), [datetime.date(1582, 10, 15), datetime.date(2024, 2, 29), datetime.date(9999, 12, 31)]),
            (T.TimestampType(), [datetime.datetime(2024, 1, 1, 0, 0, 0, us, UTC) for us in (1, 999, 1001)]),
            (T.TimestampNTZType(), [datetime.datetime(1900, 1, 1), datetime.datetime(2024, 1, 1, 0, 0, 0, 1)]),
            (T.DecimalType(38, 10), [Decimal("-1.0000000001"), Decimal("1234567890123456789012345678.0123456789")]),
            (T.BooleanType(), [True, False]),
            (T.ShortType(), [-3, 0, 3]),
        ],
        ids=lambda given: given.simpleString() if isinstance(given, T.DataType) else "",
    )
    def test_a_key_of_each_type_finds_its_row(
        self, lake: Lake, tmp_path: Path, kind: T.DataType, values: list[Any]
    ) -> None:
        columns = T.StructType().add("id", kind).add("v", T.LongType())
        live = Live(lake.sink(mode="upsert", key="id"), tmp_path, columns=columns)
        for value in values:
            live.commit([{"id": value, "v": 0}])
        live.commit([{"id": values[0], "v": 1}], [{"id": values[-1], "v": 2}])
        expected = {**dict.fromkeys(values, 0), values[0]: 1, values[-1]: 2}
        assert sorted((visible["id"], visible["v"]) for visible in lake.read()) == sorted(expected.items())

    @pytest.mark.parametrize("key", ["date", "at", "local"])
    def test_a_key_of_which_python_has_no_time_finds_its_row(self, lake: Lake, tmp_path: Path, key: str) -> None:
        live = Live(lake.sink(mode="upsert", key=key), tmp_path, columns=FAR_TIMES)
        for given in FAR_VALUES:
            live.commit([given])
        changed = [{**given, "id": given["id"] + 10} for given in FAR_VALUES[1:3]]
        live.commit(changed)
        assert lake.numbers() == [*FAR_VALUES[:1], *FAR_VALUES[3:], *changed]

    def test_a_file_that_is_gone_when_it_is_to_be_copied_fails_the_batch_and_nothing_else(
        self, lake: Lake, tmp_path: Path
    ) -> None:
        live, model, _ = begun(lake, tmp_path)
        rows = [row(1, v=1, at=1)]
        entry = live.stage(rows)
        (gone,) = lake.current_files()
        away = gone.rename(gone.with_suffix(".away"))
        with pytest.raises(BatchFailedError, match="does not answer: FileNotFoundError"):
            live.committer.commit(entry)
        away.rename(gone)
        live.committer.abort()
        live.commit(rows)
        model.apply(rows)
        model.check(lake)

    # Several rows of a key in one batch

    def test_the_last_of_a_task_stays_where_no_order_is_declared(self, lake: Lake, tmp_path: Path) -> None:
        live = Live(upsert(lake, order=None), tmp_path, columns=COLUMNS)
        live.commit([row(1, v=1), row(2, v=1), row(1, v=2), row(2, gone=True), row(3, gone=True), row(3, v=3)])
        assert sorted((visible["id"], visible["v"]) for visible in lake.read()) == [(1, 2), (3, 3)]

    def test_rows_of_a_key_in_two_tasks_are_refused_where_no_order_is_declared(
        self, lake: Lake, tmp_path: Path
    ) -> None:
        live = Live(upsert(lake, order=None), tmp_path, columns=COLUMNS)
        with pytest.raises(RecordRefusedError, match=r"several rows for id=1 of .*, \w+Sink\(order=…\)"):
            live.stage([row(1)], [row(1, gone=True)])

    @pytest.mark.parametrize("tasks", [([row(1), row(1, v=1)],), ([row(1)], [row(1, v=1)])], ids=["one-task", "two"])
    def test_two_last_rows_of_a_key_are_refused(self, lake: Lake, tmp_path: Path, tasks: Any) -> None:
        live = Live(upsert(lake), tmp_path, columns=COLUMNS)
        with pytest.raises(RecordRefusedError, match=r"id=1.* greatest at"):
            live.stage(*tasks)

    def test_null_in_order_comes_before_all(self, lake: Lake, tmp_path: Path) -> None:
        live = Live(upsert(lake), tmp_path, columns=COLUMNS)
        live.commit([{**row(1, v=1), "at": None}, row(1, v=2, at=-5)], [{**row(1, v=3), "at": None}])
        assert [(visible["id"], visible["v"]) for visible in lake.read()] == [(1, 2)]

    def test_null_in_a_key_is_refused(self, lake: Lake, tmp_path: Path) -> None:
        live = Live(upsert(lake, key=["id", "k"]), tmp_path, columns=COLUMNS)
        with pytest.raises(RecordRefusedError, match="null in its key, which replaces none: id=1, k=None"):
            live.stage([{**row(1), "k": None}])

    # What is refused by name

    @pytest.mark.parametrize("name", [".id", "..", "a[0].id"])
    def test_a_key_may_have_a_name_that_reads_as_a_path(self, lake: Lake, tmp_path: Path, name: str) -> None:
        columns = T.StructType().add(name, T.LongType()).add("at", T.LongType())
        live = Live(lake.sink(mode="upsert", key=name, order="at"), tmp_path, columns=columns)
        live.commit([{name: 1, "at": 1}, {name: 2, "at": 1}])
        live.commit([{name: 1, "at": 3}, {name: 1, "at": 2}], [{name: 3, "at": 3}])
        assert sorted(map(tuple, map(dict.values, lake.read()))) == [(1, 3), (2, 1), (3, 3)]

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
    def test_settings_that_cannot_be_are_refused_by_name(self, lake: Lake, changed: dict[str, Any], said: str) -> None:
        with pytest.raises(RefusedError, match=said):
            lake.sink(**changed)

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
        self, lake: Lake, columns: T.StructType, more: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(RefusedError, match=said):
            upsert(lake, **more).check_columns(columns)

    # Partitions that are replaced

    @pytest.mark.slow
    def test_a_batch_replaces_its_partitions_and_no_other(self, lake: Lake, tmp_path: Path) -> None:
        sink = lake.sink(mode="overwrite partitions", partition_by=["day", "k"])
        columns = T.StructType().add("id", T.LongType()).add("day", T.DateType()).add("k", T.StringType())
        live, chance = Live(sink, tmp_path, columns=columns), random.Random(1)
        days = [datetime.date(2024, 2, 29), None, datetime.date(1999, 1, 1)]
        texts = ["a/b=ü\n", "50%", None, "null", "a b", "x%2Fy", "\\"]
        expected: dict[tuple[Any, Any], list[int]] = {}
        entries = []
        for number in range(10):
            parts = [(chance.choice(days), chance.choice(texts)) for _ in range(chance.randrange(5))]
            tasks: list[list[Row]] = [[], []]
            for place, part in enumerate(parts):
                tasks[place % 2].append({"id": number * 10 + place, "day": part[0], "k": part[1]})
            for part in parts:
                expected[part] = sorted(
                    written["id"] for rows in tasks for written in rows if (written["day"], written["k"]) == part
                )
            versions = lake.versions()
            entries.append(live.commit(*tasks))
            assert lake.versions() == versions + 1
            visible_ids: dict[tuple[Any, Any], list[int]] = {}
            for visible in lake.rows():
                day = visible["day"]
                day = datetime.date.fromisoformat(day) if isinstance(day, str) else day
                visible_ids.setdefault((day, visible["k"]), []).append(visible["id"])
            assert visible_ids == expected
        assert live.audit(entries) == []

    def test_rows_that_others_write_into_a_partition_before_the_commit_are_replaced_too(
        self, lake: Lake, tmp_path: Path
    ) -> None:
        sink = lake.sink(mode="overwrite partitions", partition_by="k")
        columns = T.StructType().add("id", T.LongType()).add("k", T.StringType())
        live = Live(sink, tmp_path, columns=columns)
        entry = live.stage([{"id": 1, "k": "k0"}])
        lake.write(30, 6)
        live.committer.commit(entry)
        visible = sorted((visible_row["id"], visible_row["k"]) for visible_row in lake.read())
        assert visible == [(1, "k0"), (31, "k1"), (32, "k2"), (34, "k1"), (35, "k2")]
