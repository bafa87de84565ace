"""The process in which a job's file is ``__main__``: a mistake in it ends with its exit code, and in one sentence."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, NoReturn

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.streaming.job import driver_log, job_file, mistakes
from airflow_provider_exactlyonce.streaming.settings import TOKEN_VARIABLE

log = logging.getLogger("exactlyonce")

#: Spark's launcher tells a job's process through it where the JVM is.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
_RUNNING: Final = "running it"


class _Process:
    """The state of this process."""

    driver_began = False
    watched = False
    exit_code: int | None = None  # instead of Python's own


def driver_begins() -> None:
    """Note that the job has come to its pipeline's ``main()``, which judges errors by itself."""
    _Process.driver_began = True


def run(job: str) -> NoReturn:
    """Run a job's file as ``__main__``, and exit.

    :param job: its absolute path
    """
    try:
        names = _run_as_main(job)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)  # a person at the terminal wants it
    except Exception as error:
        mistake = None if _Process.driver_began else mistakes.meaning_of(error, job, _RUNNING)
        if mistake is None:
            raise
        _say(mistake)
        sys.exit(mistake.exit_code)
    if not _Process.driver_began:
        refused = _not_run(job, names)
        _say(refused)
        sys.exit(refused.exit_code)
    sys.exit(0)


def _run_as_main(job: str) -> dict[str, Any]:
    """Execute a file as Python does the one that it is given; returns its names."""
    main, launcher = ModuleType("__main__"), sys.modules["__main__"]
    main.__file__ = sys.argv[0] = job
    sys.modules["__main__"] = main
    try:
        exec(job_file.compiled(job), vars(main))
    finally:
        sys.modules["__main__"] = launcher
    return vars(main)


def watch() -> None:
    """Do the same, as far as can be, for a job that spark-submit runs without us; called where pipelines are declared.

    It sees neither the job's work before it imports this package nor a job that never does.
    """
    job = getattr(sys.modules.get("__main__"), "__file__", None)
    if _Process.watched or _SUBMITTED not in os.environ or job is None or _is_ours(job):
        return
    _Process.watched = True
    previous_hook = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        mistake = None if _Process.driver_began else mistakes.meaning_of(error, str(job), _RUNNING)
        if mistake is None:
            _Process.driver_began = True  # it has failed; that it has not run its pipeline says nothing
            previous_hook(kind, error, trace)
            return
        _say(mistake)
        _Process.exit_code = mistake.exit_code

    sys.excepthook = excepthook
    atexit.register(_end, str(job))


def _end(job: str) -> None:
    """Give Python, which knows 0 and 1 only, the exit code; called after whatever else is called at the end."""
    supervised = TOKEN_VARIABLE in os.environ  # the supervisor of a job that was not run sees that from outside
    if _Process.exit_code is None and not _Process.driver_began and not supervised:
        names = vars(sys.modules["__main__"])
        if _pipelines(names):
            refused = _not_run(job, names)
            _say(refused)
            _Process.exit_code = refused.exit_code
    if _Process.exit_code is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_Process.exit_code)


def _is_ours(job: str) -> bool:
    return Path(__file__).parents[1] in Path(job).absolute().parents


def _not_run(job: str, names: Mapping[str, Any]) -> RefusedError:
    declared = _pipelines(names)
    if not declared:
        return RefusedError(
            f"{job} declares no pipeline and runs none: declare one with @pipeline, and end the file with its main()"
        )
    variable, name = next(iter(declared.items()))
    return RefusedError(
        f"{job} declares pipeline {name} and does not run it: end the file with "
        f"if __name__ == '__main__': {variable}.main()"
    )


def _pipelines(names: Mapping[str, Any]) -> dict[str, str]:
    """Return {variable: pipeline's name} of a module."""
    from airflow_provider_exactlyonce.streaming.job.definition import PipelineDefinition

    return {variable: value.name for variable, value in names.items() if isinstance(value, PipelineDefinition)}


def _say(error: ExactlyOnceError) -> None:
    driver_log.configure()
    log.error("%s: %s", type(error).__name__, error)
