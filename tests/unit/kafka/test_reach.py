"""What librdkafka says of a cluster that does not answer is read as what it means."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from airflow_provider_exactlyonce.kafka import reach

HANDSHAKE = (
    "sasl_ssl://h:1/bootstrap: error:0A000086:SSL routines::certificate verify failed (after 8ms in SSL_HANDSHAKE)"
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaError(KafkaError._SSL, "h:1: SSL handshake failed"), KafkaError._SSL),
        (KafkaError(KafkaError._TRANSPORT, HANDSHAKE), KafkaError._SSL),
        (
            KafkaError(KafkaError._TRANSPORT, "h:1: Connect to ipv4#h:1 failed: Connection refused"),
            KafkaError._TRANSPORT,
        ),
        (KafkaError(KafkaError._AUTHENTICATION, "h:1: SASL authentication error"), KafkaError._AUTHENTICATION),
    ],
)
def test_a_handshake_that_breaks_off_is_a_certificate_that_is_not_trusted(error: KafkaError, code: int) -> None:
    assert reach._code(error) == code
