"""Asks Spark which state a plan would keep, without running it: the one adapter for Spark's planning of a micro-batch.

Spark plans the first micro-batch of a new query and writes the metadata and schemas of its state, as at every start,
into a directory of ours. :mod:`~airflow_provider_exactlyonce.checkpoint.state` reads them there, as it reads a
savepoint's. No source is opened and no task runs; only transformWithState has its processor's ``init`` called, in a
Python worker, as Spark does to learn its variables.

Everything here is private to Spark 4.2. ``tests/integration/streaming/analysis/test_plan_description.py`` is its
contract: if that fails with another Spark, repair this module.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.checkpoint.state import StateDirectory, StatefulOperator
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.streaming.spark.jvm import analyzed, class_of
from airflow_provider_exactlyonce.streaming.spark.session import settings_meanwhile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Spark gives a Python worker ten seconds to start, however slow the machine is, and has no setting for that.
_NO_WORKER: Final = "Python worker failed to connect back"
_TRIES: Final = 3
#: The last line of a traceback of Python.
_RAISED: Final = re.compile(r"[\w.]*(Error|Exception): ")
_CATALYST: Final = "org.apache.spark.sql.catalyst"
_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
_EXECUTION: Final = f"{_STREAMING}.runtime.IncrementalExecution"


class PlanRefusedError(ExactlyOnceError):
    """Spark can't run this plan as a stream, whatever state there is."""


class _NoWorkerError(ExactlyOnceError):
    """Spark could not ask a processor for its variables."""


def stateful_operators(frame: DataFrame, output_mode: str, conf: Mapping[str, str]) -> tuple[StatefulOperator, ...]:
    """Return the operators with state that Spark would run.

    :param frame: the stream that goes to the sink
    :param output_mode: ``append``, ``update`` or ``complete``
    :param conf: the settings that the checkpoint fixes for its life
    :raises PlanRefusedError: in Spark's words
    :raises ExactlyOnceError: when this Spark is another one inside, or a Python worker does not start within the time
        that Spark gives it
    """
    for _ in range(_TRIES - 1):
        with contextlib.suppress(_NoWorkerError):
            return _planned_operators(frame, output_mode, conf)
    return _planned_operators(frame, output_mode, conf)


def _planned_operators(frame: DataFrame, output_mode: str, conf: Mapping[str, str]) -> tuple[StatefulOperator, ...]:
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    with (
        settings_meanwhile(frame.sparkSession, conf),
        tempfile.TemporaryDirectory(prefix="exactlyonce-check-") as folder,
    ):
        offsets = Path(folder, "offsets", "0")  # Spark looks for state's metadata up to the newest of them
        offsets.parent.mkdir()
        offsets.touch()
        try:
            _plan(frame, output_mode, conf, folder)
        except PySparkException as error:
            raise PlanRefusedError(str(error).splitlines()[0].rstrip("; ")) from error
        except Py4JError as error:
            thrown = error.java_exception if isinstance(error, Py4JJavaError) else None
            message = "" if thrown is None else str(thrown.getMessage())
            if _NO_WORKER in message:
                raise _NoWorkerError(
                    f"whether Spark runs this job is not known: {_cause(message)} Spark waits ten seconds for one. "
                    "Try again when this machine has less to do"
                ) from error
            if thrown is not None and thrown.getClass().getName().startswith("org.apache.spark."):
                raise PlanRefusedError(_cause(message)) from error
            raise ExactlyOnceError(
                f"Spark {frame.sparkSession.version} can't be asked which state a plan keeps: {error}"
            ) from error
        return tuple(StateDirectory(Path(folder)).operators(0))


def _cause(message: str) -> str:
    """Return the error that a Python worker raised, or else the first line of Spark's message."""
    lines = [line.strip() for line in message.splitlines()]
    raised = [line for line in lines if _RAISED.match(line)]
    return raised[-1] if raised else lines[0]


def _plan(frame: DataFrame, output_mode: str, conf: Mapping[str, str], folder: str) -> None:
    spark = frame.sparkSession
    plan = analyzed(frame)
    mode = getattr(class_of(spark, "org.apache.spark.sql.streaming.OutputMode"), output_mode.capitalize())()
    class_of(spark, f"{_CATALYST}.analysis.UnsupportedOperationChecker").checkForStreaming(plan, mode)
    offsets = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": dict(conf)}
    companion = _object(spark, _EXECUTION)
    random = class_of(spark, "java.util.UUID").randomUUID
    execution = class_of(spark, _EXECUTION)(
        spark._jsparkSession,
        plan,
        mode,
        f"{folder}/state",
        random(),
        random(),
        0,  # the batch
        _object(spark, "scala.None"),  # the offsets before it
        _object(spark, f"{_STREAMING}.checkpointing.OffsetSeqMetadata").apply(json.dumps(offsets)),
        _object(spark, f"{_STREAMING}.runtime.WatermarkPropagator").noop(),
        True,  # the first batch of a start: state's metadata and schemas are written
        *(getattr(companion, f"$lessinit$greater$default${number}")() for number in (12, 13, 14, 15)),
    )
    execution.executedPlan()


def _object(spark: SparkSession, name: str) -> Any:
    """Return a Scala object."""
    loader = class_of(spark, "java.lang.Thread").currentThread().getContextClassLoader()
    return class_of(spark, "java.lang.Class").forName(f"{name}$", True, loader).getField("MODULE$").get(None)
