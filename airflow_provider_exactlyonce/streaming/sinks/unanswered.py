"""A committer's error for a target that does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_exactlyonce.exceptions import BatchFailedError, CommitUnknownError, ExactlyOnceError


@contextmanager
def answering(what: str, unanswered: type[ExactlyOnceError] = BatchFailedError) -> Iterator[None]:
    """Take an error that is none of the project's, as a sink of a user's own may raise, for a target without an answer.

    :param what: what did not answer, in the words before the error
    :param unanswered: the error that is raised in its place
    """
    try:
        yield
    except ExactlyOnceError:
        raise
    except Exception as error:
        raise unanswered(f"{what}: {type(error).__name__}: {error}") from error


@contextmanager
def claim_unanswered() -> Iterator[None]:
    """Take a claim that may be written or not for no answer: the claim is repeated."""
    try:
        yield
    except CommitUnknownError as error:
        raise BatchFailedError(str(error)) from error
