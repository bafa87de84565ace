"""A folder on each file system that keeps the contract of a home's storage, and object stores that fail."""

from __future__ import annotations

import errno
import itertools
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from upath import UPath

from airflow_provider_exactlyonce.storage import azure as azure_store
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


@pytest.fixture(scope="session")
def azure() -> Iterator[str]:
    with object_stores.azure() as address:
        yield address


#: Changes that NFS asks its server for again when an answer was lost; the server finds the first one's work.
CHANGES = ("link", "replace", "rename", "unlink", "mkdir", "rmdir")


def lose_answers(patch: pytest.MonkeyPatch) -> None:
    """Let each second change of a file system be made, and be answered as NFS's repetition of it is."""

    def losing(change: Callable[..., None]) -> Callable[..., None]:
        is_lost = itertools.cycle((True, False))

        def changed(*arguments: Any, **named: Any) -> None:
            change(*arguments, **named)
            if next(is_lost):
                change(*arguments, **named)  # fails

        return changed

    for name in CHANGES:
        patch.setattr(os, name, losing(getattr(os, name)))


def refuse_links(*_: object) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


FAST, SLOW = ("local", "nfs", "nfs-without-links", "memory", "moto"), ("seaweedfs", "gcs", "azure", "hdfs")
#: Each kind of object store, and the fixture of a server of that kind.
KINDS = {"moto": object_stores.S3, "gcs": object_stores.GCS, "azure": object_stores.AZURE}


@pytest.fixture(params=[*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty folder.

    No NFS can be mounted where tests run: there the calls to the system answer as its client would.
    """
    if request.param in ("local", "nfs", "nfs-without-links"):
        if request.param != "local":
            lose_answers(monkeypatch)
        if request.param == "nfs-without-links":
            monkeypatch.setattr(os, "link", refuse_links)
        return tmp_path
    if request.param == "memory":
        return memory_store.folder()
    if request.param == "hdfs":
        hadoop: HadoopCluster = request.getfixturevalue("hadoop")
        return UPath(f"{hadoop.hdfs}/{uuid.uuid4()}")  # type: ignore[return-value]
    address = request.getfixturevalue(request.param)
    place: Path = KINDS.get(request.param, object_stores.S3).place(address)
    return place


@pytest.fixture(scope="module", params=["moto", "gcs", pytest.param("azure", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Give each kind of object store."""
    return KINDS[request.param]


@pytest.fixture(scope="module")
def server(kind: Kind, request: pytest.FixtureRequest) -> str:
    """Give the address of one of that kind."""
    address: str = request.getfixturevalue(next(name for name, of in KINDS.items() if of is kind))
    return address


@pytest.fixture(scope="module")
def faults(server: str) -> Iterator[Faults]:
    with object_stores.proxy(server) as faults:
        yield faults


@pytest.fixture
def place(kind: Kind, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a place of which the proxy is asked; what fails is repeated at once."""
    monkeypatch.setattr(conditional, "PAUSES", (0.0, 0.0, 0.0, 0.0))
    for store in (azure_store, gcs_store):
        monkeypatch.setattr(store, "_LOOKS", (0.0, 0.0, 0.0))
    monkeypatch.setattr("asyncio.sleep", at_once)
    faults.planned.clear()
    place: Path = kind.place(faults.address)
    return place


async def at_once(_: float) -> None:
    """Do not wait before something is repeated."""


@pytest.fixture
def store(place: Path) -> Store:
    return store_of(place)
