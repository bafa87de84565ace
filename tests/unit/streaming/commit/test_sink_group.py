"""What a group of sinks says about sinks that do not fit the pipeline's ledger."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, cast

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.records import OtherSink
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry
from tests.ledger_records import commit_record


class Committer:
    """Has this entry, and is in no place that another could be in."""

    place = None

    def __init__(self, entry: SinkEntry | None) -> None:
        self.entry = entry

    def tail(self) -> SinkEntry | None:
        return self.entry


def entry_of(commit: int) -> SinkEntry:
    return SinkEntry(commit=commit, run=1, lineage="l", batch=commit - 1, source={}, rows=1, digest=1)


@pytest.mark.parametrize(
    ("entry", "advice"),
    [
        (
            None,
            "the sink has nothing left, and so no commit to go back to. Put a backup of it back, or give it another",
        ),
        (entry_of(3), "Restore a savepoint at or before commit 3, and what it lacks"),
    ],
)
def test_a_sink_that_was_set_back_is_refused_with_what_can_be_done(entry: SinkEntry | None, advice: str) -> None:
    newest = replace(commit_record(8), others={"lake": OtherSink(rows=1, digest=1)})
    group = SinkGroup("p", {"lake": cast(Any, Committer(entry))})
    with pytest.raises(RefusedError, match=re.escape(advice)):
        group.check(newest, 1, first_repeated=6)


def test_source_ranges_of_a_table_are_told_as_its_versions() -> None:
    entry = replace(entry_of(9), source={"delta:/data/orders": {0: (12_500_000, 13_000_000)}})
    committers = {"lake": Committer(entry), "other": Committer(replace(entry, source={"orders": {1: (5, 7)}}))}
    group = SinkGroup("p", cast(Any, committers))
    told = "delta:/data/orders from the table at version 12 to before version 13 of run 1, and orders-1 5..7 of run 1"
    with pytest.raises(RefusedError, match=re.escape(told)):
        group.check(commit_record(8), 1, first_repeated=8)
