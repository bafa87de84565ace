"""Real HDFS and YARN of Spark's Hadoop version, whose containers find nothing but Java and Python."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

import psutil
import pytest
import requests

from airflow_provider_exactlyonce.devkit import guard
from airflow_provider_exactlyonce.devkit.launch import launch, log_path, log_tail, open_log
from airflow_provider_exactlyonce.exceptions import MissingRequirementError
from airflow_provider_exactlyonce.jars.cache import cache_directory, exclusive
from airflow_provider_exactlyonce.jars.ivy import retrieve
from airflow_provider_exactlyonce.jars.java import java_command, java_executable
from tests.ports import free_ports
from tests.waiting import eventually

VERSION: Final = "3.5.0"
DEPENDENCIES: Final = Path(__file__).with_name("hadoop_ivy.xml")
HDFS: Final = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
RESOURCE_MANAGER: Final = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
ADMINISTRATION: Final = "org.apache.hadoop.yarn.client.cli.RMAdminCLI"
#: Two with high availability.
MANAGERS: Final = ("rm1", "rm2")
FORMAT: Final = "-format"
NODE_MANAGER: Final = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
HEAP_MEGABYTES: Final = 256
#: What a cluster has that is none of a test's, or nobody needs.
SETTINGS: Final[Mapping[str, str]] = {
    "yarn.resourcemanager.hostname": "localhost",
    "yarn.nodemanager.hostname": "localhost",
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.resource.cpu-vcores": "8",
    # What a container may take is not what these tests are about, and a disk that is nearly full is as good as another.
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
    "yarn.nodemanager.delete.debug-delay-sec": "3600",  # containers' output stays for a look
    # A resource manager that is started again knows its applications; a node is lost after this time.
    "yarn.resourcemanager.recovery.enabled": "true",
    "yarn.resourcemanager.store.class": "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore",
    "yarn.resourcemanager.connect.retry-interval.ms": "1000",
    "yarn.nm.liveness-monitor.expiry-interval-ms": "30000",
    # What a queue has a right to is taken from others within seconds.
    "yarn.resourcemanager.scheduler.monitor.enable": "true",
    "yarn.resourcemanager.monitor.capacity.preemption.monitoring_interval": "500",
    "yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill": "500",
    "yarn.resourcemanager.monitor.capacity.preemption.total_preemption_per_round": "1.0",
    "yarn.resourcemanager.monitor.capacity.preemption.natural_termination_factor": "1.0",
}
#: {queue: percent of the memory that it has a right to}; each may use all that is free.
QUEUES: Final = {"default": 50, "urgent": 50, "spare": 0}
#: What runs a command on a host of another name, so that its processes are none of ours; only root may.
ANOTHER_HOST: Final = ("unshare", "--uts", "sh", "-c", 'echo localhost > /proc/sys/kernel/hostname; exec "$@"', "sh")
#: Each gets a port of its own; else it is the same one on every machine.
ADDRESSES: Final = (
    "yarn.resourcemanager.webapp.address",
    "yarn.resourcemanager.address",
    "yarn.resourcemanager.admin.address",
    "yarn.resourcemanager.resource-tracker.address",
    "yarn.resourcemanager.scheduler.address",
    "yarn.nodemanager.address",
    "yarn.nodemanager.localizer.address",
    "yarn.nodemanager.webapp.address",
)


def jar_directory() -> Path:
    """Return where the jars are, 120 MB in the per-user cache; fetch them first if they aren't there.

    :raises MissingRequirementError: when they can't be had
    """
    cache = cache_directory() / "tests"
    folder = cache / f"hadoop-{VERSION}"
    with exclusive(cache / "lock", print):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as staging:
                retrieve(Path(staging, "jars"), Path(staging, "ivy"), print, dependencies=DEPENDENCIES)
                Path(staging, "jars", "hadoop").rename(folder)
    return folder


class Server:
    """One server of a cluster, a JVM that can be killed and started again.

    :param folder: where it runs and logs
    """

    def __init__(self, folder: Path, command: list[str]) -> None:
        self._folder: Final = folder
        self._command = command
        folder.mkdir()
        self.start()

    def start(self) -> None:
        """Start it, also again."""
        with open_log(log_path(self._folder)) as log:
            self._supervisor, self._process = launch(self._command, self._folder, log, guard.SUPERVISE)
        self._command = [word for word in self._command if word != FORMAT]  # what it has stays

    def kill(self) -> None:
        """Kill it, and nothing that it has started."""
        self.send(signal.SIGKILL)
        if self._supervisor is not None:
            self._supervisor.wait()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send(number)

    def await_up(self, is_up: Callable[[], bool]) -> None:
        """Wait until it has started."""

        def is_up_at_last() -> bool:
            assert self._process.is_alive(), self.log_tail()
            return is_up()

        eventually(is_up_at_last, self.log_tail, poll_seconds=0.2)

    def log_tail(self) -> str:
        return log_tail(log_path(self._folder))


@dataclass(frozen=True)
class HadoopCluster:
    """A name node with a data node, and a resource manager with a node manager.

    :param folder: all that they write
    :param hdfs: URL of the file system's root
    :param resource_manager: URL of the resource manager's REST interface
    :param files: the name node and the data node, one JVM, which keeps its files over a restart
    :param manager: the resource manager
    :param node: the node manager, whose containers outlive it
    """

    folder: Path
    hdfs: str
    resource_manager: str
    files: Server
    manager: Server
    node: Server

    @property
    def configuration(self) -> Path:
        """The folder that HADOOP_CONF_DIR names."""
        return self.folder / "conf"

    def applications(self, **wanted: str) -> list[dict[str, Any]]:
        """Return what the resource manager knows of applications, in the order of their submission."""
        return sorted(self._listed("apps", "app", wanted), key=lambda app: str(app["id"]))

    def has_node(self) -> bool:
        """Whether the resource manager is up, and containers can be started."""
        try:
            return len(self._listed("nodes", "node", {"states": "RUNNING"})) == 1
        except requests.ConnectionError:
            return False

    def _listed(self, kind: str, single: str, wanted: Mapping[str, str]) -> list[dict[str, Any]]:
        answer = requests.get(f"{self.resource_manager}/ws/v1/cluster/{kind}", params=wanted, timeout=60)
        answer.raise_for_status()
        return list((answer.json()[kind] or {}).get(single, ()))

    @property
    def memory(self) -> Path:
        """The folder from which a resource manager that is started again knows its applications."""
        return self.folder / "applications"

    def await_lost_node(self) -> None:
        """Wait until the resource manager has given up the node manager, which was killed."""
        eventually(lambda: self._listed("nodes", "node", {"states": "LOST"}), "the node is lost", poll_seconds=0.2)

    @contextlib.contextmanager
    def occupying(self, queue: str, megabytes: int) -> Iterator[None]:
        """Let an application that does nothing ask for memory, and have it, in a queue."""
        apps = f"{self.resource_manager}/ws/v1/cluster/apps"
        made = requests.post(f"{apps}/new-application", timeout=60)
        made.raise_for_status()
        application = made.json()["application-id"]
        submission = {
            "application-id": application,
            "application-name": "occupant",
            "application-type": "test",
            "queue": queue,
            "max-app-attempts": 1,
            "resource": {"memory": megabytes, "vCores": 1},
            "am-container-spec": {"commands": {"command": "sleep 3600"}},
        }
        requests.post(apps, json=submission, timeout=60).raise_for_status()
        try:
            eventually(lambda: self.containers(application), "it has its container", poll_seconds=0.2)
            yield
        finally:
            requests.put(f"{apps}/{application}/state", json={"state": "KILLED"}, timeout=60).raise_for_status()

    def containers(self, application: str) -> list[psutil.Process]:
        """Return the processes of an application's containers; the first container's is its master."""
        return sorted(working_in(self.folder, application), key=lambda process: str(process.cwd()))

    def output(self, application: str) -> str:
        """Return what an application's containers have printed."""
        files = sorted(self.folder.glob(f"yarn/**/{application}/container_*/std*"))
        return "\n".join(f"== {file.parent.name} {file.name}\n{file.read_text(errors='replace')}" for file in files)


