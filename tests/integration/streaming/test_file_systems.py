"""The class with which Spark writes a checkpoint on this machine's file systems."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j import java_gateway, protocol
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from airflow_provider_exactlyonce.jars.cache import EXCLUSIVE_FILES_JAR
from airflow_provider_exactlyonce.jars.java import java_executable
from airflow_provider_exactlyonce.jars.spark import pyspark_jars
from airflow_provider_exactlyonce.streaming import file_systems
from tests import class_archives, commands
from tests.integration.streaming.checkpoint_races import WRITERS, race
from tests.integration.streaming.harness import World, check_counts

RACES = 10
CLASS = file_systems.LOCAL.file_manager
#: What a change of a file system below a folder of this name answers; see lost_answers.c.
NFS, NFS_WITHOUT_LINKS = "nfs", "nfs-without-links"
NO_COMPILER = "what NFS answers is made with a C compiler: apt-get install gcc"


@pytest.fixture(scope="module")
def lost_answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Give the environment of a process in which folders answer as on NFS; an empty one without a C compiler."""
    if shutil.which("cc") is None:
        return {}
    source, library = Path(__file__).with_name("lost_answers.c"), tmp_path_factory.mktemp("library") / "lost_answers.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


@pytest.fixture(scope="module")
def java(lost_answers: dict[str, str]) -> Iterator[JavaGateway]:
    """Give a JVM with Spark's classes and ours."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in lost_answers.items():
            patched.setenv(name, value)
        port, process = launch_gateway(
            jarpath=str(next(pyspark_jars().glob("py4j-*.jar"))),
            classpath=f"{pyspark_jars()}/*:{EXCLUSIVE_FILES_JAR}",
            javaopts=[*class_archives.SHORT_LIVED.split(), "-Xmx256m"],
            java_path=str(java_executable()),
            die_on_exit=True,
            return_proc=True,
        )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    with pytest.MonkeyPatch.context() as patched:
        # Once this process has had a session, PySpark asks that session's JVM what an error of any JVM is.
        patched.setattr(java_gateway, "get_return_value", protocol.get_return_value)
        yield gateway
    process.stdin.close()
    process.wait()
    gateway.shutdown()  # before that, py4j would wait for a thread that reads what the JVM may still send


@pytest.fixture(params=["local", NFS, NFS_WITHOUT_LINKS])
def folder(request: pytest.FixtureRequest, tmp_path: Path, lost_answers: dict[str, str]) -> Path:
    """Give a folder whose name has what a URL writes in another way."""
    if request.param != "local" and not lost_answers:
        pytest.skip(NO_COMPILER)
    made: Path = tmp_path / request.param / "a b%20ü#"
    made.mkdir(parents=True)
    return made


def hadoop_conf(java: JavaGateway) -> Any:
    conf = java.jvm.org.apache.hadoop.conf.Configuration()
    conf.set("spark.sql.streaming.checkpointFileManagerClass", CLASS)
    return conf


def hadoop_path(java: JavaGateway, file: Path) -> Any:
    return java.jvm.org.apache.hadoop.fs.Path(java.jvm.java.io.File(str(file)).toURI())


def write(
    java: JavaGateway, file: Path, content: bytes, *, overwrite: bool = True, meanwhile: Callable[[], object] = int
) -> None:
    path = hadoop_path(java, file)
    create = java.jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.create
    stream = create(path.getParent(), hadoop_conf(java)).createAtomic(path, overwrite)
    stream.write(content)
    meanwhile()
    stream.close()
    stream.close()  # Spark does, too


def write_by_hadoop(java: JavaGateway, file: Path, content: bytes) -> None:
    path = hadoop_path(java, file)
    stream = path.getFileSystem(hadoop_conf(java)).create(path)
    stream.write(content)
    stream.close()


def read(java: JavaGateway, file: Path) -> bytes:
    """Read as Spark does: by Hadoop, which compares with what it has noted beside a file."""
    path = hadoop_path(java, file)
    stream = path.getFileSystem(hadoop_conf(java)).open(path)
    return bytes(java.jvm.org.apache.commons.io.IOUtils.toByteArray(stream))


@pytest.mark.parametrize("folder", ["local", NFS], indirect=True)  # a look before a rename does not exclude others
def test_of_all_who_create_a_file_one_does(java: JavaGateway, folder: Path) -> None:
    ended = race(java.jvm, hadoop_conf(java), folder, RACES)
    assert ended == {
        "manager": CLASS,
        "left": False,
        "created": RACES,
        "FileAlreadyExistsException": RACES * (WRITERS - 1),
    }
    notes = [f".{number}.crc" for number in range(RACES)]
    assert sorted(os.listdir(folder / "offsets")) == sorted([*map(str, range(RACES)), *notes]), "nothing else is left"
    assert all(read(java, folder / "offsets" / str(number)) for number in range(RACES)), "as noted"
    assert os.listdir(folder) == ["offsets"]


def test_a_file_that_is_there_is_not_created_again(java: JavaGateway, folder: Path) -> None:
    file = folder / "7"
    write(java, file, b"first", overwrite=False)
    with pytest.raises(Py4JJavaError, match=r"FileAlreadyExistsException: .*/7 is there"):
        write(java, file, b"second, and longer", overwrite=False)
    assert sorted(os.listdir(folder)) == [".7.crc", "7"]
    assert read(java, file) == b"first"


def test_a_file_that_hadoop_has_written_is_replaced_with_what_hadoop_noted_of_it(
    java: JavaGateway, folder: Path
) -> None:
    file = folder / "7"
    write_by_hadoop(java, file, b"old")
    assert sorted(os.listdir(folder)) == [".7.crc", "7"]
    write(java, file, b"new, and longer")
    assert sorted(os.listdir(folder)) == [".7.crc", "7"]
    assert read(java, file) == b"new, and longer"


def test_a_file_of_which_only_hadoops_note_is_left_is_created(java: JavaGateway, folder: Path) -> None:
    file = folder / "7"
    write_by_hadoop(java, file, b"old")
    file.unlink()
    write(java, file, b"new, and longer", overwrite=False)
    assert read(java, file) == b"new, and longer"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_whose_folder_is_removed_meanwhile_is_not_written(
    java: JavaGateway, folder: Path, overwrite: bool
) -> None:
    removed = folder / "removed"
    with pytest.raises(Py4JJavaError, match=r"NoSuchFileException: .*/removed/"):
        write(java, removed / "7", b"x", overwrite=overwrite, meanwhile=lambda: shutil.rmtree(removed))
    assert os.listdir(folder) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_that_is_removed_before_it_is_in_its_place_is_not_written(
    java: JavaGateway, folder: Path, overwrite: bool
) -> None:
    def remove() -> None:
        (unfinished,) = folder.glob(".7.*.tmp")
        unfinished.unlink()

    with pytest.raises(Py4JJavaError, match=r"NoSuchFileException: .*/\.7\..*\.tmp"):
        write(java, folder / "7", b"x", overwrite=overwrite, meanwhile=remove)
    assert not (folder / "7").exists()


def test_damage_is_found_and_rights_are_the_processs_own(java: JavaGateway, folder: Path) -> None:
    file = folder / "7"
    write(java, file, b"x" * 2000)
    (folder / "other").touch()
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE((folder / "other").stat().st_mode)
    with file.open("r+b") as opened:
        opened.seek(1500)
        opened.write(b"y")
    with pytest.raises(Py4JJavaError, match="Checksum error"):
        read(java, file)


@pytest.mark.slow  # drivers with JVMs of their own
@pytest.mark.parametrize("place", [NFS, NFS_WITHOUT_LINKS])
def test_a_pipeline_runs_and_is_restored_where_each_answer_is_lost(
    world: World, lost_answers: dict[str, str], place: str
) -> None:
    if not lost_answers:
        pytest.skip(NO_COMPILER)
    world.home = world.home.parent / place / "home"
    world.home.parent.mkdir()

    def command(*words: str) -> None:
        commands.run_apart(*words, world.pipeline, *world.at_home, environment={**os.environ, **lost_answers})

    for then in ("savepoint", "restore", "status"):
        world.send(1000)
        driver = world.start(own_jvm=True, environment=lost_answers)
        assert driver.wait() == 0, driver.output()[-6000:]
        command(then)
    check_counts(world)
    assert world.commits() == 9
