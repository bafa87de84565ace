"""What the coordinator does about each way in which a batch attempt can fail; the sink is written by hand."""

from __future__ import annotations

from typing import Any, cast

import pytest

from airflow_provider_exactlyonce.checkpoint.layout import BatchOffsets
from airflow_provider_exactlyonce.exceptions import (
    AttemptTimedOutError,
    BadRecordError,
    BatchFailedError,
    BatchTimedOutError,
    ClaimFailedError,
    CommitUnknownError,
    ExactlyOnceError,
    FencedError,
    RefusedError,
    StopRequestedError,
)
from airflow_provider_exactlyonce.kafka.transaction import ProducerLostError, TransactionGoneError
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.commit.batch_sink import TransactionalSink
from airflow_provider_exactlyonce.streaming.commit.coordinator import Callbacks, CommitCoordinator
from tests.ledger_records import commit_record

BATCH = Batch(
    lineage="l",
    number=7,
    offsets=BatchOffsets(text="", watermark=0, timestamp=0, sources=()),
    source={},
    source_topic_ids={},
)
RECORD = commit_record(8, batch=7)


class ScriptedSink(TransactionalSink):
    """Raises what the script says at each call of a method, and writes down the calls."""

    time_limit_seconds = 0  # which no attempt keeps

    def __init__(self, script: dict[str, list[Exception | None]], *, committed: list[bool]) -> None:
        self.script, self.answers, self.calls = script, committed, list[str]()

    def prepare(self, result: Any) -> Any:
        return result

    def _call(self, name: str) -> None:
        self.calls.append(name)
        steps = self.script.get(name, [])
        error = steps.pop(0) if steps else None
        if error is not None:
            raise error

    def begin(self, batch: Batch) -> None:
        self._call("begin")

    def committed(self, batch: Batch) -> CommitRecord | None:
        return RECORD if self.answers and self.answers.pop(0) else None

    def rebuild(self, frame: Any, record: CommitRecord, diverged: Any) -> None:
        self._call("rebuild")

    def write(self, frame: Any) -> None:
        self._call("write")

    def pre_commit(self, started_milliseconds: int) -> CommitRecord:
        self._call("pre_commit")
        return RECORD

    def commit(self) -> None:
        self._call("commit")

    def abort(self) -> None:
        self._call("abort")

    def recover(self) -> None:
        self._call("recover")


FAILED, LOST, UNKNOWN = BatchFailedError("failed"), ProducerLostError("lost"), CommitUnknownError("unknown")
TIMED_OUT, GONE = AttemptTimedOutError("too long"), TransactionGoneError("gone")
ONCE = ["begin", "write", "pre_commit", "commit"]


def processed(
    script: dict[str, list[Exception | None]],
    committed: list[bool] | None = None,
    stop: str | None = None,
) -> tuple[list[str], list[bool], CommitCoordinator, ExactlyOnceError | None]:
    sink, repeated = ScriptedSink(script, committed=committed or []), list[bool]()
    callbacks = Callbacks(
        plan=lambda number: BATCH,
        stop_reason=lambda: stop,
        committed=lambda record, seconds, before: repeated.append(before),
    )
    made = CommitCoordinator(sink, callbacks, max_batch_attempts=3, first_pause_seconds=0)
    try:
        made.process(cast(Any, None), 7)
    except ExactlyOnceError as error:
        return sink.calls, repeated, made, error
    return sink.calls, repeated, made, None


