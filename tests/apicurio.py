"""A real schema registry for tests, Apicurio, where a Java that it runs with is installed."""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.java_archives import newest_java, unpacked
from tests.ports import free_ports
from tests.waiting import eventually

VERSION: Final = "3.3.3"
SHA256: Final = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
JAVA: Final = 21
DEPENDENCIES: Final = Path(__file__).with_name("apicurio_ivy.xml")


def archive_folder() -> Path:
    """Return where the registry is, 168 MB in the per-user cache."""
    return unpacked(f"apicurio-registry-{VERSION}", DEPENDENCIES, SHA256, lambda app: app)


class Apicurio:
    """One registry, whose schemas stay when it is killed; ``kill`` and ``start`` as often as a test likes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self._management_port = free_ports(2)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def start(self) -> None:
        """Start it; returns once it answers."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("JAVA_", "KAFKA_"))},
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_HTTP_PORT": str(self.port),
            "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
            "QUARKUS_MANAGEMENT_PORT": str(self._management_port),
            "APICURIO_DATASOURCE_URL": f"jdbc:h2:file:{self._folder / 'schemas'}",
        }
        command = [
            str(newest_java(JAVA)),
            "-Xmx300m",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-jar",
            "quarkus-run.jar",
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, cwd=archive_folder(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        eventually(self._answers, lambda: f"the registry answers: {(self._folder / 'log').read_text()[-2000:]}")

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        """Kill it with SIGKILL; returns once it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def registry_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    """Give the session's registry, started; a test that kills it starts it again."""
    if newest_java(JAVA) is None:
        pytest.skip(f"Apicurio needs Java {JAVA}, and no JDK of this machine is one")
    server = Apicurio(tmp_path_factory.mktemp("apicurio"))
    server.start()
    yield server
    server.kill()
