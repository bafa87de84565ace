"""A driver's Python out of a process that has imported what all of them do: a third of the CPU of one from nothing.

That process never uses what it has imported. Its children are adopted by the tests' process, which waits for them as
for its own. What Python itself reads from the environment as it starts can't be told to a child.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import psutil

from demo.processes import adopt_orphans

#: What a driver has imported when its first batch has ended.
IMPORTED: Final = (
    "airflow_provider_exactlyonce.streaming.driver.main",
    "airflow_provider_exactlyonce.streaming.job.checkpoint_config",
    "airflow_provider_exactlyonce.streaming.job.process",
    "airflow_provider_exactlyonce.streaming.registry.registry_format",
    "airflow_provider_exactlyonce.streaming.spark.session",
    "airflow_provider_exactlyonce.state",
    "confluent_kafka.admin",
    "pyspark.sql.classic.dataframe",
    "pyspark.sql.functions",
    "pyspark.testing.utils",  # PySpark's own functions import it
)
_READ_BY_PYTHON: Final = ("PYTHON", "LD_", "MALLOC_")


class ForkedDriver:
    """As much of a :class:`subprocess.Popen` as tests want of a driver's."""

    def __init__(self, pid: int) -> None:
        self.pid: Final = pid
        self.returncode: int | None = None
        self._process: Final = psutil.Process(pid)

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, minus a signal's number, when it has ended."""
        if self.returncode is None:
            try:
                self.returncode = self._process.wait(timeout)
            except psutil.TimeoutExpired as error:
                raise subprocess.TimeoutExpired("driver", timeout or 0) from error
        assert self.returncode is not None, f"process {self.pid} was not adopted by this one"
        return self.returncode


class DriverForks:
    """The process that the drivers come from.

    :param environment: what Python's own variables are in it
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        adopt_orphans()
        self._python = _of_python(environment)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def can_start(self, environment: Mapping[str, str]) -> bool:
        """Say whether Python would read the same from an environment."""
        return _of_python(environment) == self._python

    def start(self, program: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> ForkedDriver:
        """Start a driver.

        :param program: a Python file and its arguments
        :param output: where what it prints goes
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {
            "program": list(program),
            "environment": dict(environment),
            "output": output.name,
            "folder": os.getcwd(),
        }
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return ForkedDriver(int(self._process.stdout.readline()))

    def end(self) -> None:
        """End it; its children go on."""
        self._process.communicate()


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_BY_PYTHON)}


def _serve() -> dict[str, Any]:
    """Make a child for each request; returns in each child, with its request."""
    for line in sys.stdin.buffer:
        reader, writer = os.pipe()
        between = os.fork()
        if not between:
            if os.fork():
                os._exit(0)  # the child of a process that ends goes to the nearest that adopts: the tests'
            os.setsid()
            os.write(writer, b"%d\n" % os.getpid())
            os.close(reader)
            os.close(writer)
            return dict(json.loads(line))
        os.close(writer)
        os.waitpid(between, 0)
        os.write(1, os.read(reader, 20))
        os.close(reader)
    sys.exit(0)


def _become(request: Mapping[str, Any]) -> list[str]:
    """Make this process what it were if it had been started for the request; returns the program."""
    output = os.open(request["output"], os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for place, file in enumerate((nothing, output, output)):
        os.dup2(file, place)
    os.close(nothing)
    os.close(output)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    importlib.reload(sys.modules["airflow_provider_exactlyonce.failpoints"])  # they are read as it is imported
    program: list[str] = request["program"]
    sys.argv[:] = program
    sys.path[0] = str(Path(program[0]).parent)
    return program


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    runpy.run_path(_become(_serve())[0], run_name="__main__")
