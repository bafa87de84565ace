"""Backfills: a range is run again beside its pipeline, from the state that it began with or from an empty one."""

from __future__ import annotations

import signal
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from airflow_provider_exactlyonce.audit.check import AuditOptions, audit
from airflow_provider_exactlyonce.backfill import homes
from airflow_provider_exactlyonce.backfill.request import BackfillRequest
from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord, backfill_pipeline
from airflow_provider_exactlyonce.streaming.backfill import BackfillDriver
from airflow_provider_exactlyonce.streaming.driver import DriverOptions
from tests.integration.restore.harness import Bench, Case
from tests.integration.streaming.harness import read_committed

ROUNDS = 8
SAVED = 5


def backfill(
    case: Case,
    *,
    expected: int = 0,
    accept_nondeterminism: bool = False,
    version: Mapping[str, Any] | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """Run a backfill in this process; returns its result.

    :param version: options of the sink that make the job another version
    """
    home = homes.make(case.home, case.name, BackfillRequest.parse(**asked))
    (home.path / "result.json").unlink(missing_ok=True)
    options = DriverOptions(
        home=home,
        config=dict(case.config),
        token=str(uuid.uuid4()),
        backfill=True,
        accept_nondeterminism=accept_nondeterminism,
    )
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    code = BackfillDriver(case.pipeline(**(version or {})), options).run()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    told = status.read(home.status)
    assert code == expected, told
    return homes.result_of(home) or {}


def rows(case: Case, topic: str) -> Counter[str]:
    """Return a topic's rows as an independent reader sees them."""
    return Counter((record.value or b"").decode() for record in read_committed(case.config, topic))


def written(case: Case, commits: list[CommitRecord]) -> Counter[str]:
    """Return the rows that some commits wrote, by the ranges of their records."""
    found: Counter[str] = Counter()
    ranges = [
        (topic, partition, span.first, span.last)
        for record in commits
        for topic, of in record.sink.items()
        for partition, span in of.items()
    ]
    for topic in {one[0] for one in ranges}:
        for record in read_committed(case.config, topic):
            if any((topic, record.partition) == one[:2] and one[2] <= record.offset <= one[3] for one in ranges):
                found[(record.value or b"").decode()] += 1
    return found


def delivered(case: Case, first: int, last: int) -> Counter[str]:
    return written(case, [record for record in case.commits() if first <= record.commit <= last])


def backfilled(case: Case) -> list[CommitRecord]:
    """Return what the ledger of the backfills has."""
    with LedgerReader(case.config, backfill_pipeline(case.name)) as reader:
        return list(reader.commits())


def prepared(bench: Bench, shape: str) -> Case:
    """Make a pipeline that has run, a batch a round, with a savepoint on the way."""
    case = bench.case(shape, bench.topics(shape), limit=100)
    feed = bench.input(rows=100)
    for _ in range(ROUNDS):
        feed.send(case.topics)
    case.run(stop_at=SAVED)
    case.save()
    case.run()
    return case


@pytest.fixture(scope="module")
def windowed(
    jvm: None,
    tmp_path_factory: pytest.TempPathFactory,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
) -> Case:
    """Give a pipeline that counts in windows of event time; tests leave its commits as they are."""
    return prepared(Bench(kafka_config, tmp_path_factory.mktemp("windowed"), make_topic), "windowed")


def audited(case: Case) -> None:
    assert audit(case.config, case.name, AuditOptions(patience_seconds=10)).found == ()


@pytest.mark.timeout(300)
def test_a_range_of_commits_gives_another_topic_what_was_delivered_and_gives_it_once(
    windowed: Case, make_topic: Callable[..., str]
) -> None:
    case, other = windowed, make_topic(partitions=3)
    newest = case.tail().place.commit
    first, last = SAVED + 3, newest - 1
    before = rows(case, case.sink)
    found = backfill(case, commits=f"{first}..{last}", output=f"topic={other}")
    assert rows(case, other) == delivered(case, first, last)
    assert (found["rows"], found["batches"]) == (sum(rows(case, other).values()), last - first + 1)
    assert found["rows"] > 0
    assert found["suppressed_batches"] == 2, "what lies between the savepoint and the range"
    assert backfill(case, commits=f"{first}..{last}", output=f"topic={other}") == found
    assert rows(case, other) == delivered(case, first, last), "the same range is written once"
    assert rows(case, case.sink) == before
    assert case.tail().place.commit == newest, "the pipeline's ledger is as it was"


@pytest.mark.timeout(300)
def test_a_range_before_every_savepoint_is_run_from_the_beginning(
    windowed: Case, make_topic: Callable[..., str]
) -> None:
    other = make_topic(partitions=3)
    found = backfill(windowed, commits="2..4", output=f"topic={other}")
    assert (found["savepoint"], found["suppressed_batches"]) == (None, 1)
    assert rows(windowed, other) == delivered(windowed, 2, 4)


@pytest.mark.timeout(300)
def test_a_range_that_is_compared_writes_nothing_and_finds_what_differs(windowed: Case) -> None:
    case = windowed
    last = case.tail().place.commit
    before = rows(case, case.sink)
    found = backfill(case, commits=f"{SAVED + 1}..{last}")
    assert (found["clean"], found["compared"], found["rows"]) == (True, last - SAVED, 0)
    assert rows(case, case.sink) == before
