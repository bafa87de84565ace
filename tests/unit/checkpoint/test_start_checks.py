from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.start_checks import (
    check_first_offsets,
    check_sources_go_on,
    reconcile,
    settle_first_positions,
)
from airflow_provider_exactlyonce.control.home import Lineage
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.tables.delta_log import DeltaTableLog
from airflow_provider_exactlyonce.tables.offsets import TableOffsets
from tests.ledger_records import claim_record, commit_record
from tests.unit.tables.delta_tables import append

RUN = claim_record(3, lineage="L", home="H", home_path="/homes/p")


def offsets_text(end: int) -> str:
    return f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{}}}}\n{{"in":{{"0":{end}}}}}'


def commit(batch: int) -> CommitRecord:
    return commit_record(
        batch + 1,
        lineage="L",
        batch=batch,
        run=3,
        source={"in": {0: (batch * 10, batch * 10 + 10)}},
        source_topic_ids={"in": "i"},
        offsets=offsets_text(batch * 10 + 10),
        batch_timestamp=1,
    )


TAIL = LedgerTail(
    cluster_id="C", topic_id="T", end_offset=9, claim=RUN, claim_offset=1, commit=commit(4), commit_offset=7
)
LINEAGE = Lineage(id="L", cluster_id="C", ledger_topic_id="T", last_commit=5)


def checkpoint_at(path: Path, *, offsets: int, commits: int) -> Checkpoint:
    """Make a checkpoint with the newest batch ids in its two logs; -1 for an empty log."""
    for log, newest in (("offsets", offsets), ("commits", commits)):
        (path / log).mkdir(parents=True)
        for batch in range(newest + 1):
            text = offsets_text(batch * 10 + 10) if log == "offsets" else 'v1\n{"nextBatchWatermarkMs":0}'
            (path / log / str(batch)).write_text(text)
    return Checkpoint(path)


@pytest.mark.parametrize(("offsets", "commits"), [(4, 4), (5, 4), (4, 3)])
def test_a_checkpoint_that_is_equal_or_one_behind_goes_on_untouched(tmp_path: Path, offsets: int, commits: int) -> None:
    checkpoint = checkpoint_at(tmp_path, offsets=offsets, commits=commits)
    reconcile(checkpoint, LINEAGE, TAIL)
    assert (checkpoint.newest_offsets(), checkpoint.newest_commit()) == (offsets, commits)


@pytest.mark.parametrize("damage", ["missing", "torn", "different"])
def test_offsets_of_a_committed_batch_are_put_back_from_the_ledger(tmp_path: Path, damage: str) -> None:
    checkpoint = checkpoint_at(tmp_path, offsets=4, commits=3)
    file = tmp_path / "offsets/4"
    if damage == "missing":
        file.unlink()
    else:
        file.write_text("" if damage == "torn" else offsets_text(999))
    reconcile(checkpoint, LINEAGE, TAIL)
    assert file.read_text() == commit(4).offsets


def test_a_finished_batch_whose_offsets_differ_from_its_commit_is_refused(tmp_path: Path) -> None:
    checkpoint = checkpoint_at(tmp_path, offsets=4, commits=4)
    (tmp_path / "offsets/4").write_text(offsets_text(999))
    with pytest.raises(RefusedError, match="the state is of other data than the output"):
        reconcile(checkpoint, LINEAGE, TAIL)
    assert (tmp_path / "offsets/4").read_text() == offsets_text(999)


def test_a_plan_that_lacks_a_topic_of_the_batch_before_it_is_removed(tmp_path: Path) -> None:
    checkpoint = checkpoint_at(tmp_path, offsets=5, commits=4)
    (tmp_path / "offsets/5").write_text(offsets_text(60).replace('"in"', '"other"'))
    reconcile(checkpoint, LINEAGE, TAIL)
    assert checkpoint.newest_offsets() == 4


@pytest.mark.parametrize(
    ("declared", "refused"),
    [
        (["in"], False),
        (["in,more"], False),
        (["/i.*/"], False),
        (["more"], True),
        (["/in./"], True),
        (["more", "in"], False),  # its function may read by itself: Spark tells
    ],
)
def test_a_source_that_reads_a_topic_no_more_is_refused_before_spark_plans_without_it(
    declared: list[str], refused: bool
) -> None:
    sources = [SourceTopics.parse(text) for text in declared]
    check_sources_go_on(None, sources)
    if refused:
        with pytest.raises(RefusedError, match="commit 5 has read topic in, and the sources now read"):
            check_sources_go_on(TAIL, sources)
    else:
        check_sources_go_on(TAIL, sources)


def test_a_torn_plan_of_a_batch_that_was_never_begun_is_removed(tmp_path: Path) -> None:
    checkpoint = checkpoint_at(tmp_path, offsets=5, commits=4)
    (tmp_path / "offsets/5").write_text("v1\n{")
    reconcile(checkpoint, LINEAGE, TAIL)
    assert checkpoint.newest_offsets() == 4


