from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from airflow_provider_exactlyonce import failpoints

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
        timeout=20,
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
