"""What a committer makes of a target that does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_exactlyonce.exceptions import BatchFailedError, CommitUnknownError, ExactlyOnceError


@contextmanager
def answering(where: str, unanswered: type[ExactlyOnceError] = BatchFailedError) -> Iterator[None]:
    """Take any error that is none of ours for a target without an answer.

    :param where: the target, for the message
    :param unanswered: what is raised in its place
    """
    try:
        yield
    except ExactlyOnceError:
        raise
    except Exception as error:
        raise unanswered(f"{where} does not answer: {type(error).__name__}: {error}") from error


@contextmanager
def claim_unanswered() -> Iterator[None]:
    """Take a claim that may be written or not for no answer: the claim is repeated."""
    try:
        yield
    except CommitUnknownError as error:
        raise BatchFailedError(str(error)) from error
