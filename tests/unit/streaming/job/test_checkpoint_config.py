"""What a pipeline may say of its checkpoints and its state, and what is refused."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.streaming import (
    CheckpointConfig,
    KafkaSink,
    KafkaSource,
    Pipeline,
    SavepointRetention,
    StateBackend,
    pipeline,
)
from airflow_provider_exactlyonce.streaming import settings as defaults
from airflow_provider_exactlyonce.streaming.job import checkpoint_config
from airflow_provider_exactlyonce.streaming.job.checkpoint_config import PausedBatches
from airflow_provider_exactlyonce.streaming.job.state_backend import PROVIDER
from tests.clocks import StandingClock

ROOT = Path(__file__).parents[4]
RETAINED = "spark.sql.streaming.minBatchesToRetain"


def declared(sink: KafkaSink | None = None, **settings: Any) -> Pipeline:
    @pipeline(name="p", source=KafkaSource("in"), sink=sink or KafkaSink("out"), **settings)
    def job(events: Any) -> Any:
        return events

    return job


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"mode": "sometimes"}, "mode='sometimes'"),
        ({"interval": timedelta(seconds=-1)}, "interval="),
        ({"min_pause": timedelta(seconds=-1)}, "min_pause="),
        ({"timeout": timedelta(milliseconds=10)}, "timeout="),
        ({"tolerable_failed_checkpoints": -1}, "tolerable_failed_checkpoints=-1"),
        ({"max_concurrent": 2}, "max_concurrent=2): it must be 1: Spark begins a micro-batch when"),
        ({"unaligned": True}, "unaligned=True): it must be False: a micro-batch is aligned"),
        ({"on_cancellation": "forget"}, "on_cancellation='forget'"),
        ({"retained": 1}, "retained=1): it must be at least 2"),
    ],
)
def test_what_spark_cannot_honour_is_refused_by_name(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=re.escape(message)):
        CheckpointConfig(**setting)


def test_failed_checkpoints_that_are_tolerable_are_attempts_of_a_batch() -> None:
    assert declared().max_batch_attempts == 3
    assert declared(max_batch_attempts=5).max_batch_attempts == 5
    tolerant = CheckpointConfig(tolerable_failed_checkpoints=6)
    assert declared(checkpoint=tolerant).max_batch_attempts == 7
    assert declared(checkpoint=tolerant, max_batch_attempts=7).max_batch_attempts == 7
    with pytest.raises(RefusedError, match=r"max_batch_attempts=3 and .* contradict"):
        declared(checkpoint=tolerant, max_batch_attempts=3)


def test_the_timeout_is_the_transactions() -> None:
    config = CheckpointConfig(timeout=timedelta(minutes=2))
    assert declared().transaction_timeout_seconds == 300
    assert declared(checkpoint=config).transaction_timeout_seconds == 120
    with pytest.raises(RefusedError, match=r"transaction_timeout_seconds=60 of the sink and .* contradict"):
        declared(KafkaSink("out", transaction_timeout_seconds=60), checkpoint=config)


def test_the_number_retained_is_sparks_setting_and_a_contradicting_one_is_refused() -> None:
    config = CheckpointConfig(retained=7, interval=timedelta(seconds=1.5))
    assert config.settings(dict[str, str]().get) == {RETAINED: "7"}
    assert config.settings({RETAINED: "7"}.get) == {RETAINED: "7"}
    assert CheckpointConfig().settings({RETAINED: "9"}.get) == {}
    assert config.trigger_interval == "1500 milliseconds"
    with pytest.raises(SettingRefusedError, match=f"{RETAINED} is '9'; it must be '7'"):
        config.settings({RETAINED: "9"}.get)


def test_a_pause_lies_between_batches_and_a_stop_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StandingClock()
    monkeypatch.setattr(checkpoint_config, "time", clock)
    reason: list[str] = []
    done: list[float] = []

    def process(frame: Any, number: int) -> None:
        done.append(clock.now)

    paused = PausedBatches(
        CheckpointConfig(min_pause=timedelta(seconds=40)), process, lambda: reason[0] if reason else None
    )
    began = clock.now
    paused.process(None, 0)  # type: ignore[arg-type]
    assert done[0] == began
    paused.process(None, 1)  # type: ignore[arg-type]
    assert done[1] - done[0] == pytest.approx(40)
    reason.append("stop")
    paused.process(None, 2)  # type: ignore[arg-type]
    assert done[2] == done[1]


def test_new_pipelines_have_rocksdb_with_format_2() -> None:
    conf = StateBackend.rocksdb().conf
    assert {name: defaults.DEFAULTS[name] for name in conf if name in defaults.DEFAULTS} == {
        PROVIDER: conf[PROVIDER],
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    }


def test_a_backend_becomes_spark_settings() -> None:
    rocksdb = StateBackend.rocksdb(changelog=True, memory_megabytes=600, write_buffer_share=0.3)
    prefix = "spark.sql.streaming.stateStore.rocksdb."
    settings = {name.removeprefix(prefix): value for name, value in rocksdb.conf.items() if name.startswith(prefix)}
    assert settings == {
        "changelogCheckpointing.enabled": "true",
        "boundedMemoryUsage": "true",
        "maxMemoryUsageMB": "600",
        "writeBufferCacheRatio": "0.3",
    }
    hashmap = StateBackend.hashmap()
    assert hashmap.conf[PROVIDER].endswith(".HDFSBackedStateStoreProvider")
    assert hashmap.settings(defaults.DEFAULTS.get) == hashmap.conf
    with pytest.raises(SettingRefusedError, match="says state_backend=rocksdb"):
        rocksdb.settings({PROVIDER: hashmap.conf[PROVIDER]}.get)


@pytest.mark.parametrize(
    "limits", [{"memory_megabytes": 0}, {"write_buffer_share": 0.5}, {"memory_megabytes": 9, "write_buffer_share": 1.0}]
)
def test_memory_limits_that_cannot_be_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match=r"StateBackend\.rocksdb"):
        StateBackend.rocksdb(**limits)


def test_another_backend_than_the_lineages_is_refused_with_the_way_to_do_it() -> None:
    hashmap, rocksdb = StateBackend.hashmap(), StateBackend.rocksdb()
    rocksdb.check_lineage("l", {})
    rocksdb.check_lineage("l", rocksdb.conf)
    with pytest.raises(RefusedError, match=r"lineage l has its state in hashmap, .* a new name and a new home"):
        rocksdb.check_lineage("l", hashmap.conf)
    with pytest.raises(RefusedError, match=r"say state_backend=StateBackend\.rocksdb\(\)"):
        hashmap.check_lineage("l", rocksdb.conf)


def test_avro_is_chosen_when_a_lineage_begins() -> None:
    plain, avro = StateBackend.rocksdb(), StateBackend.rocksdb(avro=True)
    assert (plain.encoding, avro.encoding) == (None, "avro")
    avro.check_lineage("l", {})
    avro.check_lineage("l", avro.conf)
    plain.check_lineage("l", avro.conf)
    with pytest.raises(RefusedError, match=r"lineage l did not begin with state in Avro.*leave avro=True out"):
        avro.check_lineage("l", plain.conf)


def test_savepoint_retention_is_refused_when_negative() -> None:
    assert CheckpointConfig().savepoints == SavepointRetention(count=10, days=1)
    with pytest.raises(RefusedError, match="neither count nor days"):
        SavepointRetention(count=-1)


def test_every_setting_has_its_row_in_the_docs() -> None:
    text = (ROOT / "docs/checkpoints.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert rows == [field.name for field in dataclasses.fields(CheckpointConfig)]
