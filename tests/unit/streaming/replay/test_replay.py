"""Which recorded commit each batch of a replay is; the query is played by hand, one start per batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from airflow_provider_exactlyonce.checkpoint.layout import ClaimedCheckpoint
from airflow_provider_exactlyonce.control.home import Lineage
from airflow_provider_exactlyonce.exceptions import DivergedError, ExactlyOnceError, FencedError
from airflow_provider_exactlyonce.ledger.commit_range import RecordedCommits
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.storage.store import ChangedError
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.replay import replay as replay_module
from airflow_provider_exactlyonce.streaming.replay.replay import Comparison, Replay
from tests.ledger_records import commit_record

OURS, THEIRS = "ours", "theirs"


def text(end: int, watermark: int, partitions: int = 4) -> str:
    header = {"batchWatermarkMs": watermark, "batchTimestampMs": 1, "conf": {"partitions": str(partitions)}}
    return f"v1\n{json.dumps(header)}\n" + json.dumps({"in": {"0": end}})


def ledger(kinds: Sequence[str]) -> list[CommitRecord]:
    """Make commits 1, 2 … of kinds: ``o`` or ``t`` for our or their version, followed by ``-`` when it has no data."""
    records, end = [], 0
    for number, kind in enumerate(kinds, start=1):
        start, end = end, end + (0 if kind.endswith("-") else 10)
        records.append(
            commit_record(
                number,
                lineage="L",
                version=OURS if kind.startswith("o") else THEIRS,
                source={"in": {0: (start, end)}},
                source_topic_ids={"in": "i"},
                offsets=text(end, number * 100),
                watermark=number * 100,
                batch_timestamp=1,
                rows=1,
                digest=number,
                committed=1,
            )
        )
    return records


class Records:
    pipeline = "p"

    def __init__(self, records: list[CommitRecord]) -> None:
        self._records = records

    def records(self, start_offset: int = 0) -> Any:
        yield from list(enumerate(self._records))[start_offset:]


class Hold:
    """What a replay asks of a run."""

    def __init__(self, lineage: Lineage) -> None:
        self.lineage = lineage
        self.options = self
        self.version = OURS

    def rebase(self, batch: int, commit: int) -> None:
        self.lineage = replace(self.lineage, base_batch=batch, base_commit=commit)


class Query:
    """One lineage, restored at a commit whose batch is 0, and what replays it."""

    def __init__(self, path: Path, kinds: Sequence[str], *, at: int = 1) -> None:
        self.checkpoint = ClaimedCheckpoint(path / "checkpoint", self.check_superseded)
        (self.checkpoint.path / "commits").mkdir(parents=True)
        self.meanwhile: Callable[[], None] = lambda: None
        self.records = ledger(kinds)
        self.hold = Hold(Lineage(id="new", base_batch=0, base_commit=at))
        self.checkpoint.write_offsets(0, text(self.records[at - 1].source["in"][0][1], 100, partitions=2))
        self.spark_commits(0, 777)
        self.ran: list[int] = []

    def check_superseded(self) -> None:
        """Be frozen here, and find out."""
        self.meanwhile()

    def spark_commits(self, batch: int, watermark: int) -> None:
        entry = f'v1\n{{"nextBatchWatermarkMs":{watermark}}}'
        (self.checkpoint.path / "commits" / str(batch)).write_text(entry)

    def open(self) -> Replay:
        newest = self.checkpoint.newest_commit()
        assert newest is not None
        first = self.hold.lineage.commit_of(newest) + 1
        commits = RecordedCommits(cast(Any, Records(self.records)), first, len(self.records))
        return Replay(
            cast(Any, None),
            cast(Any, self.hold),
            self.checkpoint,
            commits,
            span=commits.check(),
            comparison=Comparison(version=OURS, accept=self.hold.lineage.accept_nondeterminism),
        )

    def planned(self, number: int) -> Batch:
        offsets = self.checkpoint.offsets(number)
        assert offsets is not None
        return Batch(lineage="new", number=number, offsets=offsets, source={}, source_topic_ids={})

    def run(self, *, die_in: int = -1) -> Replay:
        """Replay to the end; or die in a batch, before Spark notes it."""
        replay = self.open()
        while replay.prepare(one_start_per_batch="by hand"):
            number = self.checkpoint.newest_offsets()
            assert number is not None
            record = replay.recorded(self.planned(number)).recorded
            assert record is not None
            self.ran.append(record.commit)
            replay.repeated()
            if number == die_in:
                return replay
            self.spark_commits(number, 777)
        return replay


@pytest.mark.parametrize(
    ("kinds", "ran", "last_batch"),
    [
        (["o", "o", "o-", "o"], [2, 3, 4], 3),
        (["o", "o", "t", "t-", "t", "t-"], [2, 3, 5, 6], 4),
        (["o", "t", "t-"], [2, 3], 2),
        (["o", "t", "t-", "t-"], [2, 3, 4], 3),
        (["o", "t-", "t-", "t"], [4], 1),
        (["o", "t", "t-", "o", "o-"], [2, 3, 4, 5], 4),
        (["o", "t", "t-", "t-", "t", "o"], [2, 5, 6], 3),
    ],
)
def test_each_commit_is_run_once_but_for_those_that_the_next_one_takes_in(
    tmp_path: Path, kinds: list[str], ran: list[int], last_batch: int
) -> None:
    query = Query(tmp_path, kinds)
    report = query.run().report
    assert query.ran == ran
    assert (report.first, report.done, report.pending) == (2, len(kinds), False)
    assert query.hold.lineage.batch_of(len(kinds)) == last_batch == query.checkpoint.newest_commit()


@pytest.mark.parametrize("die_in", [1, 2, 3])
def test_a_replay_that_died_goes_on_with_the_batch_that_spark_has_not_noted(tmp_path: Path, die_in: int) -> None:
    kinds = ["o", "o", "t", "t-", "t", "t-", "o"]
    whole = Query(tmp_path / "whole", kinds)
    whole.run()
    assert whole.ran == [2, 3, 5, 6, 7]
    query = Query(tmp_path / "killed", kinds)
    query.run(die_in=die_in)
    query.run()
    # Where the killed batch had taken in what came before it, an earlier record with the same end may stand for it.
    ends = [query.records[commit - 1].source["in"][0][1] for commit in query.ran]
    assert sorted(set(ends)) == [20, 30, 40, 50]
    assert query.hold.lineage == whole.hold.lineage
    assert query.checkpoint.newest_commit() == whole.checkpoint.newest_commit()


def test_entries_have_the_lineages_configuration_and_other_versions_ours_watermark(tmp_path: Path) -> None:
    query = Query(tmp_path, ["o", "o", "t"])
    query.run()
    for batch, watermark in ((1, 200), (2, 777)):
        offsets = query.checkpoint.offsets(batch)
        assert offsets is not None
        assert (offsets.conf, offsets.watermark) == ({"partitions": "2"}, watermark)


def test_plans_that_a_rolled_back_checkpoint_has_left_are_removed(tmp_path: Path) -> None:
    query = Query(tmp_path, ["o", "o", "o"])
    for batch in (1, 2, 3):
        query.checkpoint.write_offsets(batch, text(999, 0))
    replay = query.open()
    assert replay.prepare(one_start_per_batch=None)
    assert query.checkpoint.batches("offsets") == [0, 1]
    assert query.planned(1).offsets.kafka_ends() == {"in": {0: 20}}


def test_a_replay_that_is_frozen_removes_no_plan_of_its_successor(tmp_path: Path) -> None:
    query = Query(tmp_path, ["o", "o", "o"])
    for batch in (1, 2, 3):
        query.checkpoint.write_offsets(batch, text(999, 0))
    successors = {1: text(20, 200), 2: text(30, 300), 3: text(40, 0)}

    def go_on() -> None:
        for batch, planned in successors.items():
            query.checkpoint.write_offsets(batch, planned)

    query.meanwhile = go_on
    with pytest.raises(ChangedError, match="offsets/2 was changed since it was read"):
        query.open().prepare(one_start_per_batch=None)
    found = {batch: query.checkpoint.offsets(batch) for batch in (1, 2, 3)}
    assert {batch: offsets and offsets.text for batch, offsets in found.items()} == successors


def test_a_replay_that_is_superseded_removes_no_plans(tmp_path: Path) -> None:
    query = Query(tmp_path, ["o", "o", "o"])
    for batch in (1, 2, 3):
        query.checkpoint.write_offsets(batch, text(40, 0))

    def superseded() -> None:
        raise FencedError("run 2")

    query.meanwhile = superseded
    with pytest.raises(FencedError):
        query.open().prepare(one_start_per_batch=None)
    assert query.checkpoint.batches("offsets") == [0, 1, 2, 3]


@pytest.mark.parametrize(("end", "watermark", "named"), [(21, 200, "end offsets"), (20, 201, "watermark 201, and 200")])
def test_what_spark_planned_otherwise_is_refused_before_it_runs(
    tmp_path: Path, end: int, watermark: int, named: str
) -> None:
    query = Query(tmp_path, ["o", "o"])
    replay = query.open()
    assert replay.prepare(one_start_per_batch="by hand")
    query.checkpoint.write_offsets(1, text(end, watermark))
    with pytest.raises(DivergedError, match=f"replay of commit 2 stopped before it ran: Spark planned {named}"):
        replay.recorded(query.planned(1))


def test_a_query_that_ends_without_having_replayed_anything_is_an_error(tmp_path: Path) -> None:
    query = Query(tmp_path, ["o", "o"])
    replay = query.open()
    assert replay.prepare(one_start_per_batch=None)
    with pytest.raises(ExactlyOnceError, match="ended at commit 1 of 2"):
        replay.check_progress()


def test_only_what_spark_was_told_is_put_into_its_log_by_another_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "_NO_REASON_SECONDS", -1.0)
    query = Query(tmp_path, ["o", "t", "t-"])
    replay = query.open()
    assert replay.prepare(one_start_per_batch="by hand")
    assert not replay.needs_restart(), "its start may take long, but it finds the batch in its log"
    replay.recorded(query.planned(1))
    replay.repeated()
    assert replay.needs_restart()


def test_other_rows_stop_the_replay_unless_they_were_accepted_or_can_not_be_compared(tmp_path: Path) -> None:
    query = Query(tmp_path, ["o", "o", "t"])
    error = DivergedError("other rows")
    replay = query.open()
    replay.judge(query.records[2], error)
    with pytest.raises(DivergedError, match="other rows"):
        replay.judge(query.records[1], error)
    query.hold.lineage = replace(query.hold.lineage, accept_nondeterminism=True)
    accepting = query.open()
    accepting.judge(query.records[1], error)
    assert accepting.report.diverged == [2]
    assert accepting.report.not_compared == [(THEIRS, 3, 3)]
