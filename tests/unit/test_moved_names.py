"""Names of 0.1 that users may have imported work, and say where they are now."""

from __future__ import annotations

import importlib

import pytest

from airflow_provider_exactlyonce._moved import MOVED

PACKAGE = "airflow_provider_exactlyonce"

OLD_NAMES = [
    *[("devkit.jars", "jars.cache", name) for name in ("broker_jars", "spark_connector_jars")],
    *[("health", "policies.health_rules", "HealthRules")],
    *[("restart", "policies.restart_strategy", "RestartStrategy")],
    *[("state.collected", "state", name) for name in ("ListState", "MapState")],
    *[("state.declared", "state.base", "State")],
    *[("state.single", "state", name) for name in ("AggregatingState", "ReducingState", "ValueState")],
    *[("streaming.checkpointing", "streaming", n) for n in ("CheckpointConfig", "CheckpointingMode", "OnCancellation")],
    *[("streaming.connected_stream", "streaming", name) for name in ("ConnectedStream", "connect")],
    *[("streaming.definition", "streaming", name) for name in ("LedgerRetention", "Pipeline", "pipeline")],
    *[("streaming.keyed_stream", "streaming", name) for name in ("KeyedStream", "key_by", "spread")],
    *[("streaming.sinks.conformance", "testing.sink_conformance", "SinkConformance")],
    *[("streaming.sinks.delivery", "streaming", "Target")],
    *[("streaming.sinks.fault_injection", "testing.fault_injection", name) for name in ("Fault", "Seam", "World")],
    *[("streaming.sinks.file_table", "streaming", "FileTable")],
    *[("streaming.sinks.files", "streaming", "FileSink")],
    *[("streaming.sinks.kafka", "streaming", "KafkaSink")],
    *[("streaming.sinks.kafka_columns", "streaming", "AvroFormat")],
    *[("streaming.sinks.postgres", "streaming", "PostgresSink")],
    *[("streaming.sinks.upsert", "streaming", "UpsertSink")],
    *[("streaming.sinks.write_ahead_log", "streaming", "WriteAheadLogSink")],
    *[("streaming.sources.kafka", "streaming", "KafkaSource")],
    *[("streaming.state_backend", "streaming", "StateBackend")],
    *[("triggers.looking", "triggers.shared_poller", "Poller")],
    *[("until", "policies.termination", name) for name in ("Commits", "Watermark")],
]

OTHER_NAMES = [
    ("state.declared", "Shape", "state.base", "StateType"),
    ("state.values", "MisfitError", "state.values", "TypeMismatchError"),
    ("triggers.chatter", "Chatter", "triggers.log_throttle", "LogThrottle"),
    ("triggers.looking", "Look", "triggers.shared_poller", "CheckResult"),
    ("triggers.looking", "Looker", "triggers.shared_poller", "Checker"),
    ("triggers.looking", "Watch", "triggers.shared_poller", "Subscription"),
]


@pytest.mark.parametrize(
    ("old", "name", "new", "name_now"),
    [*((old, name, new, name) for old, new, name in OLD_NAMES), *OTHER_NAMES],
)
def test_an_old_name_is_the_new_one_and_warns(old: str, name: str, new: str, name_now: str) -> None:
    expected = getattr(importlib.import_module(f"{PACKAGE}.{new}"), name_now)
    with pytest.warns(DeprecationWarning, match=rf"{old}\.{name} is {PACKAGE}\.{new}\.{name_now} now") as warned:
        assert getattr(importlib.import_module(f"{PACKAGE}.{old}"), name) is expected
    assert {warning.filename for warning in warned} == {__file__}, "the line that uses the old name is named"


def test_an_import_statement_finds_an_old_name() -> None:
    with pytest.warns(DeprecationWarning, match=r"definition\.pipeline is"):
        from airflow_provider_exactlyonce.streaming.definition import pipeline  # type: ignore[import-untyped]
    from airflow_provider_exactlyonce import streaming

    assert pipeline is streaming.pipeline


def test_each_module_that_has_moved_is_tried() -> None:
    assert MOVED.keys() - {"streaming.sources"} <= {old for old, *_ in [*OLD_NAMES, *OTHER_NAMES]}


def test_what_never_was_there_is_no_old_name() -> None:
    assert not hasattr(importlib.import_module(f"{PACKAGE}.until"), "Sometime")
    assert not hasattr(importlib.import_module(f"{PACKAGE}.state.values"), "Sometime")
    assert not hasattr(importlib.import_module(f"{PACKAGE}.streaming.definition"), "__all__")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{PACKAGE}.streaming.sources.amqp")
