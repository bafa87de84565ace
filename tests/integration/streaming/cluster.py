"""A real Spark standalone cluster for tests."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from tests.ports import free_port
from tests.waiting import eventually

WORKERS = 2
_ON_A_HOST_OF_ITS_OWN = ("unshare", "--mount", "sh", "-ec")
CANNOT_BE_APART = subprocess.run(
    [*_ON_A_HOST_OF_ITS_OWN, "true"], capture_output=True, text=True, check=False
).stderr.strip()


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
def spark_cluster(folder: Path, environment: Mapping[str, str], not_shared: Sequence[Path] = ()) -> Iterator[Cluster]:
    """Run a master and its workers.

    :param environment: of all of them; what Spark itself needs is added
    :param not_shared: folders of which each worker has an empty one of its own; then it has an address of its own,
        too, as Spark reads what another executor of the same host has written from its files
    """
    apart: list[str] = []
    if not_shared:
        mounts = [f"mount -t tmpfs none {shlex.quote(str(hidden))}" for hidden in not_shared]
        script = [*mounts, 'mkdir -p "$0"', 'cd "$0"', 'exec "$@"']
        apart = [*_ON_A_HOST_OF_ITS_OWN, "; ".join(script), str(folder)]
    home = Path(pyspark.__file__).parent
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    log = folder / "cluster.log"
    environment = {
        **environment,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(folder / "blocks"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }

    def start(*arguments: str, host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*prefix, str(home / "bin" / "spark-class"), *arguments],
                env={**environment, "SPARK_LOCAL_IP": host},
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
        workers = []
        for number in range(WORKERS):
            host = f"127.0.0.{2 + number}" if apart else "127.0.0.1"
            options = f"--host {host} --cores 1 --memory 1g --webui-port 0 --work-dir".split()
            command = ["org.apache.spark.deploy.worker.Worker", *options, str(folder / f"work-{number}"), url]
            workers.append(start(*command, prefix=apart, host=host))
        eventually(lambda: said("Successfully registered with master") == WORKERS, "the workers have registered")
        yield Cluster(url, workers, folder)


def end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
