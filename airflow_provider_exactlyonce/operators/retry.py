"""Which failures of a pipeline's task Airflow should retry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, Decision, ExactlyOnceError, StopRequestedError

if TYPE_CHECKING:
    from airflow.sdk import Context

_REASONS: Final = {
    Decision.EXIT: "a newer run has taken over the pipeline",
    Decision.REFUSE: "a retry would be refused, too",
    Decision.FIX_DATA: "the same data would fail again",
}


class StreamingRetryPolicy(RetryPolicy):
    """Retry failures of infrastructure at once; never retry an error that a retry can't change.

    Never: fenced by a newer run, refused, incompatible state, lost or wrong data, stopped by somebody. At once, within
    ``retries``: a lost driver or worker, an unhealthy pipeline, a cluster that does not answer. Errors of others follow
    the task's own ``retries`` and ``retry_delay``. It is the default of the operators that run pipelines.

    .. seealso:: :mod:`airflow_provider_exactlyonce.exceptions`, whose classes arrive as they are

    :param delay: before a retry, instead of none
    """

    def __init__(self, delay: timedelta = timedelta(0)) -> None:
        self.delay = delay

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide by the error's :class:`~airflow_provider_exactlyonce.exceptions.Decision`."""
        if not isinstance(exception, ExactlyOnceError):
            return RetryDecision.default()
        name = type(exception).__name__
        if isinstance(exception, StopRequestedError):
            return RetryDecision.fail(f"{name}: somebody wanted the pipeline stopped")
        if reason := _REASONS.get(exception.decision):
            return RetryDecision.fail(f"{name}: {reason}")
        return RetryDecision.retry(self.delay, f"{name}: the pipeline can go on from its last commit")

    def serialize(self) -> dict[str, Any]:
        """Return the policy's arguments."""
        return {"delay": self.delay.total_seconds()}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> StreamingRetryPolicy:
        """Return the policy of :meth:`serialize`."""
        return cls(timedelta(seconds=data["delay"]))


@contextmanager
def failing_for_good() -> Iterator[None]:
    """Let Airflow retry only those errors of the block that a retry can change, whatever the task's policy.

    :raises AirflowFailException: for the others
    """
    from airflow_provider_exactlyonce.control import exit_classification

    try:
        yield
    except ExactlyOnceError as error:
        # A driver that is silent, or has just started, holds the pipeline for a while.
        if exit_classification.is_final(error) and not isinstance(error, AlreadyRunningError):
            raise AirflowFailException(f"{error} ({error.page()})") from error
        raise
