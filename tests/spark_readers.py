"""Spark as a reader of lakes, in a process of its own: ``python -m tests.spark_readers delta PATH`` prints a table.

The jars come from Maven, by Spark's own ``--packages``, at the first use.
"""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.jars.cache import cache_directory, exclusive

_MARK: Final = "rows: "
#: What Spark says then.
NO_JARS: Final = "unresolved dependency"


class NoJarsError(Exception):
    """Maven has not given the jars."""


@dataclass(frozen=True)
class SparkReader:
    """What reads a format.

    :param format: as Spark names it
    :param package: what Maven has for it
    :param settings: what else Spark needs
    :param pyspark: the newest version that there is a package for, None for the installed one
    """

    format: str
    package: str
    settings: Mapping[str, str] = field(default_factory=dict)
    pyspark: str | None = None

    @property
    def conf(self) -> dict[str, str]:
        return {
            "spark.jars.packages": self.package,
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            **self.settings,
        }

    def environment(self) -> dict[str, str]:
        """Return the environment of a process of the version of pyspark, which is installed if it isn't there."""
        packages = {} if self.pyspark is None else {"PYTHONPATH": str(_installed(self.pyspark))}
        return {**os.environ, **packages}

    def read(self, places: Sequence[str]) -> list[list[dict[str, Any]]]:
        """Return the rows of tables.

        :param places: what Spark loads
        :raises NoJarsError: when Maven does not give the jars
        """
        command = [sys.executable, "-m", __name__, self.format, *places]
        root = Path(__file__).parents[1]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=root, env=self.environment())
        if NO_JARS in ended.stdout + ended.stderr:
            raise NoJarsError(self.package)
        assert ended.returncode == 0, ended.stderr[-3000:]
        line = next(line for line in ended.stdout.splitlines() if line.startswith(_MARK))
        return pickle.loads(base64.b64decode(line.removeprefix(_MARK)))  # type: ignore[no-any-return]


DELTA: Final = SparkReader(
    "delta",
    "io.delta:delta-spark_4.2_2.13:4.4.0",
    {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
)
ICEBERG: Final = SparkReader("iceberg", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", pyspark="4.1.4")
_READERS: Final = {reader.format: reader for reader in (DELTA, ICEBERG)}


def _installed(version: str) -> Path:
    """Return where another version of pyspark is, 500 MB in the per-user cache; install it first if it isn't there."""
    folder = cache_directory() / "tests" / f"pyspark-{version}"
    with exclusive(cache_directory() / "tests" / "lock", print):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as staging:
                install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", f"{staging}/packages"]
                subprocess.run([*install, f"pyspark=={version}"], check=True)
                Path(staging, "packages").rename(folder)
    return folder


def _print(reader: SparkReader, places: list[str]) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config(map=dict[str, Any](reader.conf)).getOrCreate()
    tables = [spark.read.format(reader.format).load(place).toArrow().to_pylist() for place in places]
    print(_MARK + base64.b64encode(pickle.dumps(tables)).decode())


if __name__ == "__main__":
    _print(_READERS[sys.argv[1]], sys.argv[2:])
