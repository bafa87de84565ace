"""``exactlyonce backfill`` after another one for the same range; what is started only says that it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.backfill import workspace
from airflow_provider_exactlyonce.backfill.request import BackfillRequest
from airflow_provider_exactlyonce.cli.backfill import _run
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch

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
