"""A cluster's answers to an admin client of confluent-kafka."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def answer_of(future: Future[T], *absent: int) -> T | None:
    """Return an answer, None for an error that says that nothing is there.

    Such an error is not raised: its traceback would hold the function that asks, that function the future, and the
    future the error. So the client, with its threads, would live until Python's garbage collector comes.

    :param absent: codes of :class:`confluent_kafka.KafkaError`
    :raises confluent_kafka.KafkaException: another error
    """
    return None if has_code(future.exception(), *absent) else future.result()


def has_code(error: BaseException | None, *codes: int) -> bool:
    """Whether an error is one of confluent-kafka's with one of these codes."""
    from confluent_kafka import KafkaException

    return isinstance(error, KafkaException) and error.args[0].code() in codes
