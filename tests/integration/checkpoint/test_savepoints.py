"""Savepoints whose process is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from tests.unit.checkpoint import crafted
from tests.unit.checkpoint.test_savepoints import JOB, contents

CRASH = """
import sys
from pathlib import Path
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.plan import QueryPlan, SourcePlan
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from tests.unit.checkpoint import crafted
store = Savepoints(Path(sys.argv[2]))
taken = store.take(Checkpoint(Path(sys.argv[1])), 2, crafted.record(2), None, request="dead")
store.delete(taken.id)
"""


@pytest.fixture
def made(tmp_path: Path) -> Checkpoint:
    return crafted.checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def store(tmp_path: Path) -> Savepoints:
    return Savepoints(tmp_path / "savepoints")


@pytest.mark.parametrize("step", failpoints.SAVEPOINT_NAMES)
def test_a_crash_at_any_step_leaves_a_whole_savepoint_or_none_and_what_is_left_is_cleaned_up(
    made: Checkpoint, store: Savepoints, step: str, tmp_path: Path
) -> None:
    before = store.take(made, 1, crafted.record(1), JOB)
    original = contents(made)
    done = subprocess.run(
        [sys.executable, "-c", CRASH, made.path, store.directory],
        env={**os.environ, failpoints.VARIABLE: step},
        start_new_session=True,
        check=False,
        timeout=60,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == -signal.SIGKILL
    names = [savepoint.id for savepoint in store.list()]
    assert names[0] == before.id
    assert [name.endswith("-dead") for name in names[1:]] == [True] * (step == "after-savepoint-manifest")
    for name in names:
        assert store.verify(name) == []
    if step != "during-savepoint-delete":  # whoever asks again is served at once
        shutil.copytree(store.directory, tmp_path / "other")
        other = Savepoints(tmp_path / "other")
        assert other.verify(other.take(made, 2, crafted.record(2), None, request="dead").id) == []
    store.clean_up()
    assert [entry.name for entry in sorted(store.directory.iterdir())] == names
    assert contents(made) == original
    again = store.take(made, 2, crafted.record(2), None, request="dead")
    assert again.id.endswith("-dead")
    assert store.verify(again.id) == []


def test_a_savepoint_that_is_being_taken_is_no_leftover(made: Checkpoint, store: Savepoints, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    process = subprocess.Popen(
        [sys.executable, "-c", CRASH, made.path, store.directory],
        env={**os.environ, failpoints.VARIABLE: f"during-savepoint:hold={hold}"},
        cwd=Path(__file__).parents[3],
    )
    while not hold.exists():
        assert process.poll() is None
    assert store.clean_up() == []
    assert (store.list(), store.oldest_commit()) == ([], 3)
    hold.unlink()
    assert process.wait() == 0
    assert list(store.directory.iterdir()) == []


VERIFY = """
import sys, time
from pathlib import Path
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
store = Savepoints(Path(sys.argv[1]))
with store.copying(store.get(sys.argv[2])) as checkpoint:
    print(checkpoint.relative_to(store.directory), flush=True)
    time.sleep(60)
"""


def test_a_verification_that_was_killed_leaves_nothing_and_one_that_goes_on_is_let_alone(
    made: Checkpoint, store: Savepoints
) -> None:
    taken = store.take(made, 2, crafted.record(2), JOB)
    command = [sys.executable, "-c", VERIFY, str(store.directory), taken.id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout is not None
        checkpoint = store.directory / process.stdout.readline().strip()
        assert (checkpoint / "commits/2").is_file()
        assert (store.leftovers(), store.list(), store.oldest_commit()) == ([], [taken], 3)
        process.kill()
    assert store.remove_leftovers() == [checkpoint.parents[1].name]
    assert [entry.name for entry in store.directory.iterdir()] == [taken.id]
    with store.copying(taken) as checkpoint:
        assert checkpoint.is_dir()
    assert not checkpoint.parents[1].exists()
