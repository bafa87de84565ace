"""Spark with delta-spark's jars, in a process of its own: ``python -m tests.delta_spark PATH`` prints a table's rows.

The jars come from Maven, by Spark's own ``--packages``, at the first use.
"""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
SETTINGS: Final = {
    "spark.jars.packages": PACKAGE,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
_MARK: Final = "rows: "
_NO_JARS: Final = "unresolved dependency"


class NoJarsError(Exception):
    """Maven has not given the jars."""


def read(*paths: Path) -> list[list[dict[str, Any]]]:
    """Return the rows of tables.

    :raises NoJarsError: when Maven does not give the jars
    """
    command = [sys.executable, "-m", "tests.delta_spark", *map(str, paths)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    if _NO_JARS in ended.stdout + ended.stderr:
        raise NoJarsError(PACKAGE)
    assert ended.returncode == 0, ended.stderr[-3000:]
    line = next(line for line in ended.stdout.splitlines() if line.startswith(_MARK))
    return pickle.loads(base64.b64decode(line.removeprefix(_MARK)))  # type: ignore[no-any-return]


def _print(paths: list[str]) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config(map={**SETTINGS})
    spark = builder.getOrCreate()
    tables = [spark.read.format("delta").load(path).toArrow().to_pylist() for path in paths]
    print(_MARK + base64.b64encode(pickle.dumps(tables)).decode())


if __name__ == "__main__":
    _print(sys.argv[1:])