def test_a_torn_commit_of_a_committed_batch_is_removed_so_that_spark_runs_it_again(tmp_path: Path) -> None:
    checkpoint = checkpoint_at(tmp_path, offsets=4, commits=4)
    (tmp_path / "commits/4").write_text("")
    reconcile(checkpoint, LINEAGE, TAIL)
    assert (checkpoint.newest_offsets(), checkpoint.newest_commit()) == (4, 3)


@pytest.mark.parametrize(
    ("offsets", "commits", "reason"),
    [(-1, -1, "restore a savepoint"), (6, 5, "set back")],
)
def test_an_empty_checkpoint_and_one_that_is_ahead_are_refused(
    tmp_path: Path, offsets: int, commits: int, reason: str
) -> None:
    with pytest.raises(RefusedError, match=reason):
        reconcile(checkpoint_at(tmp_path, offsets=offsets, commits=commits), LINEAGE, TAIL)


@pytest.mark.parametrize(("offsets", "commits"), [(2, 2), (3, 2), (4, 2), (0, 0)])
def test_a_checkpoint_that_is_further_behind_is_brought_up_by_a_replay(
    tmp_path: Path, offsets: int, commits: int
) -> None:
    checkpoint = checkpoint_at(tmp_path, offsets=offsets, commits=commits)
    assert reconcile(checkpoint, LINEAGE, TAIL)
    assert checkpoint.newest_offsets() == offsets, "the replay writes them"


def test_a_checkpoint_that_was_rolled_back_over_state_of_format_1_is_refused(tmp_path: Path) -> None:
    checkpoint = checkpoint_at(tmp_path, offsets=1, commits=1)
    state = tmp_path / "state/0/1"
    state.mkdir(parents=True)
    (state / "3.delta").touch()
    assert reconcile(checkpoint, LINEAGE, TAIL), "what an uncommitted batch leaves is written again"
    (state / "5.delta").touch()
    with pytest.raises(RefusedError, match=r"5\.delta is newer"):
        reconcile(checkpoint, LINEAGE, TAIL)
    (tmp_path / "commits/1").write_text('v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["a"]]}}')
    assert reconcile(checkpoint, LINEAGE, TAIL), "unique names can't be mixed up"


def test_a_restored_lineage_that_is_one_behind_is_brought_up_by_a_replay(tmp_path: Path) -> None:
    checkpoint = checkpoint_at(tmp_path, offsets=3, commits=3)
    assert reconcile(checkpoint, replace(LINEAGE, id="M", base_batch=3, base_commit=4), TAIL)


def test_the_first_batch_of_a_pipeline_may_be_lost_too(tmp_path: Path) -> None:
    tail = replace(TAIL, commit=commit(0))
    checkpoint = checkpoint_at(tmp_path, offsets=-1, commits=-1)
    reconcile(checkpoint, LINEAGE, tail)
    assert checkpoint.newest_offsets() == 0


def test_a_pipeline_without_commits_starts_from_an_empty_checkpoint(tmp_path: Path) -> None:
    reconcile(Checkpoint(tmp_path), LINEAGE, replace(TAIL, commit=None))
    assert not any(tmp_path.iterdir())


def test_a_new_checkpoint_says_where_its_tables_begin_and_keeps_saying_it(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    declared = [SourceTopics.of("in"), SourceTopics(names=("delta:/t",))]
    settle_first_positions(checkpoint, declared, {"delta:/t": {0: 3_000_000}})
    assert [file.relative_to(tmp_path).as_posix() for file in tmp_path.glob("sources/*/0")] == ["sources/1/0"]
    assert checkpoint.kafka_starts(0) == {"delta:/t": {0: 3_000_000}}
    settle_first_positions(checkpoint, declared, {"delta:/t": {0: 3_000_000}})
    with pytest.raises(ExactlyOnceError, match="another run has begun meanwhile"):
        settle_first_positions(checkpoint, declared, {"delta:/t": {0: 0}})


def test_a_checkpoint_with_batches_is_left_as_it_is(tmp_path: Path) -> None:
    checkpoint = checkpoint_at(tmp_path, offsets=1, commits=1)
    settle_first_positions(checkpoint, [SourceTopics(names=("delta:/t",))], {"delta:/t": {0: 0}})
    assert not (tmp_path / "sources").exists()


def test_a_pipeline_begins_at_a_version_that_the_table_has(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append(table, 1)
    append(table, 2)
    name, offsets = f"delta:{table}", TableOffsets(DeltaTableLog(str(table), {}))
    for position in (0, 500_000, 1_000_000, 1_500_000, 2_000_000):
        check_first_offsets(offsets, {name: {0: position}}, [name])
    with pytest.raises(
        RefusedError, match=r"from version 0 on, and its next one is version 2.* can't begin at version 3"
    ):
        check_first_offsets(offsets, {name: {0: 3_000_000}}, [name])
    with pytest.raises(RefusedError, match=r"can't begin at the table at version 2.*initial_snapshot=True"):
        check_first_offsets(offsets, {name: {0: 2_500_000}}, [name])
