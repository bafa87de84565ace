"""The audit on a real broker: what is right passes, and each planted wrong is found where it was planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_provider_exactlyonce.audit.check import AuditOptions, audit
from airflow_provider_exactlyonce.audit.findings import Report
from airflow_provider_exactlyonce.exceptions import AuditFailedError, RefusedError
from airflow_provider_exactlyonce.ledger.records import OtherSink, SinkRange, backfill_pipeline
from tests import commands
from tests.integration.ledger.crafted import CraftedPipeline, rows_of
from tests.waiting import eventually


@pytest.fixture
def crafted(kafka_config: Mapping[str, str], make_topic: Callable[..., str]) -> Iterator[CraftedPipeline]:
    sink = make_topic(partitions=3)
    with CraftedPipeline(kafka_config, f"p-{sink}", sink) as pipeline:
        pipeline.claim()
        yield pipeline


def audited(crafted: CraftedPipeline, **options: Any) -> Report:
    return audit(crafted.config, crafted.pipeline, AuditOptions(**{"patience_seconds": 10.0, **options}))


def only(report: Report) -> tuple[str, int, int, int, str]:
    """Return the one violation: invariant, commit, partition, offset, message."""
    assert len(report.found) == 1, [str(violation) for violation in report.found]
    violation = report.found[0]
    return violation.invariant, violation.commit, violation.partition, violation.offset, violation.message


def send(crafted: CraftedPipeline, partition: int, rows: list[tuple[bytes | None, bytes | None]]) -> int:
    """Write with an ordinary transactional producer; returns the first offset."""
    producer = Producer({**crafted.config, "transactional.id": "another"})
    producer.init_transactions(30)
    producer.begin_transaction()
    offsets: list[int] = []
    for key, value in rows:
        producer.produce(
            crafted.sink,
            value,
            key,
            partition,
            on_delivery=lambda error, message: offsets.append(message.offset() or 0),
        )
    producer.commit_transaction(30)
    return min(offsets)


def test_a_clean_pipeline_passes_with_aborts_empty_batches_restarts_nulls_and_many_windows(
    crafted: CraftedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_exactlyonce.audit.check._WINDOW_COMMITS", 3)
    crafted.abort(rows_of(0))
    for batch in range(5):
        crafted.commit(rows_of(batch))
    crafted.abort(rows_of(5))
    crafted.commit({})
    crafted.commit({2: [(None, b"keyless"), (b"tombstone", None), (None, None), (b"", b"")]})
    crafted.claim()
    crafted.commit(rows_of(8, partitions=3, count=2000))
    crafted.abort(rows_of(9))
    report = audited(crafted)
    assert report.found == ()
    assert (report.first, report.last, report.rows, report.ranges) == (1, 8, 5 * 10 + 4 + 6000, 5 * 2 + 1 + 3)


def test_a_part_of_the_commits_can_be_judged(crafted: CraftedPipeline) -> None:
    for batch in range(6):
        crafted.commit(rows_of(batch))
    report = audited(crafted, first=3, last=4)
    assert report.is_clean
    assert (report.first, report.last, report.rows) == (3, 4, 20)
    with pytest.raises(RefusedError, match="the ledger has 1 to 6"):
        audited(crafted, last=7)


def test_a_pipeline_without_a_ledger_is_refused(kafka_config: Mapping[str, str]) -> None:
    with pytest.raises(RefusedError, match="has never been started here"):
        audit(kafka_config, "nobody", AuditOptions(patience_seconds=1))


def test_a_doubled_batch_is_found(crafted: CraftedPipeline) -> None:
    crafted.commit(rows_of(0))
    crafted.commit(rows_of(1))
    offset = send(crafted, 1, rows_of(0)[1])
    crafted.commit(rows_of(2))
    invariant, commit, partition, at, message = only(audited(crafted))
    assert (invariant, commit, partition, at) == ("I1", 1, 1, offset)
    assert "doubled batch: 5 readable rows" in message
    assert "not this pipeline's" in message


def test_a_readable_record_in_no_commit_is_found_and_its_producer_named(crafted: CraftedPipeline) -> None:
    crafted.commit(rows_of(0))
    crafted.session.begin()
    written = crafted.append({0: [(b"k", b"readable, although never in the ledger")]})
    crafted.session.commit()
    crafted.commit(rows_of(1))
    invariant, commit, partition, at, message = only(audited(crafted))
    assert (invariant, commit, partition, at) == ("I2", 1, 0, written[0].first)
    assert message.endswith(", this pipeline's")


def test_records_of_other_producers_are_passed_over_only_when_allowed(crafted: CraftedPipeline) -> None:
    crafted.commit(rows_of(0))
    send(crafted, 0, [(b"k", b"somebody else's")])
    crafted.session.begin()
    first = crafted.append({0: rows_of(1)[0]})[0]
    send(crafted, 0, [(b"k", b"in between")])
    crafted.end(crafted.record({0: first}))
    crafted.commit(rows_of(2))
    report = audited(crafted)
    assert {violation.invariant for violation in report.found} == {"I2"}
    assert "not this pipeline's" in report.found[0].message
    allowed = audited(crafted, allow_foreign=True)
    assert allowed.is_clean
    assert (allowed.foreign_rows, allowed.rows) == (2, 25)


def test_a_foreign_record_inside_a_range_is_found(crafted: CraftedPipeline) -> None:
    crafted.commit(rows_of(0))
    crafted.session.begin()
    first = crafted.append({0: rows_of(1, count=1)[0]})[0]
    send(crafted, 0, [(b"k", b"in between")])
    record = crafted.record({0: SinkRange(first=first.first, last=first.last + 1, rows=1, digest=first.digest)})
    crafted.end(record)
    invariant, commit, _, at, message = only(audited(crafted))
    assert (invariant, commit, at) == ("I1", 2, first.first)
    assert "2 rows are readable" in message
    assert audited(crafted, allow_foreign=True).is_clean


def test_a_batch_whose_records_were_never_there_is_lost(crafted: CraftedPipeline) -> None:
    crafted.commit(rows_of(0))
    crafted.abort(rows_of(1))
    crafted.session.begin()
    crafted.end(crafted.record({0: SinkRange(first=6, last=10, rows=5, digest=1)}))
    crafted.commit(rows_of(2))
    invariant, commit, partition, at, message = only(audited(crafted))
    assert (invariant, commit, partition, at) == ("I1", 2, 0, 6)
    assert "the batch is lost: 0 of its 5 rows" in message
    assert "of an aborted transaction" in message


def test_a_batch_whose_records_were_deleted_is_lost(crafted: CraftedPipeline) -> None:
    for batch in range(3):
        crafted.commit(rows_of(batch))
    admin = AdminClient(dict(crafted.config))
    place = TopicPartition(crafted.sink, 0, 9)
    admin.delete_records([place])[place].result()
    report = audited(crafted)
    # Offsets 0 to 4 and 6 to 10: of the first commit partition 0 is gone, of the second a part of it.
    assert [
        (violation.invariant, violation.commit, violation.partition, violation.offset) for violation in report.found
    ] == [
        ("I3", 1, 0, 0),
        ("I3", 2, 0, 6),
    ]
    assert "the log begins at 9: they were deleted" in report.found[0].message


def test_what_retention_has_removed_is_counted_and_no_violation(
    kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    sink = make_topic(partitions=2, **{"retention.ms": "1000", "segment.bytes": "1048576"})
    with CraftedPipeline(kafka_config, f"p-{sink}", sink) as crafted:
        crafted.claim()
        crafted.commit(rows_of(0), committed=1_700_000_000_000)
        crafted.commit(rows_of(1))
        admin = AdminClient(dict(crafted.config))
        place = TopicPartition(sink, 0, 5)
        admin.delete_records([place])[place].result()
        report = audited(crafted)
        assert report.is_clean
        assert report.expired_ranges == 1


def test_rows_beyond_the_end_of_the_log_are_lost(crafted: CraftedPipeline) -> None:
    crafted.session.begin()
    crafted.end(crafted.record({1: SinkRange(first=0, last=4, rows=5, digest=1)}))
    invariant, _, partition, at, message = only(audited(crafted, patience_seconds=0.5))
    assert (invariant, partition, at) == ("I1", 1, 0)
    assert "the log ends here" in message


def test_a_torn_batch_is_found(crafted: CraftedPipeline) -> None:
    crafted.commit(rows_of(0))
    crafted.abort({1: rows_of(1)[1]})
    crafted.session.begin()
    written = crafted.append({0: rows_of(1)[0]})
    crafted.end(crafted.record({**written, 1: SinkRange(first=6, last=10, rows=5, digest=1)}))
    crafted.commit(rows_of(2))
    invariant, commit, partition, at, message = only(audited(crafted))
    assert (invariant, commit, partition, at) == ("I3", 2, 1, 6)
    assert "the batch is torn: 5 of its 10 rows are readable" in message


def test_a_changed_record_is_found_by_its_digest(crafted: CraftedPipeline) -> None:
    crafted.session.begin()
    written = crafted.append(rows_of(0, partitions=1))
    other = replace(written[0], digest=(written[0].digest + 1) % 2**64)
    crafted.end(crafted.record({0: other}))
    assert only(audited(crafted))[:4] == ("I7", 1, 0, 0)


def test_a_gap_in_the_source_and_a_repeated_commit_number_are_found(crafted: CraftedPipeline) -> None:
    crafted.commit(rows_of(0))
    crafted.commit(rows_of(1), source={"in": {0: (12, 20)}})
    crafted.commit(rows_of(2), commit=2)
    violations = {
        (violation.invariant, violation.commit, violation.topic, violation.partition, violation.message)
        for violation in audited(crafted).found
    }
    assert violations == {
        ("I4", 2, "in", 0, "source offsets 10 to 11 are in no commit"),
        ("I4", 2, "", -1, "the number is repeated: commit 2 is before it in the ledger"),
    }


@pytest.mark.parametrize("whose", ["ours", "another's"])
def test_an_open_transaction_that_holds_back_readers_is_found(crafted: CraftedPipeline, whose: str) -> None:
    crafted.commit(rows_of(0))
    if whose == "ours":
        crafted.session.begin()
        crafted.append({0: rows_of(1)[0]})
        number = crafted.session.producer.id
    else:
        producer = Producer({**crafted.config, "transactional.id": f"hangs-{crafted.sink}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(crafted.sink, b"open", partition=0)
        producer.flush(10)
        crafted.commit(rows_of(1))  # behind it, and not judged
        number = None
    report = audited(crafted, patience_seconds=1.0)
    invariant, _, partition, at, message = only(report)
    assert (invariant, partition, at) == ("I6", 0, 6)
    assert "holds back readers from here on" in message
    if number is not None:
        assert f"producer {number}, epoch {crafted.session.producer.epoch}" in message
        crafted.session.abort()
    else:
        producer.abort_transaction(10)
    crafted.settle()
    assert audited(crafted).is_clean


def test_a_deleted_and_a_recreated_sink_topic_are_found(crafted: CraftedPipeline) -> None:
    crafted.commit(rows_of(0), sink_topic_ids={crafted.sink: "another id"})
    assert "was recreated" in only(audited(crafted))[4]
    admin = AdminClient(dict(crafted.config))
    admin.delete_topics([crafted.sink])[crafted.sink].result()
    eventually(lambda: crafted.sink not in admin.list_topics().topics, f"{crafted.sink} is deleted")
    assert "does not exist any more" in only(audited(crafted))[4]


def test_the_command_says_what_it_found_and_ends_with_its_own_code(crafted: CraftedPipeline) -> None:
    crafted.commit(rows_of(0))
    command = ["audit", crafted.pipeline, "--bootstrap-servers", crafted.config["bootstrap.servers"]]
    crafted.settle()
    assert "I1  holds" in commands.run(*command).out
    send(crafted, 0, [(b"k", b"v")])
    said = commands.run(*command, "--json", code=AuditFailedError.exit_code)
    report = said.body
    assert report["clean"] is False
    assert report["violations"] == {"I2": 1}
    assert (report["found"][0]["partition"], report["found"][0]["offset"]) == (0, 6)
    assert f"AuditFailedError: I2, commit 1, {crafted.sink}-0, offset 6: " in said.err
    assert "1 rows of other producers were passed over" in commands.run(*command, "--allow-foreign").out


def test_the_command_says_which_sinks_it_has_not_looked_at(crafted: CraftedPipeline) -> None:
    crafted.commit({}, others={"lake": OtherSink(rows=7, digest=1), "archive": OtherSink(rows=7, digest=1)})
    crafted.settle()
    command = ["audit", crafted.pipeline, "--bootstrap-servers", crafted.config["bootstrap.servers"]]
    said = commands.run(*command)
    assert "rows in other sinks (archive, lake) are not judged here: exactlyonce audit-sinks does that" in said.out
    assert commands.run(*command, "--json").body["unjudged_sinks"] == ["archive", "lake"]


@pytest.fixture
def again(crafted: CraftedPipeline) -> Iterator[CraftedPipeline]:
    """Give the backfills of the pipeline, which write into the same topic."""
    with CraftedPipeline(crafted.config, backfill_pipeline(crafted.pipeline), crafted.sink) as backfills:
        backfills.claim()
        yield backfills


def test_what_backfills_write_again_is_not_doubled(crafted: CraftedPipeline, again: CraftedPipeline) -> None:
    crafted.commit(rows_of(0))
    again.commit(rows_of(0), backfill="first")
    again.abort(rows_of(0))
    crafted.commit(rows_of(1))
    again.commit(rows_of(1), backfill="first")
    read_twice = {"in": {0: (0, 20)}}
    again.commit(rows_of(0), backfill="second", source=read_twice)
    again.commit({}, backfill="second", source={"in": {0: (20, 20)}}, result={"rows": 10})
    report = audited(crafted)
    assert report.found == ()
    assert (report.rows, report.backfills, report.backfilled_rows) == (20, 2, 30)
    assert audited(crafted, allow_foreign=True).foreign_rows == 0
    assert audited(crafted, first=2).backfills == 0, "a part of the commits is judged without them"


def test_what_a_backfill_doubles_or_loses_is_found_by_its_own_ledger(
    crafted: CraftedPipeline, again: CraftedPipeline
) -> None:
    crafted.commit(rows_of(0))
    again.commit(rows_of(0), backfill="first")
    again.session.begin()
    stray = again.append({1: rows_of(0)[1]})
    again.session.commit()
    invariant, commit, partition, at, message = only(audited(crafted))
    assert (invariant, commit, partition, at) == ("I1", 1, 1, stray[1].first)
    assert message.startswith("backfills: doubled batch: 5 readable rows")
    assert message.endswith(", this pipeline's")


def test_a_backfill_that_reads_its_source_twice_is_found(crafted: CraftedPipeline, again: CraftedPipeline) -> None:
    crafted.commit(rows_of(0))
    again.commit(rows_of(0), backfill="first")
    again.commit(rows_of(1), backfill="first", source={"in": {0: (5, 20)}})
    invariant, commit, *_, message = only(audited(crafted))
    assert (invariant, commit) == ("I4", 2)
    assert "source offsets 5 to 9 are in an earlier commit, too" in message


def test_a_copy_of_what_a_backfill_wrote_is_a_violation(crafted: CraftedPipeline, again: CraftedPipeline) -> None:
    crafted.commit(rows_of(0))
    again.commit(rows_of(0), backfill="first")
    offset = send(crafted, 1, rows_of(0)[1])
    invariant, _, partition, at, message = only(audited(crafted))
    assert (invariant, partition, at) == ("I1", 1, offset)
    assert "not this pipeline's" in message
