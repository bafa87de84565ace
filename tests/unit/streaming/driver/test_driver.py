"""When a run until what is available ends: timers of processing time would keep Spark going for ever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline
from airflow_provider_exactlyonce.streaming.driver.driver import Driver
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from tests.unit.checkpoint import crafted


def driver(path: Path, until: str) -> Driver:
    declared = pipeline(name="p", source=KafkaSource("in"), sink=KafkaSink("out"))(lambda events: events)
    return Driver(declared, DriverOptions(home=Home(path), config={}, token="t", until=until))


@pytest.mark.parametrize(
    ("until", "watermark", "ends"), [("available", 5, True), ("available", 9, False), ("forever", 5, False)]
)
def test_it_ends_at_a_batch_without_data_that_no_watermark_has_caused(
    tmp_path: Path, until: str, watermark: int, ends: bool
) -> None:
    started, record = driver(tmp_path, until), replace(crafted.record(1), watermark=5)
    nothing = {topic: {number: (end, end) for number, (_, end) in of.items()} for topic, of in record.source.items()}
    started._on_commit(replace(record, source=nothing), 0.1, False)
    assert started._stop_reason() is None, "what came before it is not known"
    started._on_commit(record, 0.1, False)
    assert started._stop_reason() is None
    started._on_commit(replace(record, source=nothing, watermark=watermark), 0.1, False)
    assert (started._stop_reason() == "all that was available is committed") is ends
