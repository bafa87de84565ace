"""When a run until what is available ends: timers of processing time would keep Spark going for ever."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import requests
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from airflow_provider_exactlyonce.streaming.driver.status_reporter import DriverReport
from airflow_provider_exactlyonce.streaming.driver.stop_reasons import StopReasons
from tests.unit.checkpoint import crafted


def stop_of(path: Path, until: str = "forever") -> StopReasons:
    options = DriverOptions(home=Home(path), config={}, token="t", until=until)
    return StopReasons(options, DriverReport(options.home, options.token, "p"))


def test_what_is_left_is_counted_in_records_of_topics_and_versions_of_tables(tmp_path: Path) -> None:
    report = DriverReport(Home(tmp_path), "t", "p")
    report.read({"in": {0: (0, 5), 1: (0, 9)}, "delta:/t": {0: (0, 2_000_001)}})
    report.available({("in", 0): 8, ("in", 1): 9, ("delta:/t", 0): 5_000_000})
    assert report.status.lag == 3 + 3


@pytest.mark.parametrize(
    ("until", "watermark", "ends"), [("available", 5, True), ("available", 9, False), ("forever", 5, False)]
)
def test_it_ends_at_a_batch_without_data_that_no_watermark_has_caused(
    tmp_path: Path, until: str, watermark: int, ends: bool
) -> None:
    stop, record = stop_of(tmp_path, until), replace(crafted.record(1), watermark=5)
    nothing = {topic: {number: (end, end) for number, (_, end) in of.items()} for topic, of in record.source.items()}
    stop.committed(replace(record, source=nothing))
    assert stop.reason() is None, "what came before it is not known"
    stop.committed(record)
    assert stop.reason() is None
    stop.committed(replace(record, source=nothing, watermark=watermark))
    assert (stop.reason() == "all that was available is committed") is ends


def test_a_source_that_the_function_reads_by_itself_has_data_as_long_as_its_offset_moves(tmp_path: Path) -> None:
    stop, record = stop_of(tmp_path, "available"), crafted.record(1)
    nothing = {topic: {number: (end, end) for number, (_, end) in of.items()} for topic, of in record.source.items()}
    for position in ("-", '{"logOffset":0}', '{"logOffset":1}'):
        stop.committed(replace(record, source=nothing, offsets=f"{record.offsets}\n{position}"))
        assert stop.reason() is None
    stop.committed(replace(record, source=nothing, offsets=f'{record.offsets}\n{{"logOffset":1}}'))
    assert stop.reason() == "all that was available is committed"


def test_the_first_request_is_the_reason_and_sources_are_asked_in_their_turn(tmp_path: Path) -> None:
    stop, later = stop_of(tmp_path), list[str]()
    stop.ask(lambda: later[0] if later else None)
    assert stop.reason() is None
    later.append("a savepoint")
    assert stop.reason() == "a savepoint"
    Home(tmp_path).create("p")
    requests.request_stop(Home(tmp_path), "t", reason="somebody")
    assert stop.reason() == "somebody"
    stop.request("the query ends")
    stop.request("again")
    assert (stop.reason(), stop.requested()) == ("the query ends", "the query ends")
    assert not stop.interrupted


@pytest.mark.parametrize("error", [OSError("no answer"), OutcomeUnknownError("no answer")])
def test_a_home_that_does_not_answer_ends_no_driver(tmp_path: Path, error: Exception) -> None:
    stop, answers = stop_of(tmp_path), iter([error, None])

    def ask() -> str:
        if (failure := next(answers)) is not None:
            raise failure
        return "a savepoint"

    stop.ask(ask)
    assert stop.reason() is None
    assert stop.reason() == "a savepoint"


@pytest.fixture
def handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_a_signal_is_a_request_that_may_have_ended_spark_too(tmp_path: Path, handlers: None) -> None:
    stop = stop_of(tmp_path)
    stop.heed_signals()
    signal.raise_signal(signal.SIGTERM)
    assert (stop.reason(), stop.interrupted) == ("signal SIGTERM", True)
