"""Spark as another writer of lakes: a process of its own that carries out statements of SQL, one after the other.

``python -m tests.spark_writers delta`` reads statements from its input and answers each; it ends with its input.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from tests.class_archives import SHORT_LIVED
from tests.spark_readers import DELTA, ICEBERG, NO_JARS, NoJarsError, SparkReader

_MARK: Final = "answer: "
#: Of Iceberg's catalog in SQLite, and how long it waits there for others, in milliseconds.
_SQLITE: Final = "org.xerial:sqlite-jdbc:3.50.3.0"
_PATIENCE: Final = 60_000
#: Its tables are so small that compiling takes longer than running.
_QUICK: Final = {
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}
#: What Delta and Iceberg call it when others were faster: nothing was written.
_CONFLICTS: Final = ("DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED", "ValidationException", "CommitFailedException")
#: Of a statement: a mistake that is called a conflict would be one for ever.
_MOST_TRIES: Final = 50


class SparkConflictError(Exception):
    """Others were faster, and a statement has changed nothing."""


class SparkWriter:
    """What runs statements.

    :param process: of Spark
    :ivar is_running: a statement was sent, and is not answered yet
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process: Final = process
        self.is_running = False

    def run(self, statement: str) -> list[list[Any]]:
        """Run a statement; returns its rows.

        :raises SparkConflictError: when it has to be repeated
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(statement) + "\n")
        self._process.stdin.flush()
        self.is_running = True
        answer = _answer(self._process.stdout)
        self.is_running = False
        assert answer is not None, f"Spark has died of {statement}"
        if any(name in answer.get("error", "") for name in _CONFLICTS):
            raise SparkConflictError(answer["error"])
        assert "error" not in answer, f"{statement}: {answer['error']}"
        return answer["rows"]  # type: ignore[no-any-return]

    def insist(self, statement: str) -> None:
        """Run a statement again when others were faster.

        :raises SparkConflictError: when they always are
        """
        for _ in range(_MOST_TRIES - 1):
            with suppress(SparkConflictError):
                self.run(statement)
                return
        self.run(statement)


@contextmanager
def delta_writer(folder: Path) -> Iterator[SparkWriter]:
    """Run Spark for tables of Delta Lake, which are called ``delta.`/path` ``.

    :param folder: for its output
    """
    with _running(DELTA, folder, {"spark.databricks.delta.snapshotPartitions": "1"}) as writer:
        yield writer


@contextmanager
def iceberg_writer(folder: Path) -> Iterator[SparkWriter]:
    """Run Spark for the tables of the catalog ``lake``, which is in a folder as pyiceberg has made it.

    :param folder: with the catalog, for Spark's output, too
    """
    catalog = "spark.sql.catalog.lake"
    settings = {
        "spark.jars.packages": f"{ICEBERG.package},{_SQLITE}",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{folder}/catalog.db?busy_timeout={_PATIENCE}",
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": f"file://{folder}/warehouse",
        f"{catalog}.cache-enabled": "false",  # else it would not look at what others have written
    }
    with _running(ICEBERG, folder, settings) as writer:
        yield writer


@contextmanager
def _running(reader: SparkReader, folder: Path, settings: Mapping[str, str]) -> Iterator[SparkWriter]:
    """Run Spark.

    :param settings: over those of the format
    :raises NoJarsError: when Maven does not give the jars
    """
    command = [sys.executable, "-m", __name__, json.dumps({**reader.conf, **_QUICK, **settings})]
    root, log = Path(__file__).parents[1], folder / "spark.log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            cwd=root,
            env=reader.environment(),
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        try:
            if _answer(process.stdout) is None:
                said = log.read_text()
                raise NoJarsError(settings) if NO_JARS in said else AssertionError(said[-3000:])
            yield SparkWriter(process)
        finally:
            process.stdin.close()  # which ends it, and its JVM


def _answer(output: IO[str]) -> dict[str, Any] | None:
    """Return the next answer, None when there is none to come."""
    line = next((line for line in output if line.startswith(_MARK)), None)
    return None if line is None else json.loads(line.removeprefix(_MARK))


def _serve(conf: dict[str, Any]) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    print(f"{_MARK}{{}}", flush=True)
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"rows": [list(row) for row in spark.sql(json.loads(line)).collect()]}
        except Exception as error:  # whatever it is, the test judges it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(_MARK + json.dumps(answer, default=str), flush=True)
    spark.stop()


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
