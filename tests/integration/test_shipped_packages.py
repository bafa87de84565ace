"""What is shipped to the hosts of a cluster is all that a home in a bucket needs there, beside Python itself."""

from __future__ import annotations

import subprocess
import sys
import uuid
import zipfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.hooks import packages
from airflow_provider_exactlyonce.jars.cache import cache_directory
from tests import azurite, object_stores
from tests.waiting import HANG_SECONDS

SCRIPT = """
import sys
from airflow_provider_exactlyonce.storage.opening import place_of, store_of
place = place_of(sys.argv[1]) / "lease.json"
store = store_of(place)
store.create(place, b"the first")
try:
    store.create(place, b"another")
except FileExistsError:
    print(store.read(place).content.decode())
"""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the path on which a host of a cluster finds what it was sent."""
    folder = tmp_path_factory.mktemp("shipped")
    for archive in (packages.wheels(cache_directory()), packages.package(cache_directory())):
        with zipfile.ZipFile(archive) as held:
            held.extractall(folder)
    return str(folder)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("scheme", "serve", "environment"),
    [
        ("s3", object_stores.moto, object_stores.environment),
        ("gs", object_stores.gcs, object_stores.gcs_environment),
        pytest.param("abfss", object_stores.azure, azurite.environment, marks=pytest.mark.slow),
    ],
)
def test_a_python_that_has_nothing_else_opens_a_home(
    shipped: str,
    scheme: str,
    serve: Callable[[], AbstractContextManager[str]],
    environment: Callable[[str], Mapping[str, str]],
) -> None:
    python = Path(sys.executable).resolve()
    with serve() as address:
        done = subprocess.run(
            [python, "-S", "-c", SCRIPT, f"{scheme}://bucket/{uuid.uuid4()}"],
            env={**environment(address), "PYTHONPATH": shipped},
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
    assert done.stdout == "the first\n", done.stderr
