"""What an upgrade sees of a pipeline: whether it is stable, and what it has delivered. A real ledger, and no Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_provider_exactlyonce.control import lease, status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.status import DriverError, DriverState, Status
from airflow_provider_exactlyonce.control.upgrade_plan import Options, Plan, UpgradeStep
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka.digest import BACKFILL_HEADER
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.upgrade import delivered, stability
from tests.integration.ledger.crafted import CraftedPipeline, rows_of

PLAN = Plan(
    id="a1",
    pipeline="p",
    step=UpgradeStep.WATCH,
    options=Options(stable_after=2, stable_timeout=60.0),
    token="t",
    log="/nowhere/driver.log",
    lag_peak=30,
)
RUNNING = Status(pipeline="p", token="t", state=DriverState.RUNNING)


class Watched(CraftedPipeline):
    """A pipeline that reads a topic that is there."""

    source = ""

    def read(self, end: int, **rows: object) -> CommitRecord:
        """Commit a batch that has read up to an offset."""
        return self.commit({}, source={self.source: {0: (self.source_end, end)}})

    def note(self, record: CommitRecord, offset: int) -> None:
        super().note(replace(record, source={"in": next(iter(record.source.values()))}), offset)


@pytest.fixture
def watched(kafka_config: Mapping[str, str], make_topic: Callable[..., str]) -> Iterator[Watched]:
    source, sink = make_topic(partitions=1), make_topic(partitions=2)
    with Watched(kafka_config, f"p-{source}", sink) as made:
        made.source = source
        producer = Producer(dict(kafka_config))
        for number in range(100):
            producer.produce(source, value=str(number).encode())
        assert producer.flush(10) == 0
        made.claim()
        yield made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.1)
    home = Home(tmp_path / "home")
    home.create("p")
    with lease.holding(home.lease, "p", "t"):
        yield home


def look(home: Home, watched: Watched, *, commits: int, **changes: object) -> stability.StabilityReport:
    status.write(home.status, replace(RUNNING, commits_of_run=commits))
    begun: dict[str, object] = {"entered": time.time(), **changes}
    plan = replace(PLAN, pipeline=watched.pipeline, **begun)  # type: ignore[arg-type]
    return stability.look(home, plan, watched.config)


def test_a_version_is_stable_after_its_commits_when_no_more_waits_than_at_its_start(
    home: Home, watched: Watched
) -> None:
    watched.read(80)
    seen = look(home, watched, commits=1)
    assert (seen.commits, seen.lag, seen.stable, seen.unstable) == (1, 20, None, None)
    assert look(home, watched, commits=2).stable == "2 commits, 20 source records to go"
    assert look(home, watched, commits=2, lag_peak=19).stable is None, "the lag grows"
    overdue = look(home, watched, commits=2, lag_peak=19, entered=time.time() - 61)
    assert overdue.unstable is not None
    assert "within 60 s it made 2 of 2 commits; it is running, 20 source records are not committed (19 when" in (
        overdue.unstable
    )


def test_one_that_never_commits_is_unstable_in_the_end_and_one_with_nothing_to_commit_is_stable(
    home: Home, watched: Watched
) -> None:
    watched.read(80)
    late = time.time() - 61
    assert "it made 0 of 2 commits" in str(look(home, watched, commits=0, entered=late).unstable)
    watched.read(100)
    assert look(home, watched, commits=0).stable is None
    assert look(home, watched, commits=0, entered=late).stable == "0 commits, and nothing is left to commit"


def test_one_whose_transaction_stays_open_is_not_stable(
    home: Home, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.read(100)
    monkeypatch.setattr(stability, "_OPEN_SECONDS", 0.5)
    watched.session.begin()
    watched.append(rows_of(9))
    time.sleep(0.7)
    assert look(home, watched, commits=2).stable is None
    watched.session.abort()
    assert look(home, watched, commits=2).stable is not None


def test_one_whose_driver_has_ended_is_unstable_in_the_drivers_own_words(
    home: Home, watched: Watched, tmp_path: Path
) -> None:
    log = tmp_path / "driver.log"
    log.write_text("its last line\n")
    lease.release(home.lease, lease.acquire(home.lease, "p", "gone"))
    error = DriverError(kind="ZeroDivisionError", decision="restart", exit_code=1, message="division by zero")
    status.write(home.status, replace(RUNNING, token="gone", state=DriverState.FAILED, error=error))
    plan = replace(PLAN, pipeline=watched.pipeline, token="gone", log=str(log))
    reason = str(stability.look(home, plan, watched.config).unstable)
    assert reason.startswith("its driver ended: ZeroDivisionError: division by zero")
    assert reason.endswith("its last line")


def test_what_was_delivered_is_read_without_aborted_attempts_and_foreign_rows(watched: Watched) -> None:
    watched.commit(rows_of(0), source={watched.source: {0: (0, 10)}})
    foreign = Producer(dict(watched.config))
    foreign.produce(watched.sink, value=b"foreign", partition=0)
    assert foreign.flush(10) == 0
    watched.abort(rows_of(7))
    for batch in (1, 2):
        watched.commit(rows_of(batch), source={watched.source: {0: (0, 10)}})
    rows = delivered.read(watched.config, watched.pipeline, 1, 2)
    expected = [value for batch in (0, 1) for of in rows_of(batch).values() for _, value in of if value]
    assert sorted(row.content["value"].encode() for row in rows) == sorted(expected)
    assert delivered.read(watched.config, watched.pipeline, 1, 2, leave_out={watched.sink}) == []


@pytest.fixture
def interleaved(watched: Watched) -> Watched:
    """Give a pipeline whose commit has in its range what a backfill has written into the sink itself meanwhile."""
    watched.session.begin()
    written = watched.append(rows_of(0))
    backfill = Producer({**watched.config, "transactional.id": f"backfill-{watched.pipeline}"})
    backfill.init_transactions(10)
    backfill.begin_transaction()
    for key, value in rows_of(9)[0]:
        backfill.produce(watched.sink, key=key, value=value, partition=0, headers={BACKFILL_HEADER: b"again"})
    backfill.commit_transaction(10)
    written[0] = replace(written[0], last=written[0].last + 5)
    watched.end(watched.record(written, source={watched.source: {0: (0, 10)}}))
    return watched


def test_what_a_backfill_has_written_between_a_commits_rows_is_not_delivered_by_it(interleaved: Watched) -> None:
    rows = delivered.read(interleaved.config, interleaved.pipeline, 1, 1)
    own = [value.decode() for of in rows_of(0).values() for _, value in of if value]
    assert sorted(row.content["value"] for row in rows) == sorted(own)


def test_what_a_backfill_has_written_does_not_stand_for_rows_that_are_gone(interleaved: Watched) -> None:
    admin = AdminClient(dict(interleaved.config))
    for future in admin.delete_records([TopicPartition(interleaved.sink, 0, 2)]).values():
        future.result(10)
    with pytest.raises(RefusedError, match="have delivered 10 rows, and 8 are readable"):
        delivered.read(interleaved.config, interleaved.pipeline, 1, 1)


def test_rows_that_retention_has_removed_are_not_called_a_difference(watched: Watched) -> None:
    for batch in (0, 1):
        watched.commit(rows_of(batch), source={watched.source: {0: (0, 10)}})
    admin = AdminClient(dict(watched.config))
    for future in admin.delete_records([TopicPartition(watched.sink, 0, 2)]).values():
        future.result(10)
    with pytest.raises(RefusedError, match="have delivered 20 rows, and 18 are readable"):
        delivered.read(watched.config, watched.pipeline, 1, 2)
