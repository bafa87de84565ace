"""The driver's Spark session: made with the settings that the protocol needs, and checked."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.streaming import settings
from airflow_provider_exactlyonce.streaming.spark import worker_daemon
from airflow_provider_exactlyonce.streaming.spark.jvm import submitted

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession


def open_session(name: str) -> SparkSession:
    """Return the session of this driver, made with the required settings where they are not set.

    :param name: the application's name, unless one was given at submit
    :raises SettingRefusedError: when a setting contradicts a required one
    :raises RefusedError: when the versions of pyspark, pyspark-client and the JVM differ
    """
    check_packages()
    from pyspark.sql import SparkSession

    # Spark's Python workers would otherwise be the PATH's python3, without this environment's packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    active = SparkSession.getActiveSession()
    if active is None:
        conf = _submitted_conf()
        conf.setAll(list(settings.submit_settings(dict(conf.getAll())).items()))
        conf.setIfMissing("spark.app.name", name)
        # On other hosts this package may be there for tasks only.
        if conf.get("spark.master", "local").startswith("local"):
            conf.setIfMissing("spark.python.daemon.module", worker_daemon.__name__)
        active = SparkSession.builder.config(conf=conf).getOrCreate()
    check_session(active)
    return active


def planning_session(asked: Mapping[str, str]) -> SparkSession:
    """Return a small local session, for planning a job, or for a test of it.

    :param asked: the user's Spark settings, which replace its own
    :raises SettingRefusedError: when one contradicts a required one
    :raises RefusedError: when pyspark is not installed
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise RefusedError(
            "pyspark is not installed, so the job can't be planned: install airflow-provider-exactlyonce[spark]"
        ) from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    builder = SparkSession.builder.master("local[1]").appName("exactlyonce planning")
    return builder.config(map={**quiet, **settings.submit_settings(asked)}).getOrCreate()


def stop_session(spark: SparkSession) -> None:
    """Stop Spark at the end of this process.

    PySpark waits for its server of accumulators, which checks once a second whether it is to end. It ends with the
    process, so there is no wait here.
    """
    spark.sparkContext._accumulatorServer = None  # type: ignore[assignment]
    spark.stop()


@contextlib.contextmanager
def settings_meanwhile(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Let a session have some settings, and afterwards those that it had before."""
    previous_settings = {name: spark.conf.get(name, None) for name in conf}
    try:
        for name, value in conf.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, previous in previous_settings.items():
            if previous is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, previous)


def _submitted_conf() -> SparkConf:
    """Return the configuration given at submit.

    Before the JVM is known to pyspark, a SparkConf is empty and what we set would silently override the user's choice.
    """
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return SparkConf()


def check_session(spark: SparkSession) -> None:
    """Check a session that the job itself may have made.

    :raises SettingRefusedError: naming the setting, its value and the value it must have
    :raises RefusedError: when the JVM's version is another one, or the session is a Spark Connect one
    """
    import pyspark

    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise RefusedError("this is a Spark Connect session; the commit coordinator needs a classic one")
    if spark.version != pyspark.__version__:
        raise RefusedError(
            f"pyspark is {pyspark.__version__} and the JVM's Spark is {spark.version}; install the pyspark of the "
            "cluster's version, and unset SPARK_HOME if it points to another one"
        )
    failures = re.fullmatch(r"local\[[^,]+,\s*(\d+)\]", str(spark.sparkContext.master))
    if failures and failures[1] != "1":
        raise SettingRefusedError(
            "master", spark.sparkContext.master, "local[N]", "its second number allows a task to be run again"
        )
    submitted_conf = submitted(spark)
    settings.check(lambda name: spark.conf.get(name, None) or submitted_conf.get(name, None))


def check_packages() -> None:
    """Check that there is a pyspark, and that it and all of it that pip has installed are one version.

    pyspark-client overwrites files of pyspark. A cluster's container has Spark's own, of which pip knows nothing.

    :raises RefusedError: when there is none, or naming the versions
    """
    # pyspark-client alone has no pyspark.core.
    if any(importlib.util.find_spec(module) is None for module in ("pyspark", "pyspark.core")):
        raise RefusedError("pyspark is not installed; install airflow-provider-exactlyonce[spark]")
    import pyspark

    versions = {"pyspark's files": pyspark.__version__}
    for package in ("pyspark", "pyspark-client"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    if len(set(versions.values())) > 1:
        wanted = versions.get("pyspark", pyspark.__version__)
        raise RefusedError(
            "these must be one version: "
            + ", ".join(f"{name} {version}" for name, version in versions.items())
            + f"; pip install pyspark=={wanted} pyspark-client=={wanted}"
        )
