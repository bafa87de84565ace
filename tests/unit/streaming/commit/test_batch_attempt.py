"""How long an attempt's Spark jobs may take; the jobs are played."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_exactlyonce.exceptions import AttemptTimedOutError, BatchFailedError, RecordRefusedError
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt, TransactionOptions
from tests.waiting import HANG_SECONDS


def limited_to(milliseconds: int) -> BatchAttempt:
    run = SimpleNamespace(pipeline="p", options=SimpleNamespace(transaction_timeout_milliseconds=milliseconds))
    return BatchAttempt(cast(Any, run), TransactionOptions(definition=None), {}, cast(Any, None))


def test_a_job_that_its_limit_has_ended_says_so() -> None:
    cancelled, tags = threading.Event(), list[str]()

    def cancel(tag: str) -> None:
        tags.append(tag)
        cancelled.set()

    def run() -> None:
        assert cancelled.wait(HANG_SECONDS)
        raise BatchFailedError("cancelled")

    with (
        pytest.raises(AttemptTimedOutError, match=r"longer than 0\.09 s.*cancelled"),
        limited_to(100).limited(cast(Any, SimpleNamespace(cancelJobsWithTag=cancel)), "job"),
    ):
        run()
    assert tags == ["job"]


@pytest.mark.parametrize("error", [BatchFailedError("no leader"), RecordRefusedError("a null")])
def test_a_job_that_fails_by_itself_keeps_its_error(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, limited_to(10**6).limited(cast(Any, None), "job"):
        raise error
    assert raised.value is error
