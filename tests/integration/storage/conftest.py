"""A folder on each file system that keeps the contract of a home's storage."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from upath import UPath

from tests import memory_store, object_stores
from tests.hadoop_cluster import HadoopCluster


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
    if request.param == "gcs":
        place: Any = UPath(f"gs://bucket/{uuid.uuid4()}", **object_stores.gcs_options(address))
    else:
        place = UPath(f"s3://bucket/{uuid.uuid4()}", **object_stores.options(address))
    return place  # type: ignore[no-any-return]
