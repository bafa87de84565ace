"""State of keyed functions under a new version: what Avro can carry over is kept, the rest refused by name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.checkpoint.versions import CompatibilityReport
from airflow_provider_exactlyonce.exceptions import IncompatibleVersionError, RefusedError
from airflow_provider_exactlyonce.streaming import StateBackend
from airflow_provider_exactlyonce.streaming.job.compatibility_check import check_compatibility
from airflow_provider_exactlyonce.streaming.spark.session import open_session
from tests.integration.streaming.harness import clean_audit, read_committed
from tests.integration.streaming.replay.harness import Bench, Case
from tests.integration.streaming.replay.migrations import narrower, totals, wider
from tests.integration.streaming.replay.shapes import Shape
from tests.integration.streaming.replay.test_variants import configure

__all__ = ["configure"]  # a fixture
Configure = Callable[[Mapping[str, str]], None]

#: Drivers here share a session, in which a setting of one would stay.
SPARKS_OWN = {"spark.sql.streaming.stateStore.encodingFormat": "unsaferow"}
AVRO = StateBackend.rocksdb(avro=True)
Row = dict[str, Any]


def judged(case: Case, savepoint: str) -> CompatibilityReport:
    store = Savepoints(case.home.savepoints)
    return check_compatibility(
        case.pipeline(), store.get(savepoint), store.checkpoint(savepoint).path, open_session("check")
    )


def rows_of(case: Case) -> list[Row]:
    return [json.loads(record.value or b"") for record in read_committed(case.config, case.sink)]


def as_one_version(case: Case, of_wider: set[int]) -> list[Row]:
    """Compute what came of each event, if no version had ever changed.

    :param of_wider: ids of the events that the wider version has seen
    """
    seen: dict[str, list[int]] = {}
    expected = []
    events = (
        json.loads(record.value or b"")
        for topic in case.topics.values()
        for record in read_committed(case.config, topic)
    )
    for event in sorted(events, key=lambda event: int(event["id"])):
        ids = seen.setdefault(event["k"], [])
        ids.append(event["id"])
        newer = [number for number in ids if number in of_wider]
        expected.append(
            {
                "k": event["k"],
                "id": event["id"],
                "n": len(ids),
                "largest": max(newer, default=None),
                "ids": list(ids),
                "digits": {str(digit): n for digit, n in Counter(number % 10 for number in ids).items()},
            }
        )
    return expected


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_state_in_avro_is_kept_when_fields_are_added_and_what_avro_can_not_read_is_refused(
    bench: Bench, configure: Configure
) -> None:
    configure(SPARKS_OWN)
    topics, rounds = bench.topics("update"), bench.input()
    case = bench.case(Shape(totals, state_backend=AVRO), topics)
    rounds.send(topics)
    case.run()
    saved = case.save()
    first = rounds.rows * rounds.rounds

    impossible = replace(case, shape=Shape(narrower, state_backend=AVRO))
    report = judged(impossible, saved)
    assert report.verdict.value == "incompatible"
    [worst] = [finding for finding in report.findings if finding.verdict.value == "incompatible"]
    assert worst.aspect.endswith("total: value, n"), worst
    assert (worst.old, worst.new) == ("integer", "short")
    rounds.send(topics)
    impossible.run(expected=IncompatibleVersionError.exit_code)
    assert {row["id"] for row in rows_of(case)} == set(range(first)), "it has written nothing"

    upgraded = replace(case, shape=Shape(wider, state_backend=AVRO))
    report = judged(upgraded, saved)
    assert report.verdict.value == "note", report.findings
    assert any("new are null in old values" in finding.reason for finding in report.findings)
    upgraded.run()
    of_wider = set(range(first, rounds.rows * rounds.rounds))
    rows = sorted(rows_of(case), key=lambda row: int(row["id"]))
    assert rows == as_one_version(case, of_wider)
    clean_audit(case.config, case.name)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_without_avro_a_field_is_refused_and_so_is_avro_later(bench: Bench, configure: Configure) -> None:
    configure(SPARKS_OWN)
    topics, rounds = bench.topics("update"), bench.input()
    case = bench.case(Shape(totals), topics)
    rounds.send(topics)
    case.run()
    saved = case.save()
    report = judged(replace(case, shape=Shape(wider)), saved)
    worst = report.findings[0]
    assert worst.verdict.value == "incompatible"
    assert "a state variable of its own" in str(worst.way_out)
    report = judged(replace(case, shape=Shape(totals, state_backend=AVRO)), saved)
    assert [
        (finding.aspect, finding.old, finding.new)
        for finding in report.findings
        if finding.verdict.value == "incompatible"
    ] == [("state encoding", "unsaferow", "avro")]
    rounds.send(topics)
    replace(case, shape=Shape(wider)).run(expected=IncompatibleVersionError.exit_code)
    replace(case, shape=Shape(totals, state_backend=AVRO)).run(expected=RefusedError.exit_code)
    case.run()
    assert len(rows_of(case)) == rounds.rows * rounds.rounds
