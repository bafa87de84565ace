"""A real Trino for tests, which reads tables of lakes, where a Java that it runs with is installed."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from trino.dbapi import Connection
from trino.exceptions import TrinoQueryError
from trino.types import NamedRowTuple

from tests.java_archives import newest_java, unpacked
from tests.ports import free_port
from tests.waiting import eventually

VERSION: Final = "476"
SHA256: Final = "cfd5accde17e8ebd251eeeb78aed1f490e77bb3a164d95a0f454bf8a7c1cbd3f"
JAVA: Final = 24
DEPENDENCIES: Final = Path(__file__).with_name("trino_ivy.xml")
PLUGINS: Final = ("delta-lake", "iceberg")
#: Each in a catalog of its own, whose tables are those that were registered.
CATALOGS: Final = {
    "delta": {
        "connector.name": "delta_lake",
        "hive.metastore": "file",
        "delta.register-table-procedure.enabled": "true",
    },
    "iceberg": {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "TESTING_FILE_METASTORE",
        "iceberg.register-table-procedure.enabled": "true",
    },
}


def server_folder() -> Path:
    """Return where Trino is, 500 MB in the per-user cache; the first time, 820 MB are fetched."""
    return unpacked(f"trino-server-{VERSION}", DEPENDENCIES, SHA256, _without_other_plugins)


def _without_other_plugins(app: Path) -> Path:
    [server] = app.iterdir()
    for plugin in (server / "plugin").iterdir():
        if plugin.name not in PLUGINS:
            shutil.rmtree(plugin)
    return server


class Trino:
    """One server, which reads tables where they lie.

    :param folder: of what it writes itself
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns once it answers."""
        url, server = f"http://127.0.0.1:{self._port}", server_folder()
        configuration = {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": str(self._port),
            "discovery.uri": url,
        }
        _write_properties(self._folder / "config.properties", configuration)
        for name, properties in CATALOGS.items():
            of_files = {
                "fs.native-local.enabled": "true",
                "local.location": "/",
                "hive.metastore.catalog.dir": f"local://{self._folder}/{name}",
            }
            _write_properties(self._folder / "catalogs" / f"{name}.properties", {**properties, **of_files})
        system_properties = {
            "config": self._folder / "config.properties",
            "catalog.config-dir": self._folder / "catalogs",
            "plugin.dir": server / "plugin",
            "node.environment": "test",
            "node.id": "one",
            "node.data-dir": self._folder,
            "node.internal-address": "127.0.0.1",
            "jdk.attach.allowAttachSelf": "true",
        }
        command = [
            *(str(newest_java(JAVA)), "-Xmx1g", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            *("-XX:+EnableDynamicAgentLoading", *(f"-D{name}={value}" for name, value in system_properties.items())),
            *("-cp", f"{server}/lib/*", "io.trino.server.TrinoServer"),
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("JAVA_")}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        eventually(self._has_started, lambda: f"Trino starts: {self._log()[-3000:]}")
        for name in CATALOGS:
            self._run(f"CREATE SCHEMA {name}.lakes")

    def _has_started(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log()[-3000:]
        return "SERVER STARTED" in self._log()

    def _log(self) -> str:
        return (self._folder / "log").read_text()

    def kill(self) -> None:
        """Kill it with SIGKILL; returns once it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def read_delta(self, tables: Sequence[str]) -> list[list[dict[str, Any]]]:
        """Return the rows of Delta tables.

        :param tables: their directories
        """
        return [self._read("delta", f"local://{table}") for table in tables]

    def read_iceberg(self, tables: Sequence[str]) -> list[list[dict[str, Any]]]:
        """Return the rows of Iceberg tables.

        :param tables: locations of their metadata
        """
        return [self._read("iceberg", *table.split("/metadata/")) for table in tables]

    def _read(self, catalog: str, *place: str) -> list[dict[str, Any]]:
        name = f"t{next(self._numbers)}"
        given = ", ".join(f"'{word}'" for word in ("lakes", name, *place))
        self._run(f"CALL {catalog}.system.register_table({given})")
        (rows,) = eventually(
            lambda: self._rows(f"SELECT * FROM {catalog}.lakes.{name}"), lambda: f"Trino reads: {self._log()[-3000:]}"
        )
        return rows

    def _rows(self, query: str) -> tuple[list[dict[str, Any]]] | None:
        """Return the rows of a table, None while no node is known that has the table's catalog."""
        try:
            return (self._run(query),)
        except TrinoQueryError as error:
            if error.error_name != "NO_NODES_AVAILABLE":
                raise
            return None

    def _run(self, statement: str) -> list[dict[str, Any]]:
        with Connection(host="127.0.0.1", port=self._port, user="test", timezone="UTC") as connection:
            cursor = connection.cursor()
            rows = cursor.execute(statement).fetchall()
            names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, map(_plain, row), strict=True)) for row in rows]


def _write_properties(file: Path, properties: dict[str, str]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))


def _plain(value: Any) -> Any:
    """Return a value with a dictionary for each row in it."""
    if isinstance(value, NamedRowTuple):
        return dict(zip(value.__annotations__["names"], map(_plain, value), strict=True))
    return [_plain(item) for item in value] if isinstance(value, list) else value


@contextmanager
def running(folder: Path) -> Iterator[Trino]:
    """Give a Trino, started; the test is skipped where there is no Java for it."""
    if newest_java(JAVA) is None:
        pytest.skip(f"Trino {VERSION} needs Java {JAVA}, and no JDK of this machine is one")
    server = Trino(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