def working_in(folder: Path, part: str = "") -> Iterator[psutil.Process]:
    """Give the processes whose working directory is below a folder.

    :param part: of that directory's name
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            directory = process.cwd()
            if directory.startswith(f"{folder}/") and part in directory and process.status() != psutil.STATUS_ZOMBIE:
                yield process


@contextlib.contextmanager
def hadoop_cluster(folder: Path) -> Iterator[HadoopCluster]:
    """Run a cluster; at the end nothing of it runs, containers neither.

    :raises MissingRequirementError: when its jars or a Java can't be had
    """
    class_path = f"{folder / 'conf'}:{jar_directory()}/*"
    name_node, *ports = free_ports(1 + len(ADDRESSES))
    addresses = {name: f"localhost:{port}" for name, port in zip(ADDRESSES, ports, strict=True)}
    hdfs = f"hdfs://localhost:{name_node}"
    _write_configuration(folder, hdfs, addresses)
    started = folder / "started.json"
    environment = _environment(folder)
    servers: list[Server] = []

    def start(name: str, main: str, *arguments: str, launcher: Sequence[str] = ()) -> Server:
        variables = (f"{variable}={value}" for variable, value in environment.items())
        command = [*launcher, "env", "-i", *variables, *java_command(class_path, HEAP_MEGABYTES), main, *arguments]
        servers.append(Server(folder / name, command))
        return servers[-1]

    options = {"dfs.replication": "1", "hdfs.minidfs.basedir": str(folder / "hdfs-data")}
    try:
        files = start(
            *("hdfs", HDFS, "-nomr", FORMAT, "-nnport", str(name_node), "-writeDetails", str(started)),
            *(word for name, value in options.items() for word in ("-D", f"{name}={value}")),
        )
        web = f"http://{addresses['yarn.resourcemanager.webapp.address']}"
        manager = start("manager", RESOURCE_MANAGER)
        node = start("node", NODE_MANAGER, launcher=ANOTHER_HOST if os.geteuid() == 0 else ())
        cluster = HadoopCluster(folder, hdfs, web, files, manager, node)
        files.await_up(lambda: started.is_file() and started.stat().st_size > 0)
        manager.await_up(cluster.has_node)
        yield cluster
    finally:
        for server in servers:
            server.kill()
        for left in working_in(folder):
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


@dataclass(frozen=True)
class ResourceManagers:
    """Two resource managers with high availability, and no node. Only the second hides what a caller may not see.

    :param folder: all that they write
    :param urls: of their REST interfaces
    """

    folder: Path
    urls: tuple[str, str]

    def activate(self, number: int) -> None:
        """Make one the active one, the other the standby, and wait until it is."""
        for order, which in (("-transitionToStandby", 1 - number), ("-transitionToActive", number)):
            command = java_command(f"{self.folder / MANAGERS[number] / 'conf'}:{jar_directory()}/*", HEAP_MEGABYTES)
            subprocess.run([*command, ADMINISTRATION, order, MANAGERS[which]], check=True, timeout=300)
        eventually(lambda: self.state(number) == "ACTIVE", "it is the active one", poll_seconds=0.2)

    def state(self, number: int) -> str | None:
        """Return what one says that it is, None while it does not answer."""
        with contextlib.suppress(requests.ConnectionError):
            answer = requests.get(f"{self.urls[number]}/ws/v1/cluster/info", timeout=60)
            return str(answer.json()["clusterInfo"]["haState"])
        return None

    def submit(self, number: int, tag: str, user: str) -> None:
        """Submit an application that waits for a node, as a user of this cluster."""
        caller = {"user.name": user}
        apps = f"{self.urls[number]}/ws/v1/cluster/apps"
        made = requests.post(f"{apps}/new-application", params=caller, timeout=60)
        made.raise_for_status()
        submission = {
            "application-id": made.json()["application-id"],
            "application-name": "waits",
            "application-tags": {"tag": [tag]},
            "am-container-spec": {"commands": {"command": "true"}},
        }
        requests.post(apps, params=caller, json=submission, timeout=60).raise_for_status()
        wanted = {**caller, "applicationTags": tag, "states": "ACCEPTED"}
        is_accepted = lambda: requests.get(apps, params=wanted, timeout=60).json()["apps"]  # noqa: E731
        eventually(is_accepted, "it is accepted", poll_seconds=0.2)


@contextlib.contextmanager
def resource_managers(folder: Path) -> Iterator[ResourceManagers]:
    """Run two resource managers, both of which are the standby at first.

    :raises MissingRequirementError: when their jars or a Java can't be had
    """
    names = [name for name in ADDRESSES if name.startswith("yarn.resourcemanager")]
    ports = iter(free_ports(len(names) * len(MANAGERS)))
    addresses = {f"{name}.{manager}": f"localhost:{next(ports)}" for manager in MANAGERS for name in names}
    high_availability = {
        "yarn.resourcemanager.cluster-id": "two",
        "yarn.resourcemanager.ha.enabled": "true",
        "yarn.resourcemanager.ha.automatic-failover.enabled": "false",
        "yarn.resourcemanager.ha.rm-ids": ",".join(MANAGERS),
    }
    web = [f"http://{addresses[f'yarn.resourcemanager.webapp.address.{manager}']}" for manager in MANAGERS]
    access = {"yarn.acl.enable": "true", "yarn.admin.acl": getpass.getuser()}
    cluster = ResourceManagers(folder, (web[0], web[1]))
    servers: list[Server] = []
    try:
        for number, manager in enumerate(MANAGERS):
            settings = {
                **addresses,
                **high_availability,
                **access,
                "yarn.resourcemanager.ha.id": manager,
                "yarn.webapp.filter-entity-list-by-user": str(number == 1).lower(),
                "yarn.resourcemanager.fs.state-store.uri": f"file://{folder}/applications",
            }
            (folder / manager).mkdir()
            _write_configuration(folder / manager, "file:///", settings)
            command = java_command(f"{folder / manager / 'conf'}:{jar_directory()}/*", HEAP_MEGABYTES)
            servers.append(Server(folder / manager / "server", [*command, RESOURCE_MANAGER]))
        for number, server in enumerate(servers):
            server.await_up(lambda number=number: cluster.state(number) == "STANDBY")  # type: ignore[misc]
        yield cluster
    finally:
        for server in servers:
            server.kill()


def _write_configuration(folder: Path, hdfs: str, addresses: Mapping[str, str]) -> None:
    folders = {
        "yarn.resourcemanager.fs.state-store.uri": f"file://{folder}/applications",
        "yarn.nodemanager.local-dirs": f"{folder}/yarn/local",
        "yarn.nodemanager.log-dirs": f"{folder}/yarn/logs",
    }
    (folder / "conf").mkdir()
    for name, settings in {
        "core-site": {"fs.defaultFS": hdfs, "hadoop.tmp.dir": f"{folder}/tmp"},
        "yarn-site": {**SETTINGS, **folders, **addresses},
        "capacity-scheduler": _queues(),
    }.items():
        properties = "".join(
            f"<property><name>{key}</name><value>{escape(value)}</value></property>" for key, value in settings.items()
        )
        (folder / "conf" / f"{name}.xml").write_text(f"<configuration>{properties}</configuration>")


def _queues() -> Mapping[str, str]:
    root = "yarn.scheduler.capacity.root"
    settings = {f"{root}.queues": ",".join(QUEUES), "yarn.scheduler.capacity.maximum-am-resource-percent": "1"}
    settings[f"{root}.acl_administer_queue"] = " "  # nobody: where access counts, it would be a right to see all
    for queue, percent in QUEUES.items():
        settings |= {
            f"{root}.{queue}.capacity": str(percent),
            f"{root}.{queue}.maximum-capacity": "100",
            f"{root}.{queue}.user-limit-factor": "100",
            f"{root}.{queue}.maximum-applications": "100",
        }
    return settings


@pytest.fixture(scope="session")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HadoopCluster]:
    """Give the session's cluster, which takes half a minute to start, and 700 MB."""
    try:
        with hadoop_cluster(tmp_path_factory.mktemp("hadoop")) as cluster:
            yield cluster
    except MissingRequirementError as error:
        pytest.skip(f"there is no HDFS and YARN: {error}")
