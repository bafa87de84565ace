"""The state file: whom it finds, and whom it must not."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.devkit.errors import DevkitError
from airflow_provider_exactlyonce.devkit.process import ProcessIdentity
from airflow_provider_exactlyonce.devkit.state import STATE_NAME, BrokerState


@pytest.fixture
def state() -> BrokerState:
    process = ProcessIdentity.of(os.getpid())
    assert process is not None
    return BrokerState(process=process, port=9092, cluster_id="ours")


def test_a_living_broker_is_found_again(tmp_path: Path, state: BrokerState) -> None:
    state.save(tmp_path)
    assert BrokerState.load_living(tmp_path) == state
    assert state.bootstrap_servers == "127.0.0.1:9092"


def test_a_removed_state_is_no_broker(tmp_path: Path, state: BrokerState) -> None:
    state.save(tmp_path)
    BrokerState.remove(tmp_path)
    BrokerState.remove(tmp_path)
    assert BrokerState.load_living(tmp_path) is None


def test_a_process_that_got_the_id_later_is_no_broker(tmp_path: Path, state: BrokerState) -> None:
    recycled = dataclasses.replace(state.process, start_ticks=state.process.start_ticks - 1)
    dataclasses.replace(state, process=recycled).save(tmp_path)
    assert BrokerState.load_living(tmp_path) is None


def test_a_file_of_a_newer_version_is_refused_not_guessed(tmp_path: Path) -> None:
    (tmp_path / STATE_NAME).write_text(json.dumps({"schema": 2}))
    with pytest.raises(DevkitError, match="has schema 2, this version knows 1"):
        BrokerState.load_living(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": 1}', '{"schema": 1, "process": {}}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / STATE_NAME).write_text(content)
    with pytest.raises(DevkitError, match=rf"{STATE_NAME} is damaged"):
        BrokerState.load_living(tmp_path)
