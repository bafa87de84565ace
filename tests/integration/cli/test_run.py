"""The command line itself: a program that notes its arguments stands for spark-submit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import commands

SUBMIT = """#!/bin/sh
printf '%s\\n' "$@" > "$0.arguments"
"""
OURS = ["--master", "local[2]", "--conf", "spark.x=1", "--packages", "a:b:1"]
JOBS = ["--home", "H", "--until=available", "--accept-home"]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "spark-submit").write_text(SUBMIT)
    (tmp_path / "spark-submit").chmod(0o755)
    (tmp_path / "job.py").touch()
    return tmp_path / "job.py"


def submitted(job: Path, *arguments: str) -> list[str]:
    environment = {**os.environ, "PATH": f"{job.parent}{os.pathsep}{os.environ['PATH']}"}
    commands.run_apart("run", *arguments, environment=environment)
    return (job.parent / "spark-submit.arguments").read_text().splitlines()


@pytest.mark.parametrize("before", [[*OURS, *JOBS], [*OURS], [*JOBS], []], ids=["all", "Spark's", "the job's", "none"])
def test_options_of_a_run_may_stand_before_and_after_the_job(job: Path, before: list[str]) -> None:
    after = [word for word in [*OURS, *JOBS] if word not in before]
    arguments = submitted(job, *before, str(job), *after, "--one-of-its-own", "5")
    at = arguments.index(str(job))
    assert {"local[2]", "spark.x=1", "a:b:1"} < set(arguments[:at])
    passed_on = [word for given in arguments[at + 1 :] for word in given.split("=")]
    assert passed_on == ["--home", "H", "--until", "available", "--accept-home", "--one-of-its-own", "5"]
