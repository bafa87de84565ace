"""The ledger's records and the settings of its topic: what is written is what is read, however many partitions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.records import (
    KAFKA,
    RECORD_BYTES_MAXIMUM,
    ClaimRecord,
    CommitRecord,
    LateRows,
    LedgerPointer,
    OtherSink,
    SinkRange,
    decode,
    encode,
    shown,
)
from airflow_provider_exactlyonce.ledger.topic_identity import KnownTopic, known_sinks

BEFORE = LedgerPointer(commit=6, commit_offset=17, run=2, run_offset=3, oldest=4)
RUN = ClaimRecord(
    pipeline="shop",
    run=2,
    host="h",
    pid=7,
    token="t",
    lineage="l",
    version="v",
    home="id",
    home_path="/home",
    base_commit=6,
    claimed=1_700_000_000_000,
    before=BEFORE,
)


def commit_of(partitions: int) -> CommitRecord:
    ends = {partition: 10**9 + partition for partition in range(partitions)}
    return CommitRecord(
        pipeline="shop",
        commit=7,
        lineage="0b6f1a4e-5f52-4ae5-a5ef-b7a4a9e5a0f3",
        batch=5,
        run=2,
        version="0123456789ab",
        source={"events": {partition: (end - 70_000, end) for partition, end in ends.items()}},
        source_topic_ids={"events": "AAAAAAAAAAAAAAAAAAAAAA"},
        sink={
            "totals": {
                partition: SinkRange(first=end - 60_000, last=end, rows=60_001, digest=2**64 - 1 - partition)
                for partition, end in ends.items()
            }
        },
        offsets="v1\n{}\n" + json.dumps({"events": ends}),
        watermark=1_700_000_000_000,
        batch_timestamp=1_700_000_000_001,
        rows=60_001 * partitions,
        digest=2**64 - 1,
        producer_id=2**40,
        epoch=32_000,
        started=1,
        committed=2,
        before=BEFORE,
        sink_topic_ids={"totals": "BBBBBBBBBBBBBBBBBBBBBB"},
        earlier_sink_topics={"corrections": ("CCCCCCCCCCCCCCCCCCCCCC", 3)},
        bad_records=3,
    )


def counted() -> Any:
    late = [LateRows(operator=0, name="stateStoreSave", rows=7, watermark=1_700_000_000_000)]
    others = {"table": OtherSink(rows=4, digest=1), "files": OtherSink(rows=5, digest=2, dataset=("file", "/lake"))}
    return replace(commit_of(1), primary=KAFKA, records=9, late=late, late_total=70, late_topic="late", others=others)


@pytest.mark.parametrize("record", [RUN, commit_of(1), commit_of(0), replace(commit_of(1), sink={}), counted()])
def test_what_is_decoded_is_what_was_encoded(record: Any) -> None:
    decoded = decode(encode(record))
    assert decoded == record
    if isinstance(decoded, CommitRecord):  # what is not compared
        assert {name: share.dataset for name, share in decoded.others.items()} == {
            name: share.dataset for name, share in record.others.items()
        }


def test_a_commit_of_before_late_rows_were_told_does_not_say_that_there_were_none() -> None:
    body = json.loads(encode(counted()))
    for name in ("primary", "records", "late", "late_total", "late_topic"):
        del body[name]
    decoded = decode(json.dumps(body).encode())
    assert isinstance(decoded, CommitRecord)
    assert (decoded.records, decoded.late, decoded.late_rows, decoded.late_total) == (None, None, None, 0)
    assert decoded.rows_by_sink == {KAFKA: 60_001, "table": 4, "files": 5}, "it has written to Kafka"


def test_each_sinks_rows_are_told_the_primary_one_first() -> None:
    assert counted().rows_by_sink == {KAFKA: 60_001, "table": 4, "files": 5}
    assert counted().primary_rows == 60_001
    others = replace(counted(), primary="table", rows=0, sink={})
    assert (others.rows_by_sink, others.primary_rows) == ({"table": 4, "files": 5}, 4)
    before = replace(others, primary=None)
    assert (before.rows_by_sink, before.primary_rows) == ({"table": 4, "files": 5}, 4)
    nothing_for_kafka = replace(counted(), rows=0, sink={})
    assert (list(nothing_for_kafka.rows_by_sink), nothing_for_kafka.primary_rows) == ([KAFKA, "table", "files"], 0)


def test_a_claim_of_before_guarantees_were_told_is_of_exactly_once() -> None:
    body = json.loads(encode(RUN))
    del body["guarantee"], body["lost"]
    assert decode(json.dumps(body).encode()) == RUN


def test_a_commit_of_before_earlier_topics_were_told_has_those_that_it_wrote_to() -> None:
    body = json.loads(encode(commit_of(1)))
    del body["earlier_sink_topics"]
    decoded = decode(json.dumps(body).encode())
    assert decoded == replace(commit_of(1), earlier_sink_topics={})
    assert known_sinks(decoded) == {"totals": KnownTopic("BBBBBBBBBBBBBBBBBBBBBB", 7)}


def test_a_claim_tells_which_source_ranges_may_be_lost() -> None:
    claim = replace(RUN, guarantee="at_most_once", lost={6: {"events": {0: (10, 20), 1: (3, 3)}}})
    decoded = decode(encode(claim))
    assert decoded == claim
    assert shown(decoded.lost[6]) == "events-0 10..20"


def test_no_number_in_the_json_is_above_what_other_readers_keep_exactly() -> None:
    def numbers(value: Any) -> list[int]:
        if isinstance(value, dict):
            return [number for member in value.values() for number in numbers(member)]
        if isinstance(value, list):
            return [number for member in value for number in numbers(member)]
        return [value] if isinstance(value, int) else []

    assert max(numbers(json.loads(encode(commit_of(3))))) < 2**53


def test_ten_thousand_source_and_sink_partitions_take_an_eighth_of_what_the_topic_accepts() -> None:
    value = encode(commit_of(10_000))
    assert len(value) < RECORD_BYTES_MAXIMUM / 6.5, len(value)
    assert decode(value) == commit_of(10_000)


def test_a_record_that_no_topic_accepts_is_refused_with_its_size() -> None:
    with pytest.raises(RefusedError, match=r"commit/7 of pipeline shop takes \d{7,} bytes, at most 8323072"):
        encode(replace(commit_of(1), offsets="x" * RECORD_BYTES_MAXIMUM))


@pytest.mark.parametrize("value", [b"", b"17", b"[1]", b"\xff\x00", b"hello"])
def test_what_is_no_record_of_ours_is_said_to_be_foreign(value: bytes) -> None:
    with pytest.raises(RefusedError, match=r"something else writes to its topic"):
        decode(value)


@pytest.mark.parametrize(("change", "said"), [({"schema": 99}, "schema 99"), ({"kind": "x"}, "kind 'x'")])
def test_a_record_of_another_release_is_refused_by_what_differs(change: dict[str, Any], said: str) -> None:
    body = json.loads(encode(RUN)) | change
    with pytest.raises(RefusedError, match=said):
        decode(json.dumps(body).encode())
