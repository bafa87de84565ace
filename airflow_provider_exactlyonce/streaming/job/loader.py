"""Loads a job's file as a driver does, without running it, and tells where in it something goes wrong."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.streaming.job import job_file
from airflow_provider_exactlyonce.streaming.job.definition import PipelineDefinition
from airflow_provider_exactlyonce.streaming.job.mistakes import first_line, place

_MODULE: Final = "exactlyonce_job"


def load(job: str, name: str | None = None, *, if_several: str | None = None) -> PipelineDefinition:
    """Return the pipeline that a file declares.

    :param job: the file
    :param name: the pipeline's name; None for the only one
    :param if_several: the name where the file declares several; the caller judges the name of an only one
    :raises RefusedError: when there is none, or not one of this name; when the file can't be executed, with its line
    """
    file = Path(job).resolve()
    if not file.is_file():
        raise RefusedError(f"there is no job file {job!r}")
    pipelines = {
        pipeline.name: pipeline for pipeline in vars(_module(file)).values() if isinstance(pipeline, PipelineDefinition)
    }
    if not pipelines:
        raise RefusedError(f"{job} declares no pipeline: none of its names is a function under @pipeline")
    if len(pipelines) == 1 and name is None:
        return next(iter(pipelines.values()))
    wanted, declared = name or if_several, ", ".join(sorted(pipelines))
    if wanted is None:
        raise RefusedError(f"{job} declares several pipelines: {declared}; name one with --pipeline")
    if wanted not in pipelines:
        raise RefusedError(f"{job} declares no pipeline {wanted}, but {declared}; name one of these with --pipeline")
    return pipelines[wanted]


@contextlib.contextmanager
def running(job: str, doing: str) -> Iterator[None]:
    """Run a job's code: its errors become a refusal that names its line, and what it prints goes to stderr.

    Commands that look into a job give their answer on stdout, to programs.

    :param job: the file
    :param doing: what its code is run for
    :raises RefusedError: with the kind of the error, its first line and the line of the job that led to it
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except ExactlyOnceError as error:
        raise RefusedError(f"{place(job, error)}: {error}") from error
    except SystemExit as error:
        raise RefusedError(
            f"{place(job, error)}: {doing} ends the process; put what runs the job under if __name__ == '__main__'"
        ) from error
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise RefusedError(f"{place(job, error)}: {doing} fails: {reason}") from error


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_MODULE, file)
    if spec is None or spec.loader is None:
        raise RefusedError(f"{file} is no Python file: its name must end in .py")
    from pyspark import cloudpickle

    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    # Spark's workers can't import it: its objects go to them by value, as from a job's __main__.
    cloudpickle.register_pickle_by_value(module)
    arguments = sys.argv
    sys.path.insert(0, str(file.parent))  # stays: the job's function may import what lies beside it, too
    try:
        sys.argv = [str(file)]
        with running(str(file), "importing it"):
            exec(job_file.compiled(str(file)), vars(module))
    finally:
        sys.argv = arguments
    return module
