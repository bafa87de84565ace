"""Spark's own words, as its drivers have printed them, and what they mean."""

from __future__ import annotations

import pytest

from airflow_provider_exactlyonce.exceptions import (
    BadRecordError,
    BatchFailedError,
    DataLostError,
    ExactlyOnceError,
    IncompatibleVersionError,
)
from airflow_provider_exactlyonce.streaming.spark.errors import meaning_of, raised_in_worker
from airflow_provider_exactlyonce.streaming.spark.typed_errors import mark

LOST = """batch 1 failed 3 times; the last time: the batch's Spark job failed: An error occurred while calling o1784.collectToPython.
: org.apache.spark.sql.kafka010.KafkaIllegalStateException: Some data may have been lost because they are not available in Kafka any more;
either the data was aged out by Kafka or the topic may have been deleted before all the data in the
topic was processed.
If you don't want your streaming query to fail on such cases, set the source option failOnDataLoss to false.
Reason: Could not read records in offset [82, 190) for topic partition test-3-742300-2
\tat org.apache.spark.sql.kafka010.KafkaExceptions$.couldNotReadOffsetRange(KafkaExceptions.scala:94)"""  # noqa: E501


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (LOST, DataLostError),
        ("[STREAM_FAILED] Query x terminated: [KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data", DataLostError),
        ("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match", IncompatibleVersionError),
        ("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match", IncompatibleVersionError),
        (
            "batch 1 failed 3 times; the last time: Error initializing value state: "
            "org.apache.spark.sql.avro.IncompatibleSchemaException: Cannot convert Avro field 'n' to SQL field 'n'",
            IncompatibleVersionError,
        ),
        ("[STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE] Incompatible schema", IncompatibleVersionError),
    ],
)
def test_what_a_restart_can_not_change_is_known_by_its_name(text: str, kind: type[ExactlyOnceError]) -> None:
    meaning = meaning_of(BatchFailedError(text))
    assert type(meaning) is kind
    assert "\tat " not in str(meaning)
    assert text.splitlines()[-2 if "\n" in text else 0] in str(meaning)


def test_a_mark_in_a_querys_plan_is_not_one_of_an_error() -> None:
    """A plan has the expression by which a record that does not fit would be told."""
    told = mark(BadRecordError, "shop.events-0 offset 7: it has no value")
    planned = mark(BadRecordError, ", concat_ws(-, topic#2, partition#3), offset, offset#4L")
    query = f"\n=== Streaming Query ===\nLogical Plan:\n+- Filter raise_error(concat({planned}))"
    assert meaning_of(RuntimeError(f"[STREAM_FAILED] the worker was lost{query}")) is None
    assert isinstance(meaning_of(RuntimeError(f"[STREAM_FAILED] {told}{query}")), BadRecordError)


@pytest.mark.parametrize(
    "text", ["Job aborted due to stage failure: ExecutorLostFailure", "[STREAM_FAILED] x: timeout"]
)
def test_anything_else_may_go_on_from_the_retained_checkpoint(text: str) -> None:
    assert meaning_of(RuntimeError(text)) is None


CHAIN = """Job aborted due to stage failure: [PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
pyarrow.lib.ArrowInvalid: Tried reading schema message, was null or length 0
	at org.apache.spark.api.python.BasePythonRunner
Caused by: [PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "job.py", line 21, in process_element
    10 / value.number
    ~~~^~~~~~~~~~~~~~
ZeroDivisionError: division by zero
 SQLSTATE: 38000
	at org.apache.spark.api.python.BasePythonRunner"""  # noqa: E501


@pytest.mark.parametrize(
    ("text", "raised"),
    [(CHAIN, "ZeroDivisionError: division by zero"), ("Job 3 cancelled part of cancelled job tag", None), (LOST, None)],
)
def test_of_several_workers_the_first_that_failed_is_told(text: str, raised: str | None) -> None:
    assert raised_in_worker(text) == raised
