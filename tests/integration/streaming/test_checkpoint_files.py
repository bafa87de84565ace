"""The class with which Spark writes a checkpoint on this machine's file systems."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_exactlyonce.streaming import file_systems
from tests.integration.spark_session import spark_session
from tests.integration.streaming.checkpoint_races import WRITERS, race

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RACES = 10
SETTING = "spark.sql.streaming.checkpointFileManagerClass"
CLASS = file_systems.LOCAL.file_manager
SPARKS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder whose name has what a URL writes in another way."""
    made = tmp_path / "a b%20ü#"
    made.mkdir()
    return made


def write(spark: SparkSession, manager: str, file: Path, content: bytes, *, overwrite: bool = True) -> None:
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    conf.set(SETTING, manager)
    path = jvm.org.apache.hadoop.fs.Path(jvm.java.io.File(str(file)).toURI())
    create = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.create
    stream = create(path.getParent(), conf).createAtomic(path, overwrite)
    stream.write(content)
    stream.close()
    stream.close()  # Spark does, too


def read(spark: SparkSession, file: Path) -> bytes:
    """Read as Spark does: by Hadoop, which compares with what it has noted beside a file."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(jvm.java.io.File(str(file)).toURI())
    stream = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).open(path)
    return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))


def test_of_all_who_create_a_file_one_does(spark: SparkSession, folder: Path) -> None:
    with spark_session({SETTING: CLASS}, log_level="ERROR") as session:
        ended = race(session, folder, RACES)
    assert ended == {
        "manager": CLASS,
        "left": False,
        "created": RACES,
        "FileAlreadyExistsException": RACES * (WRITERS - 1),
    }
    notes = [f".{number}.crc" for number in range(RACES)]
    assert sorted(os.listdir(folder / "offsets")) == sorted([*map(str, range(RACES)), *notes]), "nothing else is left"
    assert all(read(spark, folder / "offsets" / str(number)) for number in range(RACES)), "as noted"
    assert os.listdir(folder) == ["offsets"]


def test_a_file_that_hadoop_has_written_is_replaced_with_what_hadoop_noted_of_it(
    spark: SparkSession, folder: Path
) -> None:
    file = folder / "7"
    write(spark, SPARKS, file, b"old")
    assert sorted(os.listdir(folder)) == [".7.crc", "7"]
    write(spark, CLASS, file, b"new, and longer")
    assert sorted(os.listdir(folder)) == [".7.crc", "7"]
    assert read(spark, file) == b"new, and longer"


def test_a_file_of_which_only_hadoops_note_is_left_is_created(spark: SparkSession, folder: Path) -> None:
    file = folder / "7"
    write(spark, SPARKS, file, b"old")
    file.unlink()
    write(spark, CLASS, file, b"new, and longer", overwrite=False)
    assert read(spark, file) == b"new, and longer"


def test_damage_is_found_and_rights_are_the_processs_own(spark: SparkSession, folder: Path) -> None:
    file = folder / "7"
    write(spark, CLASS, file, b"x" * 2000)
    (folder / "other").touch()
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE((folder / "other").stat().st_mode)
    with file.open("r+b") as opened:
        opened.seek(1500)
        opened.write(b"y")
    with pytest.raises(Exception, match="Checksum error"):
        read(spark, file)
