"""Commits whose answer was lost, and what goes wrong while that is found out: the cases that lost or doubled rows."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.checkpoint.layout import BatchOffsets
from airflow_provider_exactlyonce.exceptions import BatchFailedError, CommitUnknownError
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext
from airflow_provider_exactlyonce.testing.fault_injection import Fault, Kind
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from tests import faulty_targets
from tests.integration.streaming.sinks import test_own_sink as of_own
from tests.integration.streaming.sinks.write_ahead_log import test_delivery as of_log

BATCH = Batch(
    lineage="l",
    number=0,
    offsets=BatchOffsets(text="", watermark=0, timestamp=0, sources=()),
    source={},
    source_topic_ids={},
)
LOST_ANSWER = Fault(step="sink.commit", call=2, kind=Kind.ANSWER_LOST)


@pytest.mark.parametrize("sink", [of_own.TestSqliteSink, of_log.TestWriteAheadLog], ids=["own sink", "log"])
@pytest.mark.parametrize("kind", [Kind.REQUEST_LOST, Kind.ANSWER_LOST, Kind.REFUSED])
def test_a_commit_without_an_answer_and_then_a_claim_that_fails_write_nothing_twice(
    sink: type[SinkConformance], kind: Kind, tmp_path: Path
) -> None:
    claims = [Fault(step="sink.claim", call=call, kind=kind) for call in (2, 3)]
    sink().rehearse(tmp_path, "one", [LOST_ANSWER, claims[0]])
    sink().rehearse(tmp_path, "two", [LOST_ANSWER, *claims])


@pytest.mark.parametrize("following", [0, 1])
def test_a_log_that_was_set_back_keeps_a_record_that_may_be_there(
    following: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty_targets.write_ahead_logs(monkeypatch)
    for call in (2, 3):  # the claim is the first
        fault = Fault(step="storage.create", call=call, kind=Kind.ANSWER_LOST, following=following)
        of_log.TestWriteAheadLog().rehearse(tmp_path, str(call), [fault], set_back=True)


@pytest.mark.parametrize("following", [1])
def test_a_log_record_that_is_sent_again_and_cannot_be_read_back_is_there_once(
    following: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty_targets.write_ahead_logs(monkeypatch)
    for call in (2, 3):  # the claim is the first
        fault = Fault(step="storage.create", call=call, kind=Kind.REPEATED, following=following)
        of_log.TestWriteAheadLog().rehearse(tmp_path, str(call), [fault])


def test_a_run_that_was_frozen_in_its_claim_of_a_log_takes_no_successors_commit_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty_targets.write_ahead_logs(monkeypatch)
    for call in (1, 2, 3, 4):
        fault = Fault(step="storage.names", call=call, kind=Kind.FROZEN_LONG)
        of_log.TestWriteAheadLog().rehearse(tmp_path, str(call), [fault])


class StrangeError(OSError):
    """What a sink of a user's own may raise: none of the project's errors."""


def test_an_error_that_is_none_of_the_projects_counts_as_no_answer(tmp_path: Path) -> None:
    sink = of_own.TestSqliteSink().make_sink(tmp_path)
    with closing(sink.open(SinkContext(pipeline="p", home=tmp_path))) as committer:
        sinks = SinkGroup("p", {"table": committer})
        sinks.claim(1, None, 1)

        def fail(*_: object) -> None:
            raise StrangeError("gone")

        for step, expected in (("begin", BatchFailedError), ("claim", BatchFailedError), ("tail", BatchFailedError)):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(committer, step, fail)
                with pytest.raises(expected, match=r"sink table, .*: StrangeError: gone"):
                    {
                        "begin": lambda: sinks.begin(BATCH, 1),
                        "claim": lambda: sinks.claim(1, None, 1),
                        "tail": lambda: sinks.check(None, 1, 1),
                    }[step]()
        sinks.claim(1, None, 1)
        sinks.begin(BATCH, 1)
        sinks.collect_results([{"table": (0, 0, {"file": "", "rows": 0, "bytes": 0})}])
        aborted: list[int] = []
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(committer, "commit", fail)
            patched.setattr(committer, "abort", lambda: aborted.append(1))
            with pytest.raises(CommitUnknownError, match="sink table, commit 1: StrangeError: gone"):
                sinks.commit()
            sinks.abort()
        assert aborted == [], "what may be committed is not aborted"
