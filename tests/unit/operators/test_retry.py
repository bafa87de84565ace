"""Which failures Airflow retries."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk.definitions.retry_policy import RetryAction
from airflow.sdk.exceptions import AirflowException

from airflow_provider_exactlyonce import exceptions
from airflow_provider_exactlyonce.operators.streaming import StreamingPipelineOperator, StreamingRetryPolicy

NEVER = (
    exceptions.FencedError,
    exceptions.RefusedError,
    exceptions.IncompatibleVersionError,
    exceptions.DivergedError,
    exceptions.DataLostError,
    exceptions.BadRecordError,
    exceptions.BatchTimedOutError,
    exceptions.InvariantError,
    exceptions.StopRequestedError,
)
AT_ONCE = (
    exceptions.DriverFailedError,
    exceptions.BatchFailedError,
    exceptions.CommitUnknownError,
    exceptions.WorkerShutdownError,
    exceptions.UnhealthyError,
    exceptions.NotAnsweredError,
)


@pytest.mark.parametrize("error", NEVER)
def test_what_a_retry_can_not_change_is_not_retried(error: type[exceptions.ExactlyOnceError]) -> None:
    decision = StreamingRetryPolicy().evaluate(error("its message"), try_number=1, max_tries=5)
    assert decision.action is RetryAction.FAIL
    assert (decision.reason or "").startswith(f"{error.__name__}: ")


@pytest.mark.parametrize("error", AT_ONCE)
def test_what_infrastructure_has_done_is_retried_at_once(error: type[exceptions.ExactlyOnceError]) -> None:
    decision = StreamingRetryPolicy().evaluate(error("its message"), try_number=1, max_tries=5)
    assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, timedelta(0))
    later = StreamingRetryPolicy(delay=timedelta(minutes=1)).evaluate(error("its message"), 1, 5)
    assert later.retry_delay == timedelta(minutes=1)


def test_other_errors_follow_the_tasks_own_retries() -> None:
    for error in (ValueError("x"), AirflowException("x"), OSError("x")):
        assert StreamingRetryPolicy().evaluate(error, 1, 5).action is RetryAction.DEFAULT


def test_it_is_the_operators_default_and_another_one_is_kept() -> None:
    plain = StreamingPipelineOperator(task_id="t", application="a", checkpoint="/h")
    assert isinstance(plain.retry_policy, StreamingRetryPolicy)
    assert plain.has_retry_policy
    mine = StreamingRetryPolicy(delay=timedelta(hours=1))
    assert (
        StreamingPipelineOperator(task_id="u", application="a", checkpoint="/h", retry_policy=mine).retry_policy is mine
    )


def test_it_survives_serialization() -> None:
    policy = StreamingRetryPolicy(delay=timedelta(seconds=90))
    assert StreamingRetryPolicy.deserialize(policy.serialize()).delay == policy.delay
