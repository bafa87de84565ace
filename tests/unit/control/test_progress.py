from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airflow_provider_exactlyonce.control import progress, status
from airflow_provider_exactlyonce.control.status import DriverState, ReplayReport, Status

RUNNING = Status(pipeline="p", token="t", state=DriverState.RUNNING, run=3, commit=40, updated=1.0)
REPLAY = ReplayReport(first=6, last=40, done=23, seconds=9.0, seconds_left=8.6, not_compared=[("v", 30, 31)])


def test_a_replay_tells_how_far_it_is_and_how_long_it_takes() -> None:
    told = progress.sentence(replace(RUNNING, replay=REPLAY))
    assert told == "p: commits 6 to 40 are replayed without writing, at 23, about 9 s left"
    assert "replayed" not in progress.sentence(replace(RUNNING, replay=replace(REPLAY, done=40)))


def test_each_replayed_commit_is_news() -> None:
    before = replace(RUNNING, replay=REPLAY)
    assert progress.moved(before, replace(RUNNING, replay=replace(REPLAY, done=24)))
    assert not progress.moved(before, replace(before, updated=2.0))


def test_a_status_with_a_replay_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = replace(RUNNING, replay=replace(REPLAY, not_compared=[]))
    status.write(tmp_path / "status.json", written)
    assert status.read(tmp_path / "status.json") == written
