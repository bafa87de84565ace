from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_exactlyonce import failpoints
from tests.waiting import eventually

PROGRAM = """
from airflow_provider_exactlyonce import failpoints
failpoints.note(run=2, batch=7)
failpoints.reach("after-begin")
print("alive", flush=True)
"""


def outcome(value: str) -> tuple[int, str]:
    """Run the program with the variable; return (exit status, what it printed)."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, failpoints.VARIABLE: value},
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize(
    "value", ["after-begin", "after-begin:run=2", "after-begin:run=2:batch=7", "after-claim,after-begin"]
)
def test_a_step_whose_conditions_hold_kills_the_process_group(value: str) -> None:
    assert outcome(value) == (-signal.SIGKILL, "")


@pytest.mark.parametrize(
    "value", ["", "after-claim", "after-begin:run=1", "after-begin:run=2:batch=8", "after-begin:x=1"]
)
def test_a_step_whose_conditions_do_not_hold_does_nothing(value: str) -> None:
    assert outcome(value) == (0, "alive")


@pytest.mark.parametrize("value", ["after-lunch", "after-begin:run"])
def test_a_value_that_means_nothing_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=failpoints.VARIABLE):
        failpoints.parse(value)


def test_a_held_step_tells_who_waits_and_goes_on_when_the_file_is_gone_once_only(tmp_path: Path) -> None:
    plan, hold = tmp_path / "plan", tmp_path / "hold"
    program = PROGRAM.replace("print", 'failpoints.reach("after-begin")\nprint')
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.stdin.readline()\n{program}"],
        env={**os.environ, failpoints.VARIABLE: f"@{plan}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    plan.write_text(f"after-claim,after-begin:batch=8,after-begin:run=2:hold={hold}")
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()
    eventually(hold.exists, "it is held", poll_seconds=0.01)
    assert int(hold.read_text()) == process.pid
    assert not plan.exists(), "it fires once"
    assert process.poll() is None
    hold.unlink()
    assert process.communicate()[0].strip() == "alive"
