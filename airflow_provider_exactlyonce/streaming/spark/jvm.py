"""Access to the JVM: classes by name, Scala's sequences, and trees of plans and expressions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def class_of(spark: SparkSession, name: str) -> Any:
    """Return a class.

    Not ``jvm.org.apache...``: py4j looks in all jars for a class of the name of each package on the way.
    """
    return getattr(spark._jvm, name)


def is_stopped(spark: SparkSession) -> bool:
    """Tell whether the session's Spark has ended."""
    return bool(spark.sparkContext._jsc.sc().isStopped())


def submitted(spark: SparkSession) -> Any:
    """Return the settings that a session's Spark was started with, as Java's ``SparkConf``.

    PySpark copies them one by one, at three calls each, whenever it is asked.
    """
    return spark.sparkContext._jsc.sc().conf()


def java_schema(frame: DataFrame) -> Any:
    """Return the columns of a frame as Java's ``StructType``."""
    return frame._jdf.schema()


def analyzed(frame: DataFrame) -> Any:
    """Return the plan that a frame was written as, analysed."""
    return frame._jdf.queryExecution().analyzed()


def has_python_function(spark: SparkSession, plan: Any) -> bool:
    """Tell whether an expression of a plan, or of one below it, runs in a Python worker."""
    patterns = getattr(class_of(spark, "org.apache.spark.sql.catalyst.trees.TreePattern$"), "MODULE$")
    return bool(plan.containsPattern(patterns.PYTHON_UDF()))


def simple_name(node: Any) -> str:
    """Return the name of a node's class."""
    return str(node.getClass().getSimpleName())


def tree(node: Any) -> Iterator[Any]:
    """Yield a plan or an expression and all below it."""
    yield node
    for child in elements(node.children()):
        yield from tree(child)


def elements(sequence: Any) -> Iterator[Any]:
    """Yield the elements of a Scala sequence."""
    for index in range(sequence.size()):
        yield sequence.apply(index)
