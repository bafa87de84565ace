"""Bounded repetition of a request until it has a definite answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from airflow_provider_exactlyonce.kafka.wire import Code, UnansweredError, describe

#: Answers after which a request can be sent again and has no second effect.
TRANSIENT: Final = frozenset(
    {
        Code.REQUEST_TIMED_OUT,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.NETWORK_EXCEPTION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.CONCURRENT_TRANSACTIONS,
        Code.KAFKA_STORAGE_ERROR,
        Code.CORRUPT_MESSAGE,
    }
)

#: Answers to a producer that is no longer the current one.
TAKEN_OVER: Final = frozenset({Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING})

_FIRST_PAUSE_SECONDS: Final = 0.005
_LONGEST_PAUSE_SECONDS: Final = 1.0


def until_definite(
    request: Callable[[], int],
    *,
    timeout_seconds: float,
    on_transient: Callable[[], None] = lambda: None,
    give_up: Callable[[], bool] = lambda: False,
) -> int:
    """Repeat a request until its answer is definite; return that answer's error code.

    :param request: sends it once; returns an error code or raises :class:`UnansweredError`
    :param timeout_seconds: how long
    :param on_transient: called after each transient answer, before the next try
    :param give_up: asked before each pause
    :raises UnansweredError: when time is up without a definite answer; what happened is then unknown
    """
    deadline = time.monotonic() + timeout_seconds
    pause_seconds = _FIRST_PAUSE_SECONDS
    while True:
        try:
            code = request()
            if code not in TRANSIENT:
                return code
            on_transient()
            last_answer = describe(code)
        except UnansweredError as error:
            last_answer = str(error)
        if time.monotonic() >= deadline or give_up():
            raise UnansweredError(f"no definite answer within {timeout_seconds:.0f} s; the last was: {last_answer}")
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
