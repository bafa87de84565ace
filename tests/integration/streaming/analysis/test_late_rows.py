"""Rows behind the watermark: counted before their batch commits, told everywhere, and never twice."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import LateRowsError, RefusedError
from airflow_provider_exactlyonce.ledger import gate
from airflow_provider_exactlyonce.ledger.gate_target import GateTarget
from airflow_provider_exactlyonce.ledger.records import CommitRecord, LateRows
from tests import commands
from tests.integration.streaming.harness import (
    Driver,
    World,
    check_ledger,
    clean_audit,
    open_transactions,
    read_committed,
)

pytestmark = pytest.mark.timeout(600)

#: Minutes of the records' times, by batch. What ends at or before the watermark two batches back is late.
BATCHES = (range(10), range(10, 20), [1] * 6 + [20] * 4, [2] * 3 + [30] * 7)
MIDNIGHT = 1_704_067_200_000
LATE = {
    3: LateRows(operator=0, name="stateStoreSave", rows=6, watermark=MIDNIGHT + 8 * 60_000),
    4: LateRows(operator=0, name="stateStoreSave", rows=3, watermark=MIDNIGHT + 18 * 60_000),
}


@pytest.fixture
def late(world: World, make_topic: Callable[..., str]) -> World:
    """Give a pipeline whose source has late records in its third and fourth batch, and one that the job filters."""
    late_world = replace(world, job="windows.py", source=make_topic(partitions=1))
    producer = Producer(dict(late_world.config))
    for batch, minutes in enumerate(BATCHES):
        for number, minute in enumerate(minutes):
            number = -1 if batch == number == 0 else 10 * batch + number
            producer.produce(late_world.source, json.dumps({"id": number, "ts": f"2024-01-01T00:{minute:02d}:00Z"}))
    assert producer.flush(30) == 0
    return late_world


def start(world: World, late_rows: str, failpoint: str | None = None, **environment: str) -> Driver:
    return world.start(environment={"TEST_LATE_ROWS": late_rows, **environment}, failpoints=failpoint)


def counted(world: World) -> int:
    """Return how many records the newest count of each window adds up to."""
    counts = Counter[str]()
    for record in read_committed(world.config, world.sink):
        value = json.loads(record.value or b"")
        counts[value["window"]["start"]] = max(counts[value["window"]["start"]], value["n"])
    return counts.total()


def check_rows(world: World) -> list[CommitRecord]:
    """Check that every source record is in the output, filtered or late; return the commits."""
    commits = check_ledger(world)
    assert [commit.records for commit in commits[:4]] == [10] * 4
    assert sum(commit.records or 0 for commit in commits) == 40 == counted(world) + 1 + 9
    assert {commit.commit: list(commit.late or ()) for commit in commits if commit.late} == {
        number: [of] for number, of in LATE.items()
    }
    assert [commit.late_total for commit in commits[:4]] == [0, 0, 6, 9]
    clean_audit(world.config, world.pipeline)
    return commits


def test_rows_behind_the_watermark_are_counted_and_told_in_every_place(late: World) -> None:
    driver = start(late, "count")
    assert driver.wait() == 0, driver.output()[-3000:]
    commits = check_rows(late)
    last_status = status.read(Home(late.home).status)
    assert last_status is not None
    assert (last_status.records, last_status.late_rows, last_status.late_total) == (40, 9, 9)
    assert (last_status.rows, last_status.rows_by_sink) == (
        sum(commit.rows for commit in commits),
        {"Kafka": last_status.rows},
    )
    said = "commit 3: rows that were late are left out: 6 behind 2024-01-01T00:08:00.000+00:00 in operator 0"
    assert said in driver.output()
    assert "commit 3, batch 2: 1 rows of 10 records" in driver.output()
    verdict = gate.check(late.config, late.pipeline, GateTarget(commit=4))
    assert (verdict.open, verdict.late_rows) == (True, 9)
    shown = commands.run("status", late.pipeline, *late.servers, "--json").body
    assert (shown["late_rows"], shown["records_of_run"], shown["rows_of_run"]) == (9, 40, {"Kafka": last_status.rows})
    findings = commands.run("doctor", late.pipeline, *late.servers, "--json").body["findings"]
    assert [(finding["name"], finding["severity"]) for finding in findings] == [("late-rows", "info")]
    assert "left out 9 rows" in findings[0]["what"]


@pytest.mark.slow
def test_a_batch_that_is_run_again_leaves_out_the_same_rows_and_counts_them_once(late: World) -> None:
    killed = start(late, "count", failpoint="after-end-transaction:batch=2")
    assert killed.wait() == -signal.SIGKILL, killed.output()[-3000:]
    again = start(late, "count", failpoint="during-send:batch=3")
    assert again.wait() == -signal.SIGKILL, again.output()[-3000:]
    assert "was committed before" in again.output()
    last = start(late, "count")
    assert last.wait() == 0, last.output()[-3000:]
    check_rows(late)
    last_status = status.read(Home(late.home).status)
    assert last_status is not None
    assert (last_status.late_rows, last_status.late_total) == (3, 9)


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once", "at_most_once"])
def test_a_batch_with_late_rows_is_not_committed_by_a_pipeline_that_stops_at_them(late: World, guarantee: str) -> None:
    stopped = start(late, "stop", TEST_GUARANTEE=guarantee)
    assert stopped.wait() == LateRowsError.exit_code, stopped.output()[-3000:]
    assert "6 behind 2024-01-01T00:08:00.000+00:00 in operator 0 (stateStoreSave)" in stopped.output()
    assert [commit.commit for commit in check_ledger(late)] == [1, 2]
    assert counted(late) == 19, "nothing of the third batch can be seen"
    assert open_transactions(late.config, late.sink) == {}
    if guarantee == "exactly_once":
        last = start(late, "count")
        assert last.wait() == 0, last.output()[-3000:]
        check_rows(late)


@pytest.mark.slow
def test_late_rows_go_to_a_topic_in_the_transaction_of_their_batch(late: World, make_topic: Callable[..., str]) -> None:
    refused = start(late, "topic")
    assert refused.wait() == RefusedError.exit_code, refused.output()[-3000:]
    assert f"{late.sink}.late" in refused.output()
    topic = make_topic(partitions=2)
    killed = start(late, "topic", failpoint="after-pre-commit:batch=2", TEST_LATE_TOPIC=topic)
    assert killed.wait() == -signal.SIGKILL, killed.output()[-3000:]
    last = start(late, "topic", TEST_LATE_TOPIC=topic)
    assert last.wait() == 0, last.output()[-3000:]
    commits = check_rows(late)
    records = read_committed(late.config, topic)
    starts = [json.loads(record.value or b"")["window"]["start"][14:16] for record in records]
    assert Counter(starts) == {"01": 6, "02": 3}
    headers = dict(records[0].headers)
    assert headers["exactlyonce.origin"] == b"operator 0 (stateStoreSave)"
    assert headers["exactlyonce.reason"].startswith(b"behind the watermark 2024-01-01T00:")
    assert [commit.rows for commit in commits[:4]] == [9, 10, 1, 1], "they are no rows of the result"
