"""A folder on each file system that keeps the contract of a home's storage, and object stores that fail."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from upath import UPath

from airflow_provider_exactlyonce.storage import conditional
from airflow_provider_exactlyonce.storage import gcs as gcs_store
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import Store
from tests import memory_store, object_stores
from tests.hadoop_cluster import HadoopCluster
from tests.object_stores import Faults, Kind


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    with object_stores.moto() as address:
        yield address


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with object_stores.seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as address:
        yield address


@pytest.fixture(scope="session")
def gcs() -> Iterator[str]:
    with object_stores.gcs() as address:
        yield address


FAST, SLOW = ("local", "memory", "moto"), ("seaweedfs", "gcs", "hdfs")


@pytest.fixture(params=[*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Give an empty folder."""
    if request.param == "local":
        return tmp_path
    if request.param == "memory":
        return memory_store.folder()
    if request.param == "hdfs":
        hadoop: HadoopCluster = request.getfixturevalue("hadoop")
        return UPath(f"{hadoop.hdfs}/{uuid.uuid4()}")  # type: ignore[return-value]
    address = request.getfixturevalue(request.param)
    place: Path = (object_stores.GCS if request.param == "gcs" else object_stores.S3).place(address)
    return place


@pytest.fixture(scope="module", params=["s3", "gcs"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Give each kind of object store."""
    return object_stores.S3 if request.param == "s3" else object_stores.GCS


@pytest.fixture(scope="module")
def server(kind: Kind, request: pytest.FixtureRequest) -> str:
    """Give the address of one of that kind."""
    address: str = request.getfixturevalue("moto" if kind is object_stores.S3 else "gcs")
    return address


@pytest.fixture(scope="module")
def faults(server: str) -> Iterator[Faults]:
    with object_stores.proxy(server) as faults:
        yield faults


@pytest.fixture
def place(kind: Kind, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a place of which the proxy is asked; what fails is repeated at once."""
    monkeypatch.setattr(conditional, "PAUSES", (0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(gcs_store, "_LOOKS", (0.0, 0.0, 0.0))
    monkeypatch.setattr("asyncio.sleep", at_once)
    faults.planned.clear()
    place: Path = kind.place(faults.address)
    return place


async def at_once(_: float) -> None:
    """Do not wait before something is repeated."""


@pytest.fixture
def store(place: Path) -> Store:
    return store_of(place)