@pytest.mark.parametrize(
    ("script", "committed", "calls", "before"),
    [
        ({}, [], ONCE, False),
        ({}, [True], ["begin", "rebuild", "abort"], True),
        ({"begin": [FAILED]}, [], ["begin", *ONCE], False),
        ({"begin": [LOST]}, [], ["begin", "recover", *ONCE], False),
        ({"write": [FAILED]}, [], ["begin", "write", "abort", *ONCE], False),
        ({"write": [FAILED, FAILED]}, [], ["begin", "write", "abort", "begin", "write", "abort", *ONCE], False),
        ({"pre_commit": [FAILED]}, [], ["begin", "write", "pre_commit", "abort", *ONCE], False),
        ({"write": [FAILED], "abort": [LOST]}, [], ["begin", "write", "abort", "recover", *ONCE], False),
        ({"commit": [UNKNOWN]}, [False, True], [*ONCE, "recover"], False),
        ({"commit": [UNKNOWN]}, [False, False, False], [*ONCE, "recover", *ONCE], False),
        ({"commit": [UNKNOWN], "recover": [FAILED]}, [False, True], [*ONCE, "recover", "recover"], False),
        (
            {"begin": [LOST], "recover": [FAILED, FAILED]},
            [],
            ["begin", "recover", "recover", "recover", *ONCE],
            False,
        ),
        ({"write": [UNKNOWN]}, [False, True], ["begin", "write", "recover", "begin", "rebuild", "abort"], True),
        (
            {"rebuild": [UNKNOWN]},
            [True, True],
            ["begin", "rebuild", "recover", "begin", "rebuild", "abort"],
            True,
        ),
        ({"commit": [LOST]}, [], [*ONCE, "recover", *ONCE], False),
        ({"abort": [LOST]}, [True, True], ["begin", "rebuild", "abort", "recover", "begin", "rebuild", "abort"], True),
    ],
)
def test_a_batch_is_committed_in_the_end(
    script: dict[str, list[Exception | None]],
    committed: list[bool],
    calls: list[str],
    before: bool,
) -> None:
    script = {name: list(steps) for name, steps in script.items()}
    assert processed(script, list(committed))[:2] == (calls, [before])


@pytest.mark.parametrize(
    ("script", "error", "calls"),
    [
        ({"write": [BadRecordError("bad")]}, BadRecordError, ["begin", "write", "abort"]),
        ({"begin": [LOST], "recover": [FencedError("by run 2")]}, FencedError, ["begin", "recover"]),
        ({"commit": [UNKNOWN], "recover": [FencedError("by run 2")]}, FencedError, [*ONCE, "recover"]),
        ({"write": [FAILED] * 3}, BatchFailedError, ["begin", "write", "abort"] * 3),
        ({"commit": [UNKNOWN], "recover": [FAILED] * 3}, ClaimFailedError, [*ONCE, *["recover"] * 3]),
        ({"rebuild": [UNKNOWN], "recover": [FAILED] * 3}, ClaimFailedError, ["begin", "rebuild", *["recover"] * 3]),
        (
            {"write": [FAILED] * 3, "abort": [None, None, LOST], "recover": [FencedError("by run 2")]},
            FencedError,
            [*["begin", "write", "abort"] * 3, "recover"],
        ),
    ],
)
def test_what_can_not_be_repeated_ends_the_query_with_its_own_error(
    script: dict[str, list[Exception | None]],
    error: type[ExactlyOnceError],
    calls: list[str],
) -> None:
    script = {name: list(steps) for name, steps in script.items()}
    called, repeated, _, raised = processed(script, ["rebuild" in script])
    assert (called, repeated) == (calls, [])
    assert type(raised) is error


def test_a_batch_whose_rerun_differs_is_refused_and_nothing_is_left_open() -> None:
    called, repeated, _, raised = processed({"rebuild": [RefusedError("other rows")]}, [True])
    assert (called, repeated, type(raised)) == (["begin", "rebuild", "abort"], [], RefusedError)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ({"write": [TIMED_OUT] * 3}, BatchTimedOutError),
        ({"write": [TIMED_OUT] * 3, "abort": [LOST] * 3}, BatchTimedOutError),
        ({"write": [TIMED_OUT, None, None], "pre_commit": [TIMED_OUT, None], "commit": [GONE]}, BatchTimedOutError),
        ({"write": [TIMED_OUT, FAILED, TIMED_OUT]}, BatchFailedError),
        ({"write": [FAILED] * 3}, BatchFailedError),
        ({"write": [FAILED] * 3, "abort": [LOST] * 3}, BatchFailedError),
        ({"commit": [UNKNOWN] * 3}, BatchFailedError),
    ],
)
def test_only_a_batch_that_its_limit_has_ended_in_every_attempt_has_timed_out(
    script: dict[str, list[Exception | None]], error: type[ExactlyOnceError]
) -> None:
    script = {name: list(steps) for name, steps in script.items()}
    raised = processed(script)[3]
    assert type(raised) is error
    assert str(raised).startswith("batch 7 ")
    if error is BatchTimedOutError:
        assert "transaction_timeout_seconds of the KafkaSink, or timeout of the pipeline's CheckpointConfig" in str(
            raised
        )


