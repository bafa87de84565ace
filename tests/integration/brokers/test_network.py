"""What a killed run leaves in namespaces and on the bridge is removed by the next one."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.brokers.network import Network, one_at_a_time, why_impossible
from tests.waiting import HANG_SECONDS

NAME = "exactlyonce-t"


@pytest.fixture
def network() -> Iterator[Network]:
    if reason := why_impossible():
        pytest.skip(reason)
    network = Network([1, 2], NAME, "10.213.78")
    with one_at_a_time(NAME):
        yield network
        network.remove()


def left() -> list[str]:
    return [path.name for folder in ("/run/netns", "/sys/class/net") for path in Path(folder).glob(f"{NAME}*")]


def test_what_a_killed_run_left_is_removed_by_the_next(network: Network) -> None:
    network.make()
    asleep = [*network.command(1), "sh", "-c", "echo inside; exec sleep 1000"]
    with subprocess.Popen(asleep, stdout=subprocess.PIPE) as sleeper:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == b"inside\n"
        network.cut_off(2)
        Network([1, 2], NAME, "10.213.78").make()
        assert sleeper.wait(HANG_SECONDS) == -signal.SIGKILL
    network.remove()
    assert left() == []


def test_a_node_that_is_cut_off_answers_again_when_it_is_healed(network: Network) -> None:
    network.make()
    asked = [*network.command(2), "python3", "-c", ASK, network.address(1)]
    with subprocess.Popen([*network.command(1), "python3", "-c", ECHO, network.address(1)]) as echo:
        assert subprocess.run(asked, check=False).returncode == 0
        network.cut_off(1)
        assert subprocess.run(asked, check=False).returncode != 0
        network.heal(1)
        assert subprocess.run(asked, check=False).returncode == 0
        echo.kill()


ECHO = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
    own.bind((sys.argv[1], 9092))
    while True:
        text, sender = own.recvfrom(10)
        own.sendto(text, sender)
"""
#: Asks a few times, because the other side may not be there yet.
ASK = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
    own.settimeout(0.3)
    for _ in range(10):
        try:
            own.sendto(b"?", (sys.argv[1], 9092))
            sys.exit(own.recvfrom(10)[0] != b"?")
        except OSError:
            continue
sys.exit(1)
"""
