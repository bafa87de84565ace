"""What the driver of a backfill says in its last record; its run is made without Kafka."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_exactlyonce.backfill import results, workspace
from airflow_provider_exactlyonce.backfill.progress import BackfillProgress
from airflow_provider_exactlyonce.backfill.request import BackfillRequest
from airflow_provider_exactlyonce.backfill.resolve import Resolved
from airflow_provider_exactlyonce.backfill.results import BackfillWritten
from airflow_provider_exactlyonce.backfill.workspace import StartedBackfill
from airflow_provider_exactlyonce.checkpoint.layout import ClaimedCheckpoint
from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka.wire import Producer
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.records import CommitRecord, decode
from airflow_provider_exactlyonce.streaming import DeltaSink, KafkaSink, KafkaSource, pipeline
from airflow_provider_exactlyonce.streaming.driver.backfill_driver import BackfillDriver
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from airflow_provider_exactlyonce.streaming.replay.backfill_steps import BackfillSteps
from tests.unit.backfill.test_plan import at, commit


class Session:
    """A transaction whose records are kept."""

    producer = Producer(id=1, epoch=0)

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def begin(self) -> None:
        pass

    def write(self, topic: str, partition: int, key: bytes, value: bytes) -> int:
        self.written.append(value)
        return 0

    def commit(self, give_up: object) -> None:
        pass


def completed(tmp_path: Path, written: Sequence[CommitRecord], wrote: Sequence[CommitRecord]) -> Any:
    """Let a backfill end; returns the result that its last record has.

    :param written: what the ledger had when its run began
    :param wrote: what this run has committed
    """
    home = workspace.make(Home(tmp_path), "p", BackfillRequest.parse(commits="1..3", output="topic=other"))
    declared = pipeline(name="p", source=KafkaSource("in"), sink=KafkaSink("out"))
    driver = BackfillDriver(
        declared(lambda events: events), DriverOptions(home=home, config={}, token="t", backfill=True)
    )
    steps = BackfillSteps(
        cast(Any, None),
        ClaimedCheckpoint(tmp_path / "checkpoint", lambda: None),
        [],
        commits=None,
        sources=[],
        done=BackfillProgress(base=-1),
        written=written,
    )
    for record in wrote:
        steps.wrote(record)
    session = Session()
    run: Any = SimpleNamespace(
        home=home,
        pipeline="p.backfill",
        number=1,
        lineage=Lineage(id="l"),
        session=session,
        tail=LedgerTail(cluster_id="c", topic_id="t", end_offset=0),
        committed=lambda record, offset: None,
    )
    begun = StartedBackfill(
        version="v", name="b", resolved=Resolved(starts=at(0), ends=at(30), begins=at(0), newest_commit=3)
    )
    result = driver._complete(run, begun, steps)
    (last,) = map(decode, session.written)
    assert isinstance(last, CommitRecord)
    assert last.result == result
    return result


def test_the_result_has_every_batch_though_the_ledger_does_not_show_the_newest_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [replace(commit(number, at(0), at(10)), rows=number) for number in (1, 2, 3)]
    hidden = BackfillWritten(batches=records[:2])  # until the coordinator has written the markers of the third's
    monkeypatch.setattr(results, "written_of", lambda *_: hidden)
    result = completed(tmp_path, records[:1], records[1:])
    assert (result["batches"], result["rows"]) == (3, 6)


@pytest.fixture
def handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("sink", "output", "why"),
    [
        ([KafkaSink("out"), DeltaSink(name="lake", path="/lake")], "topic=other", "has the sink lake"),
        (KafkaSink("out"), "topic=out", "out is a topic of the pipeline's own sink"),
        (KafkaSink("out"), "topic=in", "would write to topic in, and reads it"),
    ],
)
def test_a_request_that_can_t_be_served_is_refused_in_the_driver_s_last_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sink: Any, output: str, why: str
) -> None:
    """The supervisor starts again what ends with another code, and says why by these words."""
    home = workspace.make(Home(tmp_path), "p", BackfillRequest.parse(commits="1..3", output=output))
    home.control.mkdir(parents=True)  # where the supervisor has put its notes
    declared = pipeline(name="p", source=KafkaSource("in"), sink=sink)(lambda events: events)
    driver = BackfillDriver(declared, DriverOptions(home=home, config={}, token="t", backfill=True))
    assert driver.run() == RefusedError.exit_code
    last_words = status.read(home.final_status_path("t"))
    assert last_words is not None
    assert last_words.error is not None
    assert (last_words.error.kind, why in last_words.error.message) == ("RefusedError", True)
    assert f"RefusedError: {last_words.error.message}" in caplog.text
    assert workspace.begun(home) is None
