"""Microsoft's emulator of Azure's blobs for tests, where Node.js is installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from azure.core.exceptions import AzureError
from azure.storage.blob import BlobServiceClient

from airflow_provider_exactlyonce.jars.cache import cache_directory, exclusive
from airflow_provider_exactlyonce.storage import azure_environment
from tests.ports import free_port
from tests.waiting import eventually

VERSION: Final = "3.37.0"
ACCOUNT: Final = "shop"
KEY: Final = b64encode(b"hunter2, and what makes it as long as a key is").decode()
CONTAINER: Final = "bucket"


def options(address: str) -> dict[str, Any]:
    """Return what adlfs needs to know of an emulator."""
    return azure_environment.options(ACCOUNT, key=KEY, endpoint=f"{address}/{ACCOUNT}")


def environment(address: str) -> dict[str, str]:
    """Return the variables by which a driver finds an emulator."""
    return {
        azure_environment.ACCOUNT: ACCOUNT,
        azure_environment.KEY: KEY,
        azure_environment.ENDPOINT: f"{address}/{ACCOUNT}",
    }


def connection(address: str) -> dict[str, Any]:
    """Return Airflow's connection to an emulator."""
    return {"conn_type": "wasb", "host": f"{address}/{ACCOUNT}", "login": ACCOUNT, "password": KEY}


@contextmanager
def azurite() -> Iterator[str]:
    """Run an emulator with a container; gives its address."""
    program = _program()
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    listening = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    others = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    with subprocess.Popen(
        ["node", str(program), *listening, *others],
        env={"PATH": str(Path(shutil.which("node") or "").parent), "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
        stdout=subprocess.DEVNULL,
    ) as server:
        try:
            eventually(lambda: _is_made(server, address), lambda: f"ended with {server.poll()}", poll_seconds=0.2)
            yield address
        finally:
            server.kill()


def _is_made(server: subprocess.Popen[bytes], address: str) -> bool:
    """Whether a container is made, by an emulator that may not be up yet."""
    assert server.poll() is None
    try:
        with BlobServiceClient(f"{address}/{ACCOUNT}", KEY, retry_total=0, connection_timeout=1) as account:
            account.create_container(CONTAINER)
    except AzureError:
        return False
    return True


def _program() -> Path:
    """Return the emulator in the per-user cache, 190 MB; fetch it first if it isn't there. Skips without npm."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"Azurite {VERSION} needs Node.js with npm, and it is not installed")
    tests = cache_directory() / "tests"
    folder = tests / f"azurite-{VERSION}"
    with exclusive(tests / "lock", print):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=tests) as fetched:
                Path(fetched, "app").mkdir()
                quiet = ["--silent", "--no-audit", "--no-fund"]
                subprocess.run([npm, "install", *quiet, "--prefix", f"{fetched}/app", f"azurite@{VERSION}"], check=True)
                Path(fetched, "app").rename(folder)
    return folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
