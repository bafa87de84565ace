"""A version of a table is tried for as long as others are faster, and no longer than somebody wants it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql.types import LongType, StructType

from airflow_provider_exactlyonce.exceptions import BatchFailedError, CommitUnknownError
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog
from airflow_provider_exactlyonce.streaming.sinks.delta.sink import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.lakehouse import versions
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkContext, SinkEntry
from tests.clocks import StandingClock

ENTRY: Final = SinkEntry(commit=1, run=1, lineage="L", batch=0, source={}, rows=0, digest=0)
TRIES: Final = 4  # after so many something is said; there are more of them outside of this test
OFTEN: Final = 10


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Give the longest of each pause, which nobody waits for."""
    asked: list[float] = []

    def longest(_: float, most: float) -> float:
        asked.append(most)
        return 0.0

    monkeypatch.setattr(versions, "_TRIES", TRIES)
    monkeypatch.setattr("random.uniform", longest)
    monkeypatch.setattr(versions, "time", StandingClock())
    return asked


def commit(folder: Path, stop_requested: Callable[[], bool] = lambda: False) -> Any:
    """Commit once; returns the newest entry."""
    sink = DeltaSink(path=str(folder), name="s")
    with closing(sink.open(SinkContext(pipeline="p", home=folder, stop_requested=stop_requested))) as opened:
        opened.expect_columns(StructType().add("id", LongType()))
        opened.claim(1)
        opened.begin(SinkAttempt(name="a", pipeline="p", commit=1, run=1))
        opened.pre_commit([])
        opened.commit(ENTRY)
        return opened.tail()


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let somebody else write each next version of a commit first, so many times; gives how often it was tried."""
    real, tries = DeltaLog.append, [0]

    def append(log: DeltaLog, files: Any, transactions: Any, metadata: Any, blind: bool = True) -> None:
        if "entry" in metadata:
            tries[0] += 1
            if tries[0] <= OFTEN:
                other = DeltaLog(log._path, {})
                assert other.open()
                real(other, [], {}, {})
        real(log, files, transactions, metadata, blind)

    monkeypatch.setattr(DeltaLog, "append", append)
    return tries


def test_others_may_be_faster_for_as_long_as_they_are(
    faster: list[int], pauses: list[float], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert commit(tmp_path) == ENTRY
    assert faster == [OFTEN + 1]
    said = [record.getMessage() for record in caplog.records if "others were faster" in record.getMessage()]
    assert said == [
        f"commit 1: others were faster {times} times in writing to table {tmp_path} of sink s; it is tried on"
        for times in (TRIES, 2 * TRIES)
    ]
    assert pauses == sorted(pauses) and len(pauses) == OFTEN, "longer each time"
    assert pauses[-1] < 1


def test_a_stop_that_is_asked_for_early_lets_the_batch_commit(faster: list[int], tmp_path: Path) -> None:
    assert commit(tmp_path, lambda: faster[0] < TRIES) == ENTRY


def test_a_stop_ends_tries_that_last_for_long(faster: list[int], tmp_path: Path) -> None:
    with pytest.raises(BatchFailedError, match="commit 1: others were faster 6 times in writing to table"):
        commit(tmp_path, lambda: faster[0] >= 6)
    assert faster == [6]


def test_a_refusal_that_no_version_explains_is_not_believed_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class RefusedByCatalogError(Exception):
        pass

    real = DeltaLog.append

    def append(log: DeltaLog, files: Any, transactions: Any, metadata: Any, blind: bool = True) -> None:
        if "entry" in metadata:
            raise RefusedByCatalogError
        real(log, files, transactions, metadata, blind)

    monkeypatch.setattr(DeltaLog, "append", append)
    monkeypatch.setattr(DeltaLog, "REFUSALS", (RefusedByCatalogError,))
    with pytest.raises(CommitUnknownError, match="commit 1: others were faster 4 times"):
        commit(tmp_path)
