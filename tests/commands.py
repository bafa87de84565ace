"""Our command line as people use it: in this process, or in one of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_exactlyonce.cli import main as cli
from airflow_provider_exactlyonce.failpoints import VARIABLE as FAILPOINTS
from tests.waiting import HANG_SECONDS

#: For a test that has more to do while the command runs.
PROGRAM: Final = (sys.executable, "-m", cli.__name__)


@dataclass(frozen=True)
class Said:
    """What a command has printed, and with which exit code it has ended."""

    code: int
    out: str
    err: str

    @property
    def body(self) -> Any:
        """What it has printed with ``--json``."""
        return json.loads(self.out)


def run(*words: str, code: int | None = 0) -> Said:
    """Run a command in this process.

    :param code: with which it has to end, None for any
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ended = cli.main(words)
    return _judged(words, code, ended, out.getvalue(), err.getvalue())


def run_apart(
    *words: str,
    code: int | None = 0,
    failpoints: str = "",
    environment: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
    stdin: int | None = None,
) -> Said:
    """Run a command in a process of its own, and in a group of its own, which a fail point kills.

    :param environment: None for this process's
    :param under: the command line of a program that runs it
    """
    done = subprocess.run(
        [*under, *PROGRAM, *words],
        env={**(os.environ if environment is None else environment), FAILPOINTS: failpoints},
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        start_new_session=True,
        check=False,
    )
    return _judged(words, code, done.returncode, done.stdout, done.stderr)


def _judged(words: Sequence[str], code: int | None, ended: int, out: str, err: str) -> Said:
    assert code in (None, ended), f"{' '.join(words)} ends with {ended}: {err[-4000:]}{out[-2000:]}"
    return Said(ended, out, err)
