"""Spark's requirements for a home, by its file system: jars, and settings of a session."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.jars.cache import EXCLUSIVE_FILES_JAR, azure_jars, gcs_jars, s3a_jars
from airflow_provider_exactlyonce.storage import azure_environment, gcs_environment, s3_environment
from airflow_provider_exactlyonce.storage.opening import is_local, place_of
from airflow_provider_exactlyonce.streaming.settings import DEFAULTS, FILE_MANAGER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HADOOP: Final = "spark.hadoop."


@dataclass(frozen=True, kw_only=True)
class SparkFileSystem:
    """Spark's requirements for homes of one scheme.

    :param own_jars: of this package, which nobody else brings
    :param jars: that others may bring
    :param settings: of Hadoop; none is a secret
    :param keys: of Hadoop, secret: for executors, which lack the driver's environment
    :param finds_keys: Hadoop looks for them in the environment of its process itself
    :param file_manager: with which Spark creates the files of a checkpoint, of two who create one only one
    :param needs: a class of the jars
    """

    own_jars: tuple[Path, ...] = ()
    jars: Callable[[], Sequence[Path]] = tuple
    settings: Callable[[], Mapping[str, str]] = dict
    keys: Callable[[], Mapping[str, str]] = dict
    finds_keys: bool = True
    file_manager: str
    needs: str | None = None


#: It renames a finished file to its place, unless there is one.
_RENAMING: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"

#: This machine's, mounted ones among them.
LOCAL: Final = SparkFileSystem(
    jars=lambda: (EXCLUSIVE_FILES_JAR,),  # it goes without, too
    file_manager="exactlyonce.LocalCheckpointFileManager",
)

FILE_SYSTEMS: Final[Mapping[str, SparkFileSystem]] = {
    "s3": SparkFileSystem(
        own_jars=(EXCLUSIVE_FILES_JAR,),
        jars=s3a_jars,
        settings=s3_environment.hadoop_settings,
        keys=s3_environment.hadoop_keys,
        file_manager="exactlyonce.ExclusiveCheckpointFileManager",
        needs="org.apache.hadoop.fs.s3a.S3AFileSystem",
    ),
    "gs": SparkFileSystem(
        own_jars=(EXCLUSIVE_FILES_JAR,),
        jars=gcs_jars,
        settings=gcs_environment.hadoop_settings,
        file_manager="exactlyonce.UploadingCheckpointFileManager",
        needs="com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    ),
    "abfss": SparkFileSystem(
        jars=azure_jars,
        settings=azure_environment.hadoop_settings,
        keys=azure_environment.hadoop_keys,
        finds_keys=False,
        file_manager=_RENAMING,
        needs="org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem",
    ),
    "hdfs": SparkFileSystem(file_manager=_RENAMING),
}


def driver_jars(arguments: Sequence[str], *, complete: bool = True) -> list[Path]:
    """Return the jars that a driver needs for the home which its arguments name.

    :param complete: False where others bring what Spark lacks, by ``--packages``: then only those of this package
    :raises RefusedError: when a home can't be there; neither a JVM nor its command line has the location then
    :raises MissingRequirementError: when they aren't there and can't be had
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--home", default="")
    place: Any = place_of(parser.parse_known_args(list(arguments))[0].home)
    return _jars("" if is_local(place) else place.protocol, complete=complete)


def session_settings(place: Any) -> dict[str, str]:
    """Return the settings of a session that works on the checkpoint in a place without spark-submit.

    :raises MissingRequirementError: when jars aren't there and can't be had
    """
    scheme = "" if is_local(place) else place.protocol
    system = FILE_SYSTEMS.get(scheme, LOCAL)
    return {
        "spark.jars": ",".join(map(str, _jars(scheme))),
        FILE_MANAGER: system.file_manager,
        **{f"{_HADOOP}{name}": value for name, value in system.settings().items()},
    }


def _jars(scheme: str, *, complete: bool = True) -> list[Path]:
    system = FILE_SYSTEMS.get(scheme, LOCAL)
    return [*system.own_jars, *(system.jars() if complete else ())]


def prepare(spark: SparkSession, place: Any) -> None:
    """Let a driver's session work on the checkpoint in a place. The user's own settings of Hadoop stay.

    :raises SettingRefusedError: when the user's file manager is not exclusive there
    :raises RefusedError: when Spark lacks a jar
    """
    spark_conf = spark.sparkContext._jsc.sc().conf()  # PySpark copies all of it whenever it is asked
    manager = spark_conf.get(FILE_MANAGER, None)
    if is_local(place):
        # A session that others have made may lack the jar; what Spark brings is as right there, and slower.
        if manager in (None, DEFAULTS[FILE_MANAGER]) and _has_class(spark, LOCAL.file_manager):
            spark.conf.set(FILE_MANAGER, LOCAL.file_manager)
        return
    system = FILE_SYSTEMS[place.protocol]
    for name in (system.needs, system.file_manager):
        if name is not None and not _has_class(spark, name):
            raise RefusedError(
                f"{place}: Spark lacks the class {name}. Start the driver with `exactlyonce run`, or give "
                "spark-submit --jars with what `exactlyonce help homes` names"
            )
    if manager not in (None, DEFAULTS[FILE_MANAGER], system.file_manager):
        raise SettingRefusedError(
            FILE_MANAGER,
            manager,
            system.file_manager,
            f"on {place.protocol}: of two drivers both could write one batch",
        )
    spark.conf.set(FILE_MANAGER, system.file_manager)
    give_access(spark, place)


def give_access(spark: SparkSession, place: Any) -> None:
    """Let Hadoop reach the file system of a place. The user's own settings of Hadoop stay."""
    if is_local(place):
        return
    system, spark_conf = FILE_SYSTEMS[place.protocol], spark.sparkContext._jsc.sc().conf()
    has_local_master = str(spark.sparkContext.master).startswith("local")
    keys = {} if has_local_master and system.finds_keys else system.keys()
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in {**system.settings(), **keys}.items():
        if not spark_conf.contains(f"{_HADOOP}{name}"):
            hadoop.set(name, value)


def _has_class(spark: SparkSession, name: str) -> bool:
    utilities = getattr(spark._jvm, "org.apache.spark.util.Utils")
    return bool(utilities.classIsLoadable(name))
