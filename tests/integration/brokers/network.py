"""Network namespaces on a bridge, one for each broker, so that a broker can be cut off and keeps its connections open.

Made with ``ip``, by root. The names are fixed: what a killed run left is found by them and removed by the next run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

NAME = "exactlyonce"
SUBNET = "10.213.77"
GONE_SECONDS = 10.0


class Network:
    """A bridge, and a namespace for each node; this machine is the first of the subnet.

    :param nodes: their numbers; node 1 has the address SUBNET.11
    :param name: of the bridge; what begins with it is the network's. At most 13 letters
    :param subnet: the first three numbers of its addresses
    """

    def __init__(self, nodes: Sequence[int], name: str = NAME, subnet: str = SUBNET) -> None:
        self._nodes, self._bridge, self._subnet = tuple(nodes), name, subnet

    def make(self) -> None:
        """Make everything; what is there of these names is removed first."""
        self.remove()
        _ip(f"link add {self._bridge} type bridge")
        _ip(f"address add {self._subnet}.1/24 dev {self._bridge}")
        _ip(f"link set {self._bridge} up")
        for node in self._nodes:
            name = self._name(node)
            _ip(f"netns add {name}")
            _ip(f"link add {name} type veth peer name eth0 netns {name}")
            _ip(f"link set {name} master {self._bridge} up")
            _ip(f"-netns {name} address add {self.address(node)}/24 dev eth0")
            _ip(f"-netns {name} link set eth0 up")
            _ip(f"-netns {name} link set lo up")

    def remove(self) -> None:
        """Remove everything, with the processes that are still in it. May be repeated."""
        for node in self._nodes:
            name = self._name(node)
            if Path("/run/netns", name).exists():
                _end_processes(name)
                _ip(f"netns delete {name}")
            _delete_link(name)  # gone with its other end, if that end was made
        _delete_link(self._bridge)

    def address(self, node: int) -> str:
        """Return the address that is reached from this machine and from the other namespaces."""
        return f"{self._subnet}.{10 + node}"

    def command(self, node: int) -> list[str]:
        """Return the words before a command that make it run in a node's namespace."""
        return ["ip", "netns", "exec", self._name(node)]

    def cut_off(self, node: int) -> None:
        """Let nothing through to or from a node: no connection is refused or closed by it."""
        _ip(f"link set {self._name(node)} nomaster")

    def narrow(self, node: int, bytes_per_second: int, queue_bytes: int) -> None:
        """Let little through to and from a node: packets wait in a queue, and are dropped where that is full.

        :raises OSError: when the kernel has no token buckets
        """
        self._queues(node, "replace", f"root tbf rate {8 * bytes_per_second}bit burst 5000 limit {queue_bytes}")

    def dropped(self, node: int) -> int:
        """Return how many packets to and from a node were dropped since it was narrowed."""
        return sum(map(int, re.findall(r"\(dropped (\d+),", self._queues(node, "show"))))

    def heal(self, node: int) -> None:
        """Let everything through again."""
        _ip(f"link set {self._name(node)} master {self._bridge}")
        with contextlib.suppress(OSError):  # it was not narrowed
            self._queues(node, "delete", "root")

    def _queues(self, node: int, action: str, queue: str = "") -> str:
        """Do something about what waits at both ends of a node's link."""
        name = self._name(node)
        return "".join(
            _run("tc", f"{where} -s qdisc {action} dev {device} {queue}")
            for where, device in (("", name), (f"-n {name}", "eth0"))
        )

    def _name(self, node: int) -> str:
        return f"{self._bridge}-{node}"


class Loopback(Network):
    """Addresses of the loopback interface instead, which need no root: nobody can be cut off.

    :param nodes: their numbers; node 1 has the address 127.0.0.11
    """

    def __init__(self, nodes: Sequence[int]) -> None:
        super().__init__(nodes, subnet="127.0.0")

    def make(self) -> None:
        """Do nothing: the addresses are there."""

    def remove(self) -> None:
        """Do nothing."""

    def command(self, node: int) -> list[str]:
        """Return no words."""
        return []


def why_impossible() -> str | None:
    """Return why namespaces can't be made here, None when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need `ip`: apt-get install iproute2"
    probe = f"{NAME}-probe"
    try:
        _ip(f"netns add {probe}")
        _ip(f"netns delete {probe}")
    except OSError as error:
        return f"network namespaces can't be made: {error}"
    return None


@contextlib.contextmanager
def one_at_a_time(name: str = NAME) -> Iterator[None]:
    """Wait until no other process of this machine uses a network of this name."""
    with (Path(tempfile.gettempdir()) / f"{name}-network.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _delete_link(name: str) -> None:
    if Path("/sys/class/net", name).exists():
        with contextlib.suppress(OSError):  # its namespace's end takes it along, a moment later
            _ip(f"link delete {name}")


def _end_processes(namespace: str) -> None:
    deadline = time.monotonic() + GONE_SECONDS
    while pids := _ip(f"netns pids {namespace}").split():
        for pid in map(int, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert time.monotonic() < deadline, f"processes {pids} in {namespace} survive SIGKILL"
        time.sleep(0.05)


def _ip(arguments: str) -> str:
    return _run("ip", arguments)


def _run(program: str, arguments: str) -> str:
    """Run a program of iproute2.

    :raises OSError: with what it says, when it fails
    """
    done = subprocess.run([program, *arguments.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{program} {arguments}: {done.stderr.strip()}")
    return done.stdout
