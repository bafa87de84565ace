"""Translates Spark's own errors for a pipeline, by the names that Spark gives its error conditions.

The Kafka connector puts the name of its condition before some of its messages only.
"""

from __future__ import annotations

import re
from typing import Final

from airflow_provider_exactlyonce.exceptions import (
    DataLostError,
    ExactlyOnceError,
    IncompatibleVersionError,
    RecordRefusedError,
    RefusedError,
)
from airflow_provider_exactlyonce.streaming.spark import typed_errors

#: Conditions of Spark and of its Kafka connector; a streaming query's error repeats the one that ended it.
_KNOWN: Final[tuple[tuple[re.Pattern[str], type[ExactlyOnceError], str], ...]] = (
    (
        re.compile(r"\[KAFKA_DATA_LOSS|Some data may have been lost because they are not available in Kafka any more"),
        DataLostError,
        "records that were not read yet are gone from the source topic, by its retention or by hand. Put them back "
        "from a copy, or accept the loss with a new pipeline that starts after it",
    ),
    (
        re.compile(
            r"\[(STATE_STORE_\w+_SCHEMA_(NOT_COMPATIBLE|INCOMPATIBLE)|STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION"
            r"|STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA)"
            # What Avro can't read, Spark notices only when a task opens the state.
            r"|Error initializing \w+ state: org\.apache\.spark\.sql\.avro\.IncompatibleSchemaException"
        ),
        IncompatibleVersionError,
        "the job's state is another one than the checkpoint's. Run the version that wrote it, see exactlyonce check",
    ),
)

#: What Spark's Avro functions say of a row for which their schema has no value.
_UNWRITABLE: Final = re.compile(
    r"\[AVRO_CANNOT_WRITE_NULL_FIELD\].*|\S+ cannot be written since it's not defined in enum.*"
)

_PLAN: Final = "=== Streaming Query ==="
_STACK_TRACE: Final = "\n\tat "
_TRACEBACK: Final = "Traceback (most recent call last):"
#: What ends a traceback of Python, whose other lines are indented.
_RAISED: Final = re.compile(r"^\S.*$", re.MULTILINE)


def meaning_of_batch(text: str) -> ExactlyOnceError | None:
    """Return what the error of a batch's Spark job means, None for one that another attempt may not meet.

    :param text: Spark's
    """
    if (marked := typed_errors.find(text)) is not None:
        return marked
    if unwritable := _UNWRITABLE.search(text):
        return RecordRefusedError(f"a row of the result can't be written with the sink's Avro schema: {unwritable[0]}")
    return None


def meaning_of(error: Exception) -> ExactlyOnceError | None:
    """Return the project's error for an error of Spark, None for one after which the checkpoint may be continued."""
    from pyspark.errors import AnalysisException

    text = str(error)
    # Raised where a source plans a batch. A query's plan follows, in which a job's own marks are not filled in.
    if (marked := typed_errors.find(text.partition(_PLAN)[0])) is not None:
        return marked
    for pattern, kind, advice in _KNOWN:
        if pattern.search(text):
            return kind(f"{advice}. Spark says: {cause_of(error)}")
    if isinstance(error, AnalysisException):  # the cause; what follows is the plan, pages of it
        return RefusedError(f"Spark can't run this job: {text.strip().splitlines()[0].rstrip(';')}")
    return None


def cause_of(error: Exception) -> str:
    """Return the cause in an error of Spark, without the stack trace and the query's plan."""
    return str(error).partition(_STACK_TRACE)[0].partition(_PLAN)[0].strip()


def raised_in_worker(text: str) -> str | None:
    """Return the error that a Python worker raised, None when Spark's message has none.

    A task may have several workers, each of which reads the output of the one before; when a worker fails, so do those
    after it, and Spark reports the first.
    """
    _, mark, traceback = text.rpartition(_TRACEBACK)
    raised = _RAISED.search(traceback) if mark else None
    return raised[0] if raised else None
