"""A lineage of what is whole. A batch that is cut in half: where it begins stays, and nothing of it is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_exactlyonce.checkpoint import rebuild as rebuilding
from airflow_provider_exactlyonce.checkpoint.layout import KafkaOffsets, parse_offsets
from airflow_provider_exactlyonce.checkpoint.rebuild import halved, rebuild
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from tests.unit.checkpoint import crafted

HEADER = '{"batchWatermarkMs":7,"batchTimestampMs":8,"conf":{"a":"b"}}'


def plan(*sources: object) -> str:
    return "\n".join(["v1", HEADER, *("-" if source is None else json.dumps(source) for source in sources)])


def cut(starts: KafkaOffsets, *sources: object) -> list[object]:
    entry = parse_offsets(halved(parse_offsets(plan(*sources)), starts))
    assert (entry.watermark, entry.timestamp, entry.conf) == (7, 8, {"a": "b"})
    return [None if line is None else json.loads(line) for line in entry.sources]


def test_each_partition_ends_half_way_and_a_source_without_an_offset_stays_without() -> None:
    starts = {"in": {0: 10, 1: 5, 2: 3}, "other": {0: 0}}
    assert cut(starts, {"in": {"0": 20, "1": 8, "2": 3}}, None, {"other": {"0": 9}}) == [
        {"in": {"0": 15, "1": 6, "2": 3}},
        None,
        {"other": {"0": 4}},
    ]


def test_a_batch_of_one_record_a_partition_keeps_one_record() -> None:
    assert cut({"in": {0: 4, 1: 5}}, {"in": {"0": 5, "1": 6}}) == [{"in": {"0": 5, "1": 5}}]


def test_a_partition_that_the_batch_is_the_first_to_read_is_left_to_the_next_one() -> None:
    assert cut({"in": {0: 0}}, {"in": {"0": 8, "1": 100}}) == [{"in": {"0": 4}}]


def test_a_topic_that_the_batch_is_the_first_to_read_is_left_to_the_next_one() -> None:
    assert cut({"in": {0: 0}}, {"new": {"0": 9}, "in": {"0": 8}}) == [{"in": {"0": 4}}]


@pytest.mark.parametrize("source", [{"in": {"0": 5}}, {"in": {"0": 4}}])
def test_a_batch_of_one_record_or_none_can_not_be_cut(source: object) -> None:
    with pytest.raises(RefusedError, match="can't be cut"):
        cut({"in": {0: 4}}, source)


def test_a_batch_of_files_can_not_be_cut() -> None:
    with pytest.raises(RefusedError, match="isn't Kafka"):
        cut({}, {"logOffset": 3})


def test_a_batch_of_a_table_can_not_be_cut() -> None:
    with pytest.raises(RefusedError, match=r"a batch of a table can't be cut.*max_files_per_trigger"):
        cut({"delta:/t": {0: 0}}, {"delta:/t": {"0": 3_000_000}})


@given(st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1))
def test_a_cut_batch_is_smaller_not_empty_and_never_begins_earlier(ranges: dict[int, tuple[int, int]]) -> None:
    starts = {"in": {partition: start for partition, (start, _) in ranges.items()}}
    ends = {str(partition): start + size for partition, (start, size) in ranges.items()}
    total = sum(size for _, size in ranges.values())
    if total < 2:
        with pytest.raises(RefusedError):
            cut(starts, {"in": ends})
        return
    (position,) = cut(starts, {"in": ends})
    assert isinstance(position, dict)
    assert all(starts["in"][int(p)] <= end <= ends[p] for p, end in position["in"].items())
    left = sum(end - starts["in"][int(p)] for p, end in position["in"].items())
    assert 1 <= left <= (total + 1) // 2


@pytest.mark.parametrize("cut", [False, True])
def test_what_a_reemit_restored_is_made_a_lineage_that_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, cut: bool
) -> None:
    home = Home(tmp_path / "home")
    old = crafted.reemitting(home)
    (home.checkpoint(old.id) / "offsets/3").write_text(crafted.offsets_text(9))
    monkeypatch.setattr(rebuilding, "LedgerReader", lambda config, pipeline: crafted.reemitted())
    made = rebuild(home, "p", {}, cut=cut)
    assert (made.base_batch, made.base_commit, made.reemits) == (2, 20, 3)
    assert home.current() == made


def test_a_batch_that_is_not_the_commit_which_a_reemit_restored_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    crafted.reemitting(home)
    ledger = crafted.Ledger(crafted.record(1, commit=3), crafted.record(2, commit=20))
    monkeypatch.setattr(rebuilding, "LedgerReader", lambda config, pipeline: ledger)
    with pytest.raises(RefusedError, match="is not what the ledger has as commit 3"):
        rebuild(home, "p", {})
