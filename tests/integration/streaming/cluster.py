"""A real Spark standalone cluster for tests."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from tests.ports import free_port
from tests.waiting import eventually

WORKERS = 2


def children(pid: int) -> list[int]:
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children() if child.status() != psutil.STATUS_ZOMBIE]
    return []


@dataclass
class Cluster:
    """A master and its workers, all on the loopback."""

    url: str
    workers: list[subprocess.Popen[bytes]]
    folder: Path

    def executors(self) -> list[int]:
        return [child for worker in self.workers for child in children(worker.pid)]

    def python_workers(self) -> list[int]:
        """Return the processes that run tasks: an executor's child is a daemon, and its children are they."""
        return [worker for executor in self.executors() for daemon in children(executor) for worker in children(daemon)]

    def shuffle_files(self) -> list[Path]:
        return list(self.folder.rglob("shuffle_*.data"))


@contextmanager
def spark_cluster(folder: Path, environment: Mapping[str, str]) -> Iterator[Cluster]:
    """Run a master and its workers.

    :param environment: of all of them; what Spark itself needs is added
    """
    home = Path(pyspark.__file__).parent
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    log = folder / "cluster.log"
    environment = {
        **environment,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "blocks"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            process = subprocess.Popen(
                [home / "bin" / "spark-class", *arguments],
                env=environment,
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        stack.callback(end, process)
        return process

    def said(text: str) -> int:
        return log.read_text(errors="replace").count(text)

    with ExitStack() as stack:
        start("org.apache.spark.deploy.master.Master", *f"--host 127.0.0.1 --port {port} --webui-port 0".split())
        eventually(lambda: said("I have been elected leader"), "the master runs")
        options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
        workers = [
            start("org.apache.spark.deploy.worker.Worker", *options, "--work-dir", str(folder / f"work-{number}"), url)
            for number in range(WORKERS)
        ]
        eventually(lambda: said("Successfully registered with master") == WORKERS, "the workers have registered")
        yield Cluster(url, workers, folder)


def end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
