"""One JVM for the drivers of a session, one after the other: a driver's start takes 5 s of CPU instead of 20.

``spark-submit`` starts a JVM, which starts the job's Python and tells it by its environment where the JVM is. Here the
JVM is there already, and Python is told of it in the same way. Its settings reach Spark as the JVM's properties, which
is how ``spark-submit`` hands them on, too.

A driver that is killed leaves its queries and its context in the JVM; both are stopped before the next one starts.
Under ``spark-submit`` the JVM's shutdown hooks do that when Python is gone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

import pytest

from airflow_provider_exactlyonce.jars import class_archive
from tests.driver_forks import DriverForks, ForkedDriver

DriverProcess: TypeAlias = subprocess.Popen[bytes] | ForkedDriver

#: The files that Spark writes are for nobody else; Hadoop's own way would let others read them, by chmod.
UMASK: Final = 0o077
_PROGRAMS_ENVIRONMENT: Final = {"PYTHONHASHSEED": "0"}  # what spark-submit gives its program


@dataclass(frozen=True)
class _Submission:
    """What a command line of spark-submit says."""

    settings: Mapping[str, str]
    program: Sequence[str]

    @classmethod
    def of(cls, command: Sequence[str]) -> _Submission:
        settings = {}
        words = iter(command[1:])
        for word in words:
            if word == "--conf":
                name, _, value = next(words).partition("=")
                settings[name] = value
            elif word == "--master":
                settings["spark.master"] = next(words)
            elif word == "--jars":
                settings["spark.jars"] = next(words)
            else:
                return cls(settings, [word, *words])
        raise ValueError(f"no program in {command}")


class SharedJvm:
    """The JVM of one driver after the other, whatever becomes of them.

    :param log: what the JVM prints, of all drivers
    :param java_options: of the JVM; drivers that want others have one of their own
    """

    def __init__(self, log: Path, java_options: str) -> None:
        self._log = log
        self._java_options = java_options
        self._gateway: Any = None
        self._forks: DriverForks | None = None
        self._driver: DriverProcess | None = None
        self._set: set[str] = set()

    def can_run(self, command: Sequence[str]) -> bool:
        """Say whether a command line of spark-submit wants a JVM like this one, and none of its drivers lives."""
        settings = _Submission.of(command).settings
        return (
            settings["spark.master"].startswith("local")
            and settings["spark.driver.extraJavaOptions"] == self._java_options
            and (self._driver is None or self._driver.poll() is not None)
        )

    def start(self, command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> DriverProcess:
        """Start a driver.

        :param command: spark-submit's
        :param environment: of the driver's process
        :param output: where what the driver prints goes; what the JVM prints is in its own log
        """
        submission = _Submission.of(command)
        if self._gateway is None:
            self._launch(submission.settings["spark.jars"])
        self._prepare(submission.settings)
        parameters = self._gateway.gateway_parameters
        environment = {
            **environment,
            **_PROGRAMS_ENVIRONMENT,
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        }
        if self._forks is None:
            self._forks = DriverForks({**os.environ, **_PROGRAMS_ENVIRONMENT})
        if environment["PYSPARK_DRIVER_PYTHON"] == sys.executable and self._forks.can_start(environment):
            self._driver = self._forks.start(submission.program, environment, output)
        else:
            self._driver = subprocess.Popen(
                [environment["PYSPARK_DRIVER_PYTHON"], *submission.program],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._driver

    def end(self) -> None:
        """End the JVM, if there is one; the next driver gets a new one."""
        if self._forks is not None:
            self._forks.end()
            self._forks = None
        if self._gateway is not None:
            self._gateway.proc.stdin.close()  # the JVM ends with its parent's pipe
            self._gateway.proc.wait()
            self._gateway.shutdown()  # before that, py4j would wait for a thread that reads what the JVM may still send
            self._gateway = None
            self._set.clear()

    def _launch(self, jars: str) -> None:
        from pyspark.java_gateway import launch_gateway

        options = f"--driver-java-options '{self._java_options}' --jars {jars} pyspark-shell"
        with pytest.MonkeyPatch.context() as patched, self._log.open("ab") as log:
            patched.setenv("PYSPARK_SUBMIT_ARGS", options)
            for name, value in class_archive.environment(os.environ, {}).items():
                patched.setenv(name, value)
            how = {"stdout": log, "stderr": subprocess.STDOUT, "umask": UMASK}
            self._gateway = launch_gateway(popen_kwargs=how)

    def _prepare(self, settings: Mapping[str, str]) -> None:
        jvm = self._gateway.jvm
        session = jvm.org.apache.spark.sql.SparkSession.getDefaultSession()
        if session.isDefined():
            for query in session.get().streams().active():
                query.stop()
        module = getattr(getattr(jvm.org.apache.spark, "SparkContext$"), "MODULE$")
        if (left := module.getActive()).isDefined():
            left.get().stop()
        for name in self._set - settings.keys():
            jvm.System.clearProperty(name)
        for name, value in settings.items():
            jvm.System.setProperty(name, value)
        self._set = set(settings)
