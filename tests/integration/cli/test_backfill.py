"""``exactlyonce backfill`` after another one for the same range; what is started only says that it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.backfill import workspace
from airflow_provider_exactlyonce.backfill.request import BackfillRequest
from airflow_provider_exactlyonce.cli.backfill import _run
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import processes, requests, status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from tests.waiting import eventually

FINISHES = """
import os, sys
from airflow_provider_exactlyonce.backfill import workspace
from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
home = Home(sys.argv[1])
workspace.write_result(home, {"version": sys.argv[2]})
finished = status.DriverState.FINISHED
status.write(home.status, status.Status(pipeline="shop", token=os.environ["EXACTLYONCE_TOKEN"], state=finished))
"""


@pytest.fixture
def made(tmp_path: Path) -> Home:
    return workspace.make(Home(tmp_path / "home"), "shop", BackfillRequest.parse(commits="1..9", output="topic=fixed"))


def launch(home: Home, version: str) -> Launch:
    command = [sys.executable, "-c", FINISHES, str(home.path), version]
    return Launch(command=command, printable="", environment={})


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    for name, text in (("old", "old"), ("copied", "old"), ("new", "new")):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("named_then", "named_now", "version"),
    [
        (None, "new", "now"),
        ("old", "new", "now"),
        ("old", None, "now"),
        ("old", "old", "then"),
        ("old", "copied", "then"),
        (None, None, "then"),
    ],
)
def test_the_result_of_a_driver_that_nobody_saw_end_is_given_to_who_asks_for_the_same_job(
    made: Home, jobs: Path, monkeypatch: pytest.MonkeyPatch, named_then: str | None, named_now: str | None, version: str
) -> None:
    then, now = (str(jobs / f"{name}.py") if name else None for name in (named_then, named_now))
    with monkeypatch.context() as killed:  # before it has noted that its driver has ended
        killed.setattr(intents, "remove", lambda *_: None)
        assert _run(made, launch(made, "then"), then) == {"version": "then"}
    assert _run(made, launch(made, "now"), now) == {"version": version}


DRIVER = Path(__file__).parents[1] / "control" / "contract_driver.py"
#: The command, as far as it comes after the cluster was asked for the version that runs.
COMMAND = """
import argparse, os, signal, sys
from airflow_provider_exactlyonce.cli import backfill, main
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background programs ignore it
home, *command = sys.argv[1:]
launch = Launch(command=command, printable="", environment=dict(os.environ))
backfill._backfill = lambda given: backfill._run(Home(home), launch, None)
sys.exit(main.main(["backfill", "shop", "--commits", "1..9"]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_driver_before_its_next_batch(made: Home, number: signal.Signals) -> None:
    driver = [
        sys.executable,
        str(DRIVER),
        "--home",
        str(made.path),
        "--until",
        "available",
        "take-lease commit until-stop",
    ]
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(made.path), *driver],
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )

    def token() -> str | None:
        last = status.read(made.status)
        return last.token if last is not None and last.commit == 1 else None

    running = eventually(token, "the driver has committed")
    command.send_signal(number)
    said = command.communicate()[1]
    assert command.returncode == 130, said
    assert said.splitlines()[-1] == "interrupted. The command may be tried again"
    assert processes.leader(running) is None
    assert requests.stop_requested(made, running) == "interrupted"
    last = status.read(made.status)
    assert last is not None
    assert last.state is status.DriverState.STOPPED
