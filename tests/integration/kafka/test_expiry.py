"""What the broker ends by itself: a transaction that took too long, a transactional.id that was idle for too long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.doctor.examine import examine
from airflow_provider_exactlyonce.doctor.findings import Severity
from airflow_provider_exactlyonce.exceptions import BatchTimedOutError, CommitUnknownError, Decision
from airflow_provider_exactlyonce.kafka.transaction import TransactionSession
from airflow_provider_exactlyonce.kafka.wire import Code
from tests.integration.kafka.alone import PlainSink, check, claims_after, started
from tests.waiting import eventually

TIMEOUT_SECONDS = 1


class SlowSink(PlainSink):
    """Dawdles between the rows and the ledger's record, as often as it is told to."""

    slow_attempts = 1

    def pre_commit(self, started_milliseconds: int) -> Any:
        record = super().pre_commit(started_milliseconds)
        if type(self).slow_attempts > 0:
            type(self).slow_attempts -= 1
            ((topic, written),) = self._writer.ranges.items()
            eventually(
                lambda: self._run.client.offsets.last_stable([(topic, 0)])[topic, 0] > written[0].last,
                "the broker has aborted the transaction",
            )
        return record


def test_a_transaction_that_timed_out_is_attempted_again(
    tmp_path: Path,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SlowSink, "slow_attempts", 1)
    topic = make_topic(partitions=1)
    with started(
        kafka_config, tmp_path / "home", f"p-{topic}", topic, timeout_seconds=3 * TIMEOUT_SECONDS, sink=SlowSink
    ) as alone:
        alone.process(0, 1)
        assert alone.events == [(0, False), (1, False)]
    claims = claims_after(kafka_config, f"p-{topic}", topic, batches=2)
    assert claims == [1] * max(len(claims), 2), "a busy machine lets more attempts time out"


def test_a_batch_that_times_out_in_every_attempt_stops_under_that_name(
    tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(partitions=1)
    monkeypatch.setattr(SlowSink, "slow_attempts", 0)
    with started(
        kafka_config, tmp_path / "home", f"p-{topic}", topic, timeout_seconds=TIMEOUT_SECONDS, sink=SlowSink
    ) as alone:
        alone.process(0)
        monkeypatch.setattr(SlowSink, "slow_attempts", 99)
        with pytest.raises(
            BatchTimedOutError, match=r"^batch 1 .* 0\.9 s, in each of 3 attempts.*transaction_timeout_seconds"
        ) as raised:
            alone.process(1)
    assert (raised.value.exit_code, raised.value.decision) == (68, Decision.REFUSE)
    check(kafka_config, f"p-{topic}", topic, batches=1, claims=[1] * 4)


@pytest.mark.slow
def test_a_run_whose_transactional_id_has_expired_goes_on_and_the_doctor_knows_of_it(tmp_path: Path) -> None:
    """The coordinator forgets an id that is idle; what was committed under it stays committed."""
    expiry = {
        "transactional.id.expiration.ms": "1500",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "300",
    }
    with EmbeddedBroker(tmp_path / "broker", properties=expiry) as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(dict(config))
        admin.create_topics([NewTopic("sink", 1, 1)])["sink"].result(30)
        with started(config, tmp_path / "home", "p", "sink") as alone:
            session = alone.run.session
            alone.process(0)
            _wait_until_forgotten(session)
            alone.process(1)
            session.begin()
            _wait_until_forgotten(session)  # before the attempt has written anything: an open transaction keeps it
            with pytest.raises(CommitUnknownError, match="INVALID_PRODUCER_ID_MAPPING"):
                session.commit()
            alone.run.reclaim()
            alone.process(2)
            assert alone.events == [(0, False), (1, False), (2, False)]
            _wait_until_forgotten(session)
        check(config, "p", "sink", batches=3, claims=[1, 1, 1])
        severities = {finding.name: finding.severity for finding in examine("p", config, None).findings}
        assert severities["transactional-id-expired"] is Severity.INFO


def _wait_until_forgotten(session: TransactionSession) -> None:
    def answer() -> int:
        return session.client.end_transaction(session.transactional_id, session.producer, commit=False)

    eventually(lambda: answer() == Code.INVALID_PRODUCER_ID_MAPPING, "the coordinator has forgotten the id")
