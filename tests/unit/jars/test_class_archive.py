"""Which archive of Spark's classes a driver starts from, and that one process makes it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import MissingRequirementError
from airflow_provider_exactlyonce.jars import class_archive
from airflow_provider_exactlyonce.jars.cache import CACHE_VARIABLE, clear_cache


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder of a machine with a Java, a Spark and an empty cache."""
    for file in ("java/bin/java", "spark/jars/core.jar", "spark/jars/sql.jar"):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file)
        path.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "the cache"))
    monkeypatch.setattr(class_archive, "java_executable", lambda: Path("java"))
    return tmp_path


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Give the archives that jobs have written."""
    written = []

    def write(archive: Path) -> None:
        written.append(archive)
        archive.write_text("classes")

    monkeypatch.setattr(class_archive, "_let_a_job_write", write)
    return written


def test_without_an_archive_nothing_is_asked_of_the_jvm() -> None:
    assert class_archive.environment({"SPARK_SUBMIT_OPTS": "-Dmine=1"}, {}) == {}


def test_with_one_the_jvm_starts_from_it_and_what_the_user_says_comes_later(jobs: list[Path]) -> None:
    archive = class_archive.make(print)
    options = class_archive.environment({"SPARK_SUBMIT_OPTS": "-Dmine=1"}, {})["SPARK_SUBMIT_OPTS"]
    assert options.startswith(f"'-XX:SharedArchiveFile={archive}' "), "its path has a blank"
    assert options.endswith(" -Dmine=1"), "the JVM takes the last"
    assert not class_archive.environment({}, {})["SPARK_SUBMIT_OPTS"].endswith(" ")


@pytest.mark.parametrize(
    ("given", "conf"),
    [
        ({"SPARK_SUBMIT_OPTS": "-XX:ArchiveClassesAtExit=mine.jsa"}, {}),
        ({}, {"spark.driver.extraJavaOptions": "-Dmine=1 -XX:ArchiveClassesAtExit=mine.jsa"}),
    ],
)
def test_a_jvm_that_is_to_write_the_users_own_archive_does_not_get_ours(
    jobs: list[Path], given: dict[str, str], conf: dict[str, str]
) -> None:
    class_archive.make(print)
    assert class_archive.environment(given, conf) == {}


def test_where_there_is_no_spark_or_no_java_nothing_is_asked_either(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(machine / "nowhere"))
    assert class_archive.environment({}, {}) == {}
    monkeypatch.setenv("SPARK_HOME", str(machine / "spark"))
    monkeypatch.setenv("JAVA_HOME", str(machine / "nowhere"))
    assert class_archive.environment({}, {}) == {}


@pytest.mark.parametrize("changed", ["java/bin/java", "spark/jars/core.jar", "spark/jars/another.jar"])
def test_another_java_or_another_jar_has_another_archive(machine: Path, jobs: list[Path], changed: str) -> None:
    archive = class_archive.make(print)
    assert class_archive.find() == archive
    (machine / changed).write_text("another")
    assert class_archive.find() is None
    assert class_archive.make(print) != archive


def test_an_image_may_cut_times_to_seconds(machine: Path, jobs: list[Path]) -> None:
    jar = machine / "spark/jars/core.jar"
    os.utime(jar, ns=(0, 7_900_000_000))
    archive = class_archive.make(print)
    os.utime(jar, ns=(0, 7_000_000_000))
    assert class_archive.find() == archive


def test_it_is_made_once(jobs: list[Path]) -> None:
    messages: list[str] = []
    archive = class_archive.make(messages.append)
    assert class_archive.make(messages.append) == archive
    assert len(jobs) == len(messages) == 1
    assert [file for file in archive.parent.iterdir() if file.suffix != ".lock"] == [archive]


def test_one_whose_end_is_missing_is_not_used_and_made_again(jobs: list[Path]) -> None:
    archive = class_archive.make(print)
    archive.write_text("clas")
    assert class_archive.environment({}, {}) == {}
    assert class_archive.make(print) == archive
    assert class_archive.find() == archive


def test_of_several_at_once_one_makes_it(jobs: list[Path]) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: class_archive.make(print), range(8)))
    assert len(jobs) == len(set(made)) == 1


def test_a_cache_that_cannot_be_written_is_told(machine: Path) -> None:
    (machine / "the cache").write_text("no folder")
    with pytest.raises(MissingRequirementError, match="the cache"):
        class_archive.make(print)


def test_the_archives_go_with_the_cache(jobs: list[Path]) -> None:
    archive = class_archive.make(print)
    (archive.parent / "classes-of-spark-killed").mkdir()  # whoever made one was killed
    clear_cache()
    assert not archive.exists()
    assert not os.path.exists(archive.parent)
