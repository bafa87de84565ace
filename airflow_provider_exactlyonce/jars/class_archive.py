"""Spark's classes in a file that a driver's JVM maps when it starts, instead of reading and checking them one by one.

A JVM ignores an archive that another Java made, or that is of other jars, and starts without. One whose end is missing
it maps as well, and dies of it: so an archive is on disk before it gets its name, and its name says how long it is.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.exceptions import MissingRequirementError
from airflow_provider_exactlyonce.files import flush
from airflow_provider_exactlyonce.jars.cache import CHECKSUMS, CLASSES_PREFIX, cache_directory, exclusive
from airflow_provider_exactlyonce.jars.ivy import Progress
from airflow_provider_exactlyonce.jars.java import find_java, java_executable
from airflow_provider_exactlyonce.jars.spark import python_environment, spark_jars, spark_submit

#: Options for the JVM that spark-submit starts here. Those of ``spark.driver.extraJavaOptions`` follow them on the
#: JVM's command line: none is lost, and an archive that they name is used instead.
OPTIONS_VARIABLE: Final = "SPARK_SUBMIT_OPTS"

_WRITING: Final = "-XX:ArchiveClassesAtExit"
#: Java compiles a method that runs often a second time, thoroughly, and by default so soon that a third of a start's
#: CPU goes there. After ten times as many calls what is left are the methods that all rows pass through.
_THOROUGH_LATER: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_TRAINING: Final = Path(__file__).with_name("class_training.py")
_OUTPUT_CHARACTERS: Final = 1500


def environment(given: Mapping[str, str], conf: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables with which a driver starts from the archive; empty if there is no archive.

    :param given: the driver's environment without it
    :param conf: the user's Spark settings
    """
    if any(_WRITING in str(value) for value in (*given.values(), *conf.values())):
        return {}  # a JVM that is to write an archive of the user's own does not start from ours
    try:
        archive = find()
    except (MissingRequirementError, OSError):  # the start of the driver raises it again, with more detail
        return {}
    if archive is None:
        return {}
    words = [shlex.quote(f"-XX:SharedArchiveFile={archive}"), "-Xshare:auto", _QUIET, _THOROUGH_LATER]
    return {OPTIONS_VARIABLE: " ".join([*words, given.get(OPTIONS_VARIABLE, "")]).rstrip()}


def find() -> Path | None:
    """Return the archive for this Spark and this Java, None if there is none.

    Another Java, another jar of Spark's or another release of this package's jars has another one.

    :raises MissingRequirementError: when there is no Spark or no Java
    :raises OSError: when they can't be read
    """
    return _whole_archive(cache_directory() / _name())


def _name() -> str:
    files = [find_java().resolve(), *sorted(spark_jars().iterdir())]
    # Whole seconds: that is what Java compares, and what an image keeps of them.
    facts = [f"{file} {status.st_size} {int(status.st_mtime)}" for file in files if (status := file.stat())]
    identity = hashlib.sha256("\n".join([CHECKSUMS.read_text(encoding="utf-8"), *facts]).encode())
    return f"{CLASSES_PREFIX}{identity.hexdigest()[:16]}"


def _whole_archive(base: Path) -> Path | None:
    candidates = base.parent.glob(f"{base.name}-*.jsa")
    return next((file for file in candidates if file.name == _sized(base, file).name), None)


def _sized(base: Path, file: Path) -> Path:
    return base.with_name(f"{base.name}-{file.stat().st_size}.jsa")


def make(progress: Progress) -> Path:
    """Make the archive for this Spark and this Java if it isn't there; returns where it is.

    May be repeated, and by several processes at once: one makes it, the others wait. If it raises, or the process dies
    here, there is no archive, and drivers start without.

    :param progress: called with one line per step; not at all when it is there
    :raises MissingRequirementError: no Spark, no Java, a cache that can't be written, or a Java that makes no archive
    """
    java_executable()
    try:
        base = cache_directory() / _name()
        archive = _whole_archive(base)
        if archive is None:
            with exclusive(base.with_name(f"{base.name}.lock"), progress):
                archive = _whole_archive(base)  # the holder of the lock before us may have made it
                if archive is None:
                    progress("putting Spark's classes into an archive; a small job runs, which takes about a minute")
                    archive = _publish(base)
    except OSError as error:
        raise MissingRequirementError(
            f"Spark's classes can't be put into an archive in {cache_directory()}: {error}"
        ) from error
    return archive


def _publish(base: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix=CLASSES_PREFIX, dir=base.parent) as folder:
        archive = Path(folder, "classes.jsa")
        _let_a_job_write(archive)
        archive.chmod(0o644)
        flush(archive)
        return archive.replace(_sized(base, archive))


def _let_a_job_write(archive: Path) -> None:
    """Run a job; its JVM writes its classes at its end.

    :param archive: in a folder for the job's other files
    """
    job = subprocess.run(
        [spark_submit(), "--master", "local[2]", str(_TRAINING), str(archive.parent)],
        env={
            **os.environ,
            **python_environment(),
            OPTIONS_VARIABLE: f"{shlex.quote(f'{_WRITING}={archive}')} {_QUIET}",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if job.returncode != 0 or not archive.is_file():
        raise MissingRequirementError(
            f"the job that shows {find_java()} which classes to archive ended with exit code {job.returncode}, and "
            f"without an archive. The end of its output:\n{job.stdout[-_OUTPUT_CHARACTERS:]}"
        )
