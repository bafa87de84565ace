"""What the ledger of backfills says of one: what it has written, and which version goes on with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_provider_exactlyonce.backfill import workspace
from airflow_provider_exactlyonce.backfill.application import application_of
from airflow_provider_exactlyonce.backfill.request import BackfillRequest
from airflow_provider_exactlyonce.backfill.resolve import Resolved
from airflow_provider_exactlyonce.backfill.results import written_of
from airflow_provider_exactlyonce.backfill.workspace import StartedBackfill
from airflow_provider_exactlyonce.control import releases
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger import topic as ledger_topics
from airflow_provider_exactlyonce.ledger.records import (
    ClaimRecord,
    CommitRecord,
    LedgerPointer,
    Record,
    backfill_pipeline,
    encode,
    ledger_topic,
)
from tests.integration.hand_written import HandWrittenPipeline
from tests.unit.backfill.test_plan import at, commit

RANGE = Resolved(starts=at(0), ends=at(10), begins=at(0), commits=(1, 1), newest_commit=3)


class Ledger:
    """A ledger of backfills that is written by hand."""

    def __init__(self, config: Mapping[str, str], pipeline: str) -> None:
        self.pipeline = backfill_pipeline(pipeline)
        ledger_topics.ensure(config, self.pipeline)
        self._producer = Producer(dict(config))
        self._place = LedgerPointer()
        self._offset = 0

    def claim(self, run: int, **fields: Any) -> None:
        named: dict[str, Any] = {name: name for name in ("host", "token", "lineage", "version", "home", "home_path")}
        self._send(
            ClaimRecord(
                pipeline=self.pipeline, run=run, pid=1, base_commit=0, claimed=0, before=self._place, **named, **fields
            )
        )
        self._place = replace(self._place, run=run, run_offset=self._offset - 1)

    def write(self, number: int, run: int, name: str, **fields: Any) -> CommitRecord:
        record = replace(
            commit(number, at(0), at(10)), pipeline=self.pipeline, run=run, backfill=name, before=self._place, **fields
        )
        self._send(record)
        self._place = replace(self._place, commit=number, commit_offset=self._offset - 1)
        return record

    def _send(self, record: Record) -> None:
        self._producer.produce(ledger_topic(self.pipeline), encode(record), record.key, 0)
        assert self._producer.flush(30) == 0
        self._offset += 1


@pytest.fixture
def pipeline(kafka_config: Mapping[str, str], make_topic: Callable[..., str]) -> HandWrittenPipeline:
    """Give a pipeline that has run once, with version ``v``."""
    made = HandWrittenPipeline(kafka_config, source=make_topic(), sink=make_topic())
    made.claim()
    return made


def test_the_range_of_a_backfill_is_what_it_was_when_its_first_batch_was_written(
    kafka_config: Mapping[str, str], pipeline: HandWrittenPipeline
) -> None:
    assert written_of(kafka_config, pipeline.name, "one").begun is None
    ledger = Ledger(kafka_config, pipeline.name)
    ledger.claim(1, plan=RANGE.to_json())
    first = ledger.write(1, 1, "one")
    ledger.claim(2, plan=replace(RANGE, newest_commit=9).to_json())
    second = ledger.write(2, 2, "one")
    ledger.claim(3)
    other = ledger.write(3, 3, "of an older release")
    last = ledger.write(4, 3, "one", result={"rows": 0, "commits": [1, 1]})
    written = written_of(kafka_config, pipeline.name, "one")
    assert (written.batches, written.result, written.begun) == ([first, second], last.result, RANGE)
    older = written_of(kafka_config, pipeline.name, other.backfill or "")
    assert (older.batches, older.result, older.begun) == ([other], None, None)


def test_a_ledger_that_lacks_a_record_can_not_tell_what_was_written(
    kafka_config: Mapping[str, str], pipeline: HandWrittenPipeline
) -> None:
    ledger = Ledger(kafka_config, pipeline.name)
    ledger.claim(1)
    ledger.write(1, 1, "one")
    ledger.write(3, 1, "one", result={"rows": 0})
    with pytest.raises(RefusedError, match=r"lacks record 2, the next one is 3: what backfills of .* have written"):
        written_of(kafka_config, pipeline.name, "another")


def test_what_has_written_a_part_goes_on_with_its_version_though_the_pipeline_was_upgraded(
    kafka_config: Mapping[str, str], pipeline: HandWrittenPipeline, tmp_path: Path
) -> None:
    home = Home(tmp_path / "home")
    home.create(pipeline.name)
    for version in ("old", "v"):
        releases.keep(home, version, tmp_path / f"{version}.py", version.encode())
    made = workspace.make(home, pipeline.name, BackfillRequest.parse(commits="1..1", output="reemit"))

    def runs() -> str:
        return Path(application_of(made, kafka_config)).stem

    assert runs() == "v", "what the pipeline runs"
    workspace.begin(made, StartedBackfill(version="old", name="one", resolved=RANGE), nullcontext)
    assert runs() == "v", "nothing is written"
    ledger = Ledger(kafka_config, pipeline.name)
    ledger.claim(1)
    ledger.write(1, 1, "one")
    assert runs() == "old"
    ledger.write(2, 1, "one", result={"rows": 0})
    assert runs() == "v", "it is done: the same words ask for the version that runs now"
