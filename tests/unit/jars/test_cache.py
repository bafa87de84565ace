"""The cache of jars: what it trusts, what it refuses, what it says without a network."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import resource
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import MissingRequirementError
from airflow_provider_exactlyonce.jars import cache, ivy
from airflow_provider_exactlyonce.jars.spark import pyspark_jars
from tests.waiting import HANG_SECONDS

CONTENT = {
    "broker/kafka-1.jar": b"a broker",
    "broker/slf4j-1.jar": b"its logging",
    "spark/connector-1.jar": b"a connector",
}


class FakeIvy:
    """Stands in for the download: puts files where Ivy would, and counts."""

    def __init__(self) -> None:
        self.content = dict(CONTENT)
        self.calls = 0
        self.may_go_on: Callable[[], bool] = lambda: True

    def __call__(
        self, destination: Path, ivy_cache: Path, progress: object, jar_count: int, dependencies: Path
    ) -> None:
        self.calls += 1
        assert self.may_go_on()
        ivy_cache.mkdir(exist_ok=True)
        for name, content in self.content.items():
            (destination / name).parent.mkdir(exist_ok=True)
            (destination / name).write_bytes(content)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fake_ivy(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeIvy:
    """Three small files instead of 52 jars, with checksums of their own."""
    checksums = tmp_path / "checksums.txt"
    checksums.write_text("".join(f"{hashlib.sha256(body).hexdigest()}  {name}\n" for name, body in CONTENT.items()))
    fake = FakeIvy()
    three = replace(cache.KAFKA, checksums=checksums)
    monkeypatch.setattr(cache, "KAFKA", three)
    monkeypatch.setattr(cache, "resolve", partial(cache.resolve, jars=three))
    monkeypatch.setattr(cache, "retrieve", fake)
    return fake


def silent(line: str) -> None:
    """Take a progress line and do nothing with it."""


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("lock", cache.jar_directory().name))


def test_a_second_call_starts_no_process_and_reads_no_jar(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.resolve(print)

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError(f"a process was started: {arguments}")

    def of_the_list_only(path: Path) -> str:
        assert path == cache.CHECKSUMS, f"a jar was read: {path}"
        return sha256(path)

    sha256 = cache._sha256
    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(cache, "_sha256", of_the_list_only)
    paths = [*cache.broker_jars(), *cache.spark_connector_jars()]
    assert len(paths) == 53
    assert all(path.is_file() for path in paths)


def test_spark_is_handed_just_what_pyspark_lacks() -> None:
    names = {re.sub(r"-[\d.]+\.jar$", "", path.name) for path in cache.spark_connector_jars()}
    assert names == {
        "commons-pool2",
        "jsr305",
        "kafka-clients",
        "scala-parallel-collections_2.13",
        "spark-avro_2.13",
        "spark-sql-kafka-0-10_2.13",
        "spark-token-provider-kafka-0-10_2.13",
    }


def test_versions_agree_in_the_dependencies_the_checksums_and_pyspark() -> None:
    dependencies, checksums = ivy.DEPENDENCIES.read_text(), cache.CHECKSUMS.read_text()
    assert f'name="kafka_2.13" rev="{cache.KAFKA_VERSION}"' in dependencies
    assert f"broker/kafka_2.13-{cache.KAFKA_VERSION}.jar\n" in checksums
    assert f'name="spark-sql-kafka-0-10_2.13" rev="{cache.SPARK_VERSION}"' in dependencies
    assert f"spark/spark-sql-kafka-0-10_2.13-{cache.SPARK_VERSION}.jar\n" in checksums
    assert importlib.metadata.version("pyspark") == cache.SPARK_VERSION


def test_s3a_is_of_sparks_hadoop() -> None:
    hadoop = f"-{cache.HADOOP_VERSION}.jar"
    assert f'name="hadoop-aws" rev="{cache.HADOOP_VERSION}"' in cache.S3A.dependencies.read_text()
    assert f"s3a/hadoop-aws{hadoop}" in cache.S3A.digests
    assert (pyspark_jars() / f"hadoop-client-api{hadoop}").is_file()


def test_abfs_is_of_sparks_hadoop() -> None:
    assert f'name="hadoop-azure" rev="{cache.HADOOP_VERSION}"' in cache.AZURE.dependencies.read_text()
    assert f"azure/hadoop-azure-{cache.HADOOP_VERSION}.jar" in cache.AZURE.digests


def test_the_connector_to_google_cloud_storage_is_the_one_that_is_named() -> None:
    assert f'name="gcs-connector" rev="{cache.GCS_CONNECTOR_VERSION}"' in cache.GCS.dependencies.read_text()
    assert list(cache.GCS.digests) == [f"gcs/gcs-connector-{cache.GCS_CONNECTOR_VERSION}-shaded.jar"]


def test_the_jars_are_downloaded_once_and_ivys_own_cache_does_not_stay(folder: Path, fake_ivy: FakeIvy) -> None:
    assert [path.read_bytes() for path in cache.broker_jars(silent)] == [b"a broker", b"its logging"]
    assert [path.read_bytes() for path in cache.spark_connector_jars(silent)] == [b"a connector"]
    assert fake_ivy.calls == 1
    assert leftovers(folder) == []


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda path: path.unlink(), "broker/kafka-1.jar is missing"),
        (lambda path: path.write_bytes(b"shorter"), "broker/kafka-1.jar has SHA-256"),
        (lambda path: path.write_bytes(b"A BROKER"), "broker/kafka-1.jar has SHA-256"),
    ],
    ids=["missing", "another size", "same size"],
)
def test_a_damaged_jar_is_named_and_resolved_again(
    folder: Path, fake_ivy: FakeIvy, damage: Callable[[Path], object], expected: str
) -> None:
    jar = cache.broker_jars(silent)[0]
    times = jar.stat()
    damage(jar)
    if jar.exists():  # as somebody would who covers up a change
        os.utime(jar, ns=(times.st_atime_ns, times.st_mtime_ns))
    lines: list[str] = []
    assert cache.broker_jars(lines.append)[0].read_bytes() == b"a broker"
    assert lines[0].startswith(f"resolving again: {expected}")
    assert fake_ivy.calls == 2
    assert leftovers(folder) == []


def test_a_jar_that_was_merely_touched_is_hashed_and_kept(fake_ivy: FakeIvy) -> None:
    jar = cache.broker_jars(silent)[0]
    os.utime(jar)
    assert not cache._is_stamped(cache.KAFKA)
    cache.broker_jars(silent)
    assert cache._is_stamped(cache.KAFKA)
    assert fake_ivy.calls == 1


def test_a_download_with_another_checksum_is_refused_by_name_and_not_published(folder: Path, fake_ivy: FakeIvy) -> None:
    fake_ivy.content["broker/slf4j-1.jar"] = b"something else"
    with pytest.raises(MissingRequirementError, match=r"broker/slf4j-1\.jar has SHA-256 \w{64}, expected"):
        cache.broker_jars(silent)
    assert not cache.jar_directory().exists()
    assert leftovers(folder) == []


def test_a_download_with_a_jar_that_nobody_expected_is_refused(fake_ivy: FakeIvy) -> None:
    fake_ivy.content["broker/extra-1.jar"] = b"who asked for this?"
    with pytest.raises(MissingRequirementError, match=r"broker/extra-1\.jar has no checksum"):
        cache.broker_jars(silent)


def test_a_refused_replacement_leaves_the_published_jars_in_place(fake_ivy: FakeIvy) -> None:
    good, damaged = cache.broker_jars(silent)
    damaged.write_bytes(b"damaged")
    fake_ivy.content["broker/slf4j-1.jar"] = b"something else"
    with pytest.raises(MissingRequirementError):
        cache.broker_jars(silent)
    assert good.read_bytes() == b"a broker"


def test_of_two_callers_at_once_one_downloads_and_the_other_waits(fake_ivy: FakeIvy) -> None:
    waits = threading.Event()
    fake_ivy.may_go_on = lambda: waits.wait(HANG_SECONDS)

    def heard(line: str) -> None:
        if line.startswith("waiting for another process"):
            waits.set()

    callers = [threading.Thread(target=cache.resolve, args=(heard,)) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert fake_ivy.calls == 1
    assert waits.is_set()
    assert len(cache.broker_jars(silent)) == 2


def test_what_a_killed_download_left_is_cleared(folder: Path, fake_ivy: FakeIvy) -> None:
    (folder / f"{cache.STAGING_PREFIX}dead" / "broker").mkdir(parents=True)
    cache.resolve(silent)
    assert leftovers(folder) == []


def test_a_cache_that_cannot_be_written_is_named_with_the_variable_that_moves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(MissingRequirementError, match=f"file/cache can't be used .*set {cache.CACHE_VARIABLE}"):
        cache.resolve(silent)


def test_the_cache_follows_the_users_settings_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.cache_directory() == Path("/home/somebody/.cache/exactlyonce")
    monkeypatch.setenv("XDG_CACHE_HOME", "/fast")
    assert cache.cache_directory() == Path("/fast/exactlyonce")
    monkeypatch.setenv(cache.CACHE_VARIABLE, "~/own")
    assert cache.cache_directory() == Path("/home/somebody/own")


def test_clearing_the_cache_removes_the_jars_and_nothing_of_others(folder: Path, fake_ivy: FakeIvy) -> None:
    cache.resolve(silent)
    (folder / "notes.txt").write_text("of somebody else")
    cache.clear_cache()
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    (folder / "notes.txt").unlink()
    cache.clear_cache()
    assert not folder.exists()
    cache.clear_cache()


@pytest.fixture
def spark_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Give the jars that a Spark in ``tmp_path`` lacks: stand-ins, as not all are downloaded before a test."""
    given = []
    for name in ("spark_connector_jars", "s3a_jars", "gcs_jars", "azure_jars"):
        jar = tmp_path / f"{name}.jar"
        jar.write_text(name)
        given.append(jar)
        monkeypatch.setattr(cache, name, lambda _, jar=jar: [jar])
    given.append(cache.EXCLUSIVE_FILES_JAR)
    (tmp_path / "jars").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    return given


def test_spark_gets_the_jars_that_it_lacks_and_keeps_its_own(tmp_path: Path, spark_lacks: list[Path]) -> None:
    given, folder = spark_lacks, tmp_path / "jars"
    (folder / given[0].name).write_bytes(b"Spark's own")
    for _ in range(2):
        cache.complete_spark(silent)
        assert {file.name for file in folder.iterdir()} == {jar.name for jar in given}
        assert (folder / given[0].name).read_bytes() == b"Spark's own"
        assert (folder / given[-1].name).read_bytes() == given[-1].read_bytes()


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let no file become larger, as on a disk that becomes full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_jar_that_spark_got_only_half_of_is_none_that_it_has(tmp_path: Path, spark_lacks: list[Path]) -> None:
    spark_lacks[0].write_bytes(b"jar" * 100_000)
    with room_for(100_000), pytest.raises(OSError, match="File too large"):
        cache.complete_spark(silent)
    assert list((tmp_path / "jars").iterdir()) == []
    cache.complete_spark(silent)
    copy = tmp_path / "jars" / spark_lacks[0].name
    assert copy.read_bytes() == spark_lacks[0].read_bytes()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o644, "an image's drivers run as another user"
