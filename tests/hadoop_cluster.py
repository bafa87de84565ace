"""Real HDFS and YARN of Spark's Hadoop version in one JVM, whose containers find nothing but Java and Python."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

import psutil
import pytest

from airflow_provider_exactlyonce.devkit import guard
from airflow_provider_exactlyonce.devkit.errors import DevkitError
from airflow_provider_exactlyonce.devkit.ivy import retrieve
from airflow_provider_exactlyonce.devkit.jars import cache_directory, exclusive
from airflow_provider_exactlyonce.devkit.java import java_command, java_executable
from airflow_provider_exactlyonce.devkit.launch import launch, log_path, log_tail, open_log
from tests.waiting import eventually

VERSION: Final = "3.5.0"
DEPENDENCIES: Final = Path(__file__).with_name("hadoop_ivy.xml")
MAIN: Final = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
HEAP_MEGABYTES: Final = 512
#: What a cluster has that is none of a test's, or nobody needs.
SETTINGS: Final[Mapping[str, str]] = {
    "dfs.replication": "1",
    "yarn.resourcemanager.hostname": "localhost",
    "yarn.nodemanager.hostname": "localhost",
    "yarn.scheduler.minimum-allocation-mb": "256",
    # What a container may take is not what these tests are about, and a disk that is nearly full is as good as another.
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
    "yarn.nodemanager.delete.debug-delay-sec": "3600",  # containers' output stays for a look
}
#: Each gets a port of its own; else it is the same one on every machine.
ADDRESSES: Final = (
    "yarn.resourcemanager.admin.address",
    "yarn.resourcemanager.resource-tracker.address",
    "yarn.resourcemanager.scheduler.address",
    "yarn.resourcemanager.webapp.address",
    "mapreduce.jobhistory.address",
    "mapreduce.jobhistory.admin.address",
    "mapreduce.jobhistory.webapp.address",
)


def jar_directory() -> Path:
    """Return where the jars are, 120 MB in the per-user cache; fetch them first if they aren't there.

    :raises DevkitError: when they can't be had
    """
    cache = cache_directory() / "tests"
    folder = cache / f"hadoop-{VERSION}"
    with exclusive(cache / "lock", print):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as staging:
                retrieve(Path(staging, "jars"), Path(staging, "ivy"), print, dependencies=DEPENDENCIES)
                Path(staging, "jars", "hadoop").rename(folder)
    return folder


@dataclass(frozen=True)
class HadoopCluster:
    """A name node with a data node, and a resource manager with a node manager.

    :param folder: all that they write
    :param hdfs: URL of the file system's root
    :param resource_manager: URL of the resource manager's REST interface
    """

    folder: Path
    hdfs: str
    resource_manager: str

    @property
    def configuration(self) -> Path:
        """The folder that HADOOP_CONF_DIR names."""
        return self.folder / "conf"

    def applications(self, **wanted: str) -> list[dict[str, Any]]:
        """Return what the resource manager knows of applications, in the order of their submission."""
        import requests

        answer = requests.get(f"{self.resource_manager}/ws/v1/cluster/apps", params=wanted, timeout=60)
        answer.raise_for_status()
        return sorted((answer.json()["apps"] or {}).get("app", ()), key=lambda app: str(app["id"]))

    def containers(self, application: str) -> list[psutil.Process]:
        """Return the processes of an application's containers; the first container's is its master."""
        return sorted(_working_in(self.folder, application), key=lambda process: str(process.cwd()))

    def output(self, application: str) -> str:
        """Return what an application's containers have printed."""
        files = sorted(self.folder.glob(f"yarn/**/{application}/container_*/std*"))
        return "\n".join(f"== {file.parent.name} {file.name}\n{file.read_text(errors='replace')}" for file in files)


def _working_in(folder: Path, part: str = "") -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            directory = process.cwd()
            if directory.startswith(f"{folder}/") and part in directory and process.status() != psutil.STATUS_ZOMBIE:
                yield process


@contextlib.contextmanager
def hadoop_cluster(folder: Path) -> Iterator[HadoopCluster]:
    """Run a cluster; at the end nothing of it runs, containers neither.

    :raises DevkitError: when its jars or a Java can't be had
    """
    class_path = f"{jar_directory()}/*"
    name_node, resource_manager, *ports = _free_ports(2 + len(ADDRESSES))
    addresses = {name: f"localhost:{port}" for name, port in zip(ADDRESSES, ports, strict=True)}
    cluster = HadoopCluster(
        folder, f"hdfs://localhost:{name_node}", f"http://{addresses['yarn.resourcemanager.webapp.address']}"
    )
    _write_configuration(cluster, {**addresses, "yarn.resourcemanager.address": f"localhost:{resource_manager}"})
    started = folder / "started.json"
    options = {**SETTINGS, **addresses, "hdfs.minidfs.basedir": str(folder / "hdfs")}
    command = [
        *("env", "-i", *(f"{name}={value}" for name, value in _environment(folder).items())),
        *java_command(class_path, HEAP_MEGABYTES, f"-Dtest.build.data={folder / 'yarn'}"),
        *(MAIN, "-format", "-nnport", str(name_node), "-rmport", str(resource_manager), "-writeDetails", str(started)),
        *(word for name, value in options.items() for word in ("-D", f"{name}={value}")),
    ]
    with open_log(log_path(folder)) as log:
        supervisor, process = launch(command, folder, log, guard.SUPERVISE)
    try:

        def is_up() -> bool:
            assert process.is_alive(), log_tail(log_path(folder))
            return started.is_file() and started.stat().st_size > 0

        eventually(is_up, lambda: log_tail(log_path(folder)), poll_seconds=0.2)
        yield cluster
    finally:
        process.send(signal.SIGKILL)
        if supervisor is not None:
            supervisor.wait()
        for left in _working_in(folder):
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()


def _environment(folder: Path) -> Mapping[str, str]:
    """Return what containers inherit: Java, and a Python without any package."""
    venv.create(folder / "python", with_pip=False)
    python = folder / "python" / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = subprocess.check_output([python, "-c", "import importlib.metadata as m; print(*m.distributions())"])
    assert packages.split() == []
    return {
        "HOME": str(folder),
        "JAVA_HOME": str(java_executable().resolve().parents[1]),
        "LANG": "C.UTF-8",
        "PATH": os.pathsep.join([str(python.parent), *os.defpath.split(os.pathsep)]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _write_configuration(cluster: HadoopCluster, addresses: Mapping[str, str]) -> None:
    cluster.configuration.mkdir()
    for name, settings in {"core-site": {"fs.defaultFS": cluster.hdfs}, "yarn-site": addresses}.items():
        properties = "".join(
            f"<property><name>{key}</name><value>{escape(value)}</value></property>" for key, value in settings.items()
        )
        (cluster.configuration / f"{name}.xml").write_text(f"<configuration>{properties}</configuration>")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as sockets:
        probes = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


@pytest.fixture(scope="session")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HadoopCluster]:
    """Give the session's cluster, which takes half a minute to start, and half a gigabyte."""
    try:
        with hadoop_cluster(tmp_path_factory.mktemp("hadoop")) as cluster:
            yield cluster
    except DevkitError as error:
        pytest.skip(f"there is no HDFS and YARN: {error}")
