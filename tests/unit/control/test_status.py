"""The driver's account of itself, as others read it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airflow_provider_exactlyonce.control import json_store, status
from airflow_provider_exactlyonce.control.status import DriverError, DriverState, ReplayReport, Status

RUNNING = Status(pipeline="p", token="t", state=DriverState.RUNNING, run=3, commit=40, updated=1.0)
REPLAY = ReplayReport(first=6, last=40, done=23, seconds=9.0, seconds_left=8.6, not_compared=[("v", 30, 31)])


def test_what_a_newer_release_says_besides_is_passed_over(tmp_path: Path) -> None:
    error = DriverError(kind="DataError", decision="fix_data", exit_code=67, message="no")
    written = Status(pipeline="p", token="t", state=DriverState.FAILED, commit=7, error=error)
    status.write(tmp_path / "status.json", written)
    body = json_store.read(tmp_path / "status.json")
    assert body is not None
    json_store.write(tmp_path / "status.json", {**body, "mood": "good"})
    assert status.read(tmp_path / "status.json") == written


def test_a_replay_tells_how_far_it_is_and_how_long_it_takes() -> None:
    line = status.progress_line(replace(RUNNING, replay=REPLAY))
    assert line == "p: commits 6 to 40 are replayed without writing, at 23, about 9 s left"
    assert "replayed" not in status.progress_line(replace(RUNNING, replay=replace(REPLAY, done=40)))


def test_progress_is_told_at_any_watermark() -> None:
    assert status.progress_line(replace(RUNNING, commits_of_run=1, watermark=10**15)).endswith(
        "watermark 1000000000000000"
    )


def test_each_replayed_commit_is_news() -> None:
    before = replace(RUNNING, replay=REPLAY)
    assert status.has_progressed(before, replace(RUNNING, replay=replace(REPLAY, done=24)))
    assert not status.has_progressed(before, replace(before, updated=2.0))


def test_a_status_with_a_replay_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = replace(RUNNING, replay=replace(REPLAY, not_compared=[]))
    status.write(tmp_path / "status.json", written)
    assert status.read(tmp_path / "status.json") == written
