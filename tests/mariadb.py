"""A real MariaDB server for tests, where its programs are installed."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.waiting import HANG_SECONDS

PROGRAMS = ("mariadb-install-db", "mariadbd")


def _wait_for_answer(url: str, timeout_seconds: float = HANG_SECONDS) -> None:
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            sa.create_engine(url, poolclass=sa.NullPool).connect().close()
        except sa.exc.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the URL of the session's server, on a socket in its folder."""
    if not all(map(shutil.which, PROGRAMS)):
        pytest.skip("mariadbd is not installed")
    folder = tmp_path_factory.mktemp("mariadb")
    options = ["--no-defaults", f"--datadir={folder / 'data'}", f"--user={getpass.getuser()}"]
    made = ["mariadb-install-db", *options, "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(made, check=True, capture_output=True)
    socket = folder / "socket"
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(["mariadbd", *options, f"--socket={socket}", "--skip-networking"], stderr=log)
    url = f"mysql+pymysql://root@localhost/mysql?unix_socket={socket}"
    try:
        _wait_for_answer(url)
        yield url
    finally:
        server.terminate()
        server.wait()
