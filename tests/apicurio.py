"""A real schema registry for tests, Apicurio, where a Java that it runs with is installed."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from airflow_provider_exactlyonce.devkit.errors import DevkitError
from airflow_provider_exactlyonce.devkit.ivy import retrieve
from airflow_provider_exactlyonce.devkit.jars import cache_directory, exclusive
from airflow_provider_exactlyonce.devkit.java import java_version
from tests.waiting import eventually

VERSION: Final = "3.3.3"
SHA256: Final = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
JAVA: Final = 21
DEPENDENCIES: Final = Path(__file__).with_name("apicurio_ivy.xml")


@functools.cache
def java() -> str | None:
    """Return a Java that is new enough: JAVA_HOME's, the PATH's, or the newest that a package has installed."""
    homes = [Path(home) for home in (os.environ.get("JAVA_HOME"),) if home]
    packaged = sorted(Path("/usr/lib/jvm").glob("*"), reverse=True)
    programs = [str(home / "bin" / "java") for home in (*homes, *packaged)] + [shutil.which("java") or ""]
    versions = {}
    for program in programs:
        if os.access(program, os.X_OK):
            try:
                versions[program] = java_version(program)
            except DevkitError:
                continue
    best = max(versions, key=lambda program: versions[program], default=None)
    return best if best is not None and versions[best] >= JAVA else None


def archive_folder() -> Path:
    """Return where the registry is, 168 MB in the per-user cache; fetch it first if it isn't there."""
    folder = cache_directory() / "tests" / f"apicurio-registry-{VERSION}"
    with exclusive(cache_directory() / "tests" / "lock", print):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as staging:
                retrieve(Path(staging, "jars"), Path(staging, "ivy"), print, dependencies=DEPENDENCIES)
                [archive] = Path(staging, "jars").glob("*/*.tar.gz")
                with open(archive, "rb") as file:
                    checksum = hashlib.file_digest(file, "sha256").hexdigest()
                assert checksum == SHA256, f"{archive.name} has SHA-256 {checksum}, expected {SHA256}"
                with tarfile.open(archive) as content:
                    content.extractall(Path(staging, "app"), filter="data")
                Path(staging, "app").rename(folder)
    return folder


class Apicurio:
    """One registry, whose schemas stay when it is killed; ``kill`` and ``start`` as often as a test likes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as api, socket.socket() as management:
            api.bind(("127.0.0.1", 0))
            management.bind(("127.0.0.1", 0))
            self.port, self._management_port = api.getsockname()[1], management.getsockname()[1]

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
        command = [str(java()), "-Xmx300m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-jar", "quarkus-run.jar"]
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
    if java() is None:
        pytest.skip(f"Apicurio needs Java {JAVA}, and no JDK of this machine is one")
    server = Apicurio(tmp_path_factory.mktemp("apicurio"))
    server.start()
    yield server
    server.kill()
