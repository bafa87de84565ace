"""Commits whose answer was lost, and what goes wrong while that is found out: the cases that lost or doubled rows."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.checkpoint.layout import BatchOffsets
from airflow_provider_exactlyonce.exceptions import BatchFailedError, CommitUnknownError
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from airflow_provider_exactlyonce.streaming.sinks.files.log import COMPACTION, FileLog
from airflow_provider_exactlyonce.streaming.sinks.files.sink import FileSink
from airflow_provider_exactlyonce.streaming.sinks.files.storage import LocalStorage
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext, SinkEntry
from airflow_provider_exactlyonce.testing.fault_injection import Fault, Kind
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from tests import faulty_targets
from tests.integration.streaming.sinks import test_own_sink as of_own
from tests.integration.streaming.sinks.files import test_sink as of_files

BATCH = Batch(
    lineage="l",
    number=0,
    offsets=BatchOffsets(text="", watermark=0, timestamp=0, sources=()),
    source={},
    source_topic_ids={},
)
LOST_ANSWER = Fault(step="sink.commit", call=2, kind=Kind.ANSWER_LOST)


@pytest.mark.parametrize("sink", [of_own.TestSqliteSink, of_files.TestLocalFiles], ids=["own sink", "files"])
@pytest.mark.parametrize("kind", [Kind.REQUEST_LOST, Kind.ANSWER_LOST, Kind.REFUSED])
def test_a_commit_without_an_answer_and_then_a_claim_that_fails_write_nothing_twice(
    sink: type[SinkConformance], kind: Kind, tmp_path: Path
) -> None:
    claims = [Fault(step="sink.claim", call=call, kind=kind) for call in (2, 3)]
    sink().rehearse(tmp_path, "one", [LOST_ANSWER, claims[0]])
    sink().rehearse(tmp_path, "two", [LOST_ANSWER, *claims])


@pytest.mark.parametrize("following", [0, 1])
def test_a_file_sink_that_was_set_back_keeps_files_whose_log_record_may_be_there(
    following: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty_targets.storages(monkeypatch)
    for call in (2, 3):  # the claim is the first
        fault = Fault(step="storage.create", call=call, kind=Kind.ANSWER_LOST, following=following)
        of_files.TestLocalFiles().rehearse(tmp_path, str(call), [fault], set_back=True)


@pytest.mark.parametrize("following", [1])
def test_a_log_record_that_is_sent_again_and_cannot_be_read_back_keeps_its_files(
    following: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty_targets.storages(monkeypatch)
    for call in (2, 3):  # the claim is the first
        fault = Fault(step="storage.create", call=call, kind=Kind.REPEATED, following=following)
        of_files.TestLocalFiles().rehearse(tmp_path, str(call), [fault])


def test_files_of_a_commit_whose_log_record_is_forgotten_outlive_a_marker_that_was_left(tmp_path: Path) -> None:
    sink = FileSink(name="files", path=str(tmp_path / "table"))
    live = of_files.Live(sink, tmp_path)
    attempt = live.stage([of_files.batch(0, 5)])
    marker = tmp_path / "table" / "_exactlyonce" / "conformance.files" / "attempts" / f"{attempt.name}.json"
    text = marker.read_text()
    live.number += 1
    live.committer.commit(of_files_entry(live.number))
    live.committer.settled(live.number)
    sink.table("conformance").compact(target_bytes=2**20)
    log = FileLog(LocalStorage(sink.path), "_exactlyonce/conformance.files/log")
    last = log.last()
    assert last is not None
    kept = replace(
        last.after(kind=COMPACTION, attempt="c", files=tuple(sink.table("conformance").files())), written=0.0
    )
    log.append(kept)
    log.forget(10**6, compacted=time.time())
    assert log.positions()[0] == kept.position
    marker.write_text(text)  # as a settling that failed leaves it
    of_files.Live(sink, tmp_path, run=2)
    assert len(sink.table("conformance").to_table()) == 5


def of_files_entry(commit: int) -> SinkEntry:
    return SinkEntry(commit=commit, run=1, lineage="l", batch=commit, source={}, rows=5, digest=5)


def test_a_commit_beside_a_record_of_the_same_run_says_what_it_is(tmp_path: Path) -> None:
    sink = FileSink(name="files", path=str(tmp_path / "table"))
    first, again = of_files.Live(sink, tmp_path), of_files.Live(sink, tmp_path)
    first.stage([of_files.batch(0, 5)])
    again.commit(of_files.batch(0, 5))
    with pytest.raises(CommitUnknownError, match="is a claim of run 1 itself, which its last claim has not seen"):
        first.committer.commit(of_files_entry(1))


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
                        "tail": lambda: sinks.check(None, 1),
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
