"""A cluster that does not answer when the end of a ledger is asked for."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.ledger.reader import LedgerReader, tail_of


def test_a_cluster_that_does_not_answer_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(_: LedgerReader) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(LedgerReader, "tail", no_answer)
    config = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}
    with pytest.raises(ExactlyOnceError, match=r"Kafka at 127\.0\.0\.1:1 did not answer: .*TIMED_OUT"):
        tail_of(config, "p")
