"""Find a Java that can run the broker."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.exceptions import MissingRequirementError

MINIMUM_JAVA_VERSION: Final = 17
HOW_TO_GET_JAVA: Final = "install it with `apt-get install openjdk-17-jre-headless`, or set JAVA_HOME to a newer one"


def java_executable() -> Path:
    """Return the ``java`` that JAVA_HOME or PATH names, once it is known to be new enough.

    :raises MissingRequirementError: when there is none, or it is too old
    """
    java = find_java()
    version = java_version(str(java))
    if version < MINIMUM_JAVA_VERSION:
        raise MissingRequirementError(f"{java} is Java {version}; {MINIMUM_JAVA_VERSION} is needed: {HOW_TO_GET_JAVA}")
    return java


def find_java() -> Path:
    """Return the ``java`` that JAVA_HOME or PATH names, whatever its version.

    :raises MissingRequirementError: when there is none
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise MissingRequirementError(
            f"Java {MINIMUM_JAVA_VERSION} is needed and there is no `java` on the PATH: {HOW_TO_GET_JAVA}"
        )
    if not os.access(java, os.X_OK):
        raise MissingRequirementError(f"JAVA_HOME is {home!r}, which has no bin/java: {HOW_TO_GET_JAVA}")
    return Path(java)


def java_command(class_path: str, heap_megabytes: int, *options: str) -> list[str]:
    """Return the words that start a JVM, up to and without the main class.

    As with Kafka's own scripts, the environment's ``KAFKA_OPTS`` are among them.
    """
    return [
        str(java_executable()),
        f"-Xmx{heap_megabytes}m",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        *options,
        *shlex.split(os.environ.get("KAFKA_OPTS", "")),
        *("-cp", class_path),
    ]


@functools.cache
def java_version(executable: str) -> int:
    """Ask a ``java`` for its feature version (8, 17, 21 …).

    :raises MissingRequirementError: when it doesn't run or doesn't say
    """
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingRequirementError(f"{executable} doesn't run ({error}): {HOW_TO_GET_JAVA}") from error
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    if match is None:
        raise MissingRequirementError(f"{executable} -version doesn't say its version: {answer.stderr.strip()!r}")
    return int(match.group(1))
