"""A pipeline's output does not become its input, unless that is said, and nobody writes to a ledger."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, TopicPattern, pipeline
from airflow_provider_exactlyonce.streaming.analysis import feedback
from airflow_provider_exactlyonce.streaming.analysis.logical_plans import Stream

LOOP = "what it writes would be its next input, for ever"


def declare(source: Any, sink: KafkaSink, **more: Any) -> None:
    pipeline(name="p", source=source, sink=sink, **more)


@pytest.mark.parametrize(
    ("source", "sink"),
    [
        (KafkaSource("a"), KafkaSink("a")),
        ({"one": KafkaSource("a"), "other": KafkaSource("b")}, KafkaSink("b")),
        (KafkaSource(["x", "a"]), KafkaSink("a")),
        (KafkaSource(TopicPattern("a.*")), KafkaSink("about")),
        (KafkaSource("a.bad"), KafkaSink("a", bad_records="topic")),
        (KafkaSource("lost"), KafkaSink("a", bad_records="topic", bad_records_topic="lost")),
    ],
)
def test_a_sink_topic_that_is_a_source_is_refused_unless_it_is_said_on_purpose(source: Any, sink: KafkaSink) -> None:
    with pytest.raises(RefusedError, match=LOOP):
        declare(source, sink)
    declare(source, sink, allow_feedback=True)


@pytest.mark.parametrize("allowed", [False, True])
def test_a_ledger_is_no_sink_topic_and_a_pipelines_own_no_source(allowed: bool) -> None:
    for topic in ("exactlyonce.ledger.p", "exactlyonce.ledger.other", "exactlyonce.ledger.other.backfill"):
        with pytest.raises(RefusedError, match=rf"would write to {topic}, the ledger of pipeline"):
            declare(KafkaSource("a"), KafkaSink(topic), allow_feedback=allowed)
    with pytest.raises(RefusedError, match="reads its own ledger"):
        declare(KafkaSource("exactlyonce.ledger.p"), KafkaSink("b"), allow_feedback=allowed)
    declare(KafkaSource("exactlyonce.ledger.other"), KafkaSink("b"))


@pytest.mark.parametrize(
    ("options", "reads"),
    [
        ({"subscribe": "x, out"}, True),
        ({"subscribe": "x,outer"}, False),
        ({"subscribepattern": "o.t"}, True),
        ({"subscribepattern": "o"}, False),
        ({"subscribepattern": r"\p{javaLowerCase}+"}, True),
        ({"assign": '{"out": [0]}'}, True),
        ({"assign": '{"x": [0]}'}, False),
    ],
)
def test_what_a_function_reads_by_itself_counts_by_names_and_patterns(options: dict[str, str], reads: bool) -> None:
    streams = [Stream("rate", False), Stream("kafka", False, options)]
    feedback.check_streams("p", ["out"], streams, allowed=True)
    if not reads:
        feedback.check_streams("p", ["out"], streams, allowed=False)
        return
    with pytest.raises(RefusedError, match=f"topic out, and its function reads .*{LOOP}"):
        feedback.check_streams("p", ["out"], streams, allowed=False)


def test_a_pattern_that_takes_in_the_pipelines_own_ledger_is_refused() -> None:
    with pytest.raises(RefusedError, match="reads its own ledger"):
        feedback.check_streams("p", [], [Stream("kafka", False, {"subscribepattern": ".*"})], allowed=True)
