"""How an attempt ends that a sink other than Kafka refuses; the broker and the sink are written by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_exactlyonce.exceptions import BatchFailedError, CommitUnknownError, ExactlyOnceError, FencedError
from airflow_provider_exactlyonce.kafka.transaction import ProducerLostError, SessionState, TransactionSession
from airflow_provider_exactlyonce.kafka.wire import Code, Producer, WireClient
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt, TransactionOptions
from airflow_provider_exactlyonce.streaming.commit.batch_transaction import BatchTransaction
from airflow_provider_exactlyonce.streaming.commit.run import Run
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from tests.ledger_records import commit_record


class Broker(WireClient):
    """Gives epochs, and ends every transaction as it is told."""

    def __init__(self) -> None:
        self.ended: list[bool] = []

    def init_producer_id(self, *_: object) -> tuple[int, Producer]:
        return Code.NONE, Producer(id=1, epoch=len(self.ended))

    def end_transaction(self, *_: object, commit: bool) -> int:
        self.ended.append(commit)
        return Code.NONE


class Others(SinkGroup):
    """Raises what the test says."""

    def __init__(self, *, commit: Exception | None = None, abort: Exception | None = None) -> None:
        super().__init__("p", {})
        self.errors = {"commit": commit, "abort": abort}

    def _raise(self, call: str) -> None:
        error = self.errors[call]
        if error is not None:
            raise error

    def commit(self) -> None:
        self._raise("commit")

    def abort(self) -> None:
        self._raise("abort")


REFUSED, GONE, FENCED = BatchFailedError("the target refuses it"), OSError("gone"), FencedError("by run 2")
LOST, UNKNOWN = ProducerLostError("lost"), CommitUnknownError("unknown")


@pytest.mark.parametrize(
    ("others", "raised", "state", "aborts"),
    [
        (Others(commit=REFUSED), BatchFailedError, SessionState.IDLE, 1),
        (Others(commit=FENCED), FencedError, SessionState.IDLE, 1),
        (Others(commit=UNKNOWN), CommitUnknownError, SessionState.OPEN, 0),
        (Others(commit=REFUSED, abort=REFUSED), ProducerLostError, SessionState.OPEN, 0),
        (Others(commit=REFUSED, abort=GONE), ProducerLostError, SessionState.OPEN, 0),
        (Others(commit=REFUSED, abort=LOST), ProducerLostError, SessionState.OPEN, 0),
        (Others(commit=REFUSED, abort=FENCED), FencedError, SessionState.OPEN, 0),
    ],
)
def test_of_a_refused_commit_nothing_stays_open_or_a_claim_has_to_settle_it(
    others: Others, raised: type[ExactlyOnceError], state: SessionState, aborts: int
) -> None:
    broker = Broker()
    session = TransactionSession(broker, "exactlyonce.p", timeout_milliseconds=1)
    run = cast(Run, SimpleNamespace(session=session, pipeline="p"))
    sink = BatchTransaction(
        BatchAttempt(run, TransactionOptions(definition=None), {}, cast(Any, None), others),
        cast(Any, None),
        lambda: False,
    )
    session.initialise()
    session.begin()
    begun = len(broker.ended)
    sink._pre_committed = commit_record(), 0
    with pytest.raises(ExactlyOnceError) as error:
        sink.commit()
    assert (type(error.value), session.state) == (raised, state)
    assert broker.ended[begun:] == [False] * aborts