@pytest.mark.parametrize("error", [FAILED, TIMED_OUT])
def test_a_stop_in_the_last_attempt_is_no_failure_of_the_batch(error: Exception) -> None:
    sink = ScriptedSink({"write": [error] * 3}, committed=[])
    callbacks = Callbacks(
        plan=lambda number: BATCH,
        stop_reason=lambda: "please" if sink.calls.count("write") == 3 else None,
        committed=lambda *_: None,
    )
    with pytest.raises(StopRequestedError, match="please"):
        CommitCoordinator(sink, callbacks, max_batch_attempts=3, first_pause_seconds=0).process(cast(Any, None), 7)


@pytest.mark.parametrize(
    ("recovery", "error"),
    [(ExactlyOnceError("Kafka is away"), StopRequestedError), (FencedError("by run 2"), FencedError), (None, None)],
)
def test_a_stop_leaves_a_commit_in_doubt_to_the_next_run_only_when_it_can_not_be_settled(
    recovery: Exception | None, error: type[ExactlyOnceError] | None
) -> None:
    sink = ScriptedSink({"commit": [UNKNOWN], "recover": [recovery]}, committed=[False, True])
    callbacks = Callbacks(
        plan=lambda number: BATCH,
        stop_reason=lambda: "please" if "commit" in sink.calls else None,
        committed=lambda *_: None,
    )
    made = CommitCoordinator(sink, callbacks, max_batch_attempts=3, first_pause_seconds=0)
    if error is None:
        made.process(cast(Any, None), 7)
    else:
        with pytest.raises(error):
            made.process(cast(Any, None), 7)
    assert sink.calls == [*ONCE, "recover"]


class Plans:
    """Tells what is planned after so many questions without an answer."""

    def __init__(self, unanswered: int) -> None:
        self.unanswered, self.asked = unanswered, 0

    def __call__(self, number: int) -> Batch:
        self.asked += 1
        if self.asked <= self.unanswered:
            raise BatchFailedError("the source's cluster does not answer")
        return BATCH


def test_a_sources_cluster_that_is_away_is_asked_again_before_anything_is_begun() -> None:
    sink, plans = ScriptedSink({}, committed=[]), Plans(unanswered=6)
    callbacks = Callbacks(plan=plans, stop_reason=lambda: None, committed=lambda *_: None)
    CommitCoordinator(sink, callbacks, max_batch_attempts=1, first_pause_seconds=0).process(cast(Any, None), 7)
    assert (plans.asked, sink.calls) == (7, ONCE)


def test_a_sources_cluster_that_stays_away_is_no_batch_that_takes_too_long() -> None:
    sink, plans = ScriptedSink({}, committed=[]), Plans(unanswered=100)
    callbacks = Callbacks(plan=plans, stop_reason=lambda: None, committed=lambda *_: None)
    made = CommitCoordinator(sink, callbacks, max_batch_attempts=2, first_pause_seconds=0)
    with pytest.raises(BatchFailedError, match=r"^batch 7 failed 2 times; .*the source's cluster does not answer"):
        made.process(cast(Any, None), 7)
    assert (plans.asked, sink.calls) == (14, [])


def test_a_stop_ends_the_wait_for_a_sources_cluster() -> None:
    sink, plans = ScriptedSink({}, committed=[]), Plans(unanswered=100)
    callbacks = Callbacks(plan=plans, stop_reason=lambda: "please" if plans.asked else None, committed=lambda *_: None)
    with pytest.raises(StopRequestedError):
        CommitCoordinator(sink, callbacks, max_batch_attempts=3).process(cast(Any, None), 7)
    assert (plans.asked, sink.calls) == (1, [])


def test_a_stop_is_honoured_before_the_batch_begins() -> None:
    called, repeated, _, raised = processed({}, stop="please")
    assert (called, repeated, type(raised)) == ([], [], StopRequestedError)
