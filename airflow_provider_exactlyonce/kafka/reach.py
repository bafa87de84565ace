"""Whether a cluster can be reached; if not, why: refused, unresolved, untrusted."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.kafka.config import for_confluent, from_environment
from airflow_provider_exactlyonce.polling import poll_until

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.kafka.wire import WireClient

log = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1


def reached(bootstrap_servers: str | None) -> dict[str, str]:
    """Return the configuration of a command's cluster, which answers.

    :param bootstrap_servers: the command line's, see :func:`~kafka.config.from_environment`
    :raises RefusedError: when neither command line nor environment names a cluster, or it rejects our credentials
    :raises ExactlyOnceError: when it can't be reached
    """
    config = from_environment(bootstrap_servers)
    error = trouble(config)
    if error is not None:
        raise error
    return config


def connected(config: dict[str, str]) -> WireClient:
    """Return a client of a cluster; one that does not answer is asked again for half a minute.

    :param config: client configuration in librdkafka's names
    :raises RefusedError: when it rejects our credentials
    :raises ExactlyOnceError: when it can't be reached
    """
    from airflow_provider_exactlyonce.kafka.wire import UnansweredError, WireClient

    error = trouble(config)
    if isinstance(error, RefusedError):
        raise error
    if error is not None:
        log.warning("%s; asking again for half a minute", error)
    try:
        return WireClient(config)
    except UnansweredError as failure:
        raise unreachable(config) from failure


def unanswered(config: Mapping[str, str], error: Exception) -> ExactlyOnceError:
    """Return the error for a cluster that was reached, and has not answered a question."""
    return ExactlyOnceError(f"Kafka at {config['bootstrap.servers']} did not answer: {error.args[0]}")


def unreachable(config: Mapping[str, str]) -> ExactlyOnceError:
    """Return the error for a cluster that could not be connected to, with the reasons.

    kafka-python keeps them to itself, so librdkafka is asked.

    :param config: client configuration in librdkafka's names
    """
    return trouble(config) or _error(config, {}, "no reason is known; it answers now")


def trouble(config: Mapping[str, str]) -> ExactlyOnceError | None:
    """Ask the cluster something; returns why it does not answer, None when it does.

    :param config: client configuration in librdkafka's names
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

    errors: list[KafkaError] = []
    settings: dict[str, Any] = {**for_confluent(config), "error_cb": errors.append}
    try:
        admin = AdminClient(settings)
    except KafkaException as error:
        return RefusedError(f"the Kafka configuration can't be used: {error.args[0].str()}")
    answer = admin.describe_cluster(request_timeout=_PATIENCE_SECONDS)

    def is_over() -> bool:
        admin.poll(_POLL_SECONDS)
        # librdkafka says after its first try that all brokers are down, and would go on for half a minute.
        return answer.done() or any(error.code() == KafkaError._ALL_BROKERS_DOWN for error in errors)

    poll_until(is_over, seconds=_PATIENCE_SECONDS, poll_seconds=0.0)
    if answer.done():
        try:
            answer.result()
        except KafkaException as error:
            errors.append(error.args[0])
        else:
            return None
    reasons = {_code(error): error.str() for error in errors if error.code() != KafkaError._ALL_BROKERS_DOWN}
    return _error(config, reasons, f"no answer within {_PATIENCE_SECONDS:.0f} s")


def _code(error: Any) -> int:
    """Return an error's code; a handshake that OpenSSL breaks off in mid-read is a lost connection to librdkafka."""
    from confluent_kafka import KafkaError

    code: int = error.code()
    return KafkaError._SSL if code == KafkaError._TRANSPORT and "SSL routines" in error.str() else code


def _error(config: Mapping[str, str], reasons: Mapping[int, str], default_reason: str) -> ExactlyOnceError:
    from confluent_kafka import KafkaError

    refused = reasons.keys() & {KafkaError._AUTHENTICATION, KafkaError._SSL}
    kind = RefusedError if refused else ExactlyOnceError
    reason = "; ".join(reasons[code] for code in (refused or reasons)) or default_reason
    return kind(f"Kafka at {config['bootstrap.servers']} can't be reached: {reason}")
