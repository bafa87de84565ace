"""What a restore refuses, before it changes anything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_provider_exactlyonce.checkpoint import job as jobs
from airflow_provider_exactlyonce.checkpoint.manifest import READABLE
from airflow_provider_exactlyonce.checkpoint.restore import RestoreMode, RestoreRequest, check_restore
from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError
from tests.integration.streaming.replay.harness import Bench, Case
from tests.integration.streaming.replay.shapes import ROWS_A_BATCH


@pytest.mark.timeout(3600)
def test_what_a_restore_would_lack_is_named_and_nothing_is_changed(bench: Bench) -> None:
    topics, rounds = bench.topics("update"), bench.input()
    case = bench.case("update", topics, limit=ROWS_A_BATCH)
    for _ in range(4):
        rounds.send(topics)
    case.run(stop_at=2)
    saved = case.save()
    case.run()
    newest = case.save()
    current, lineages = case.home.current(), sorted(case.home.lineages.iterdir())

    with leases.holding(case.home.lease, case.name, "t"), pytest.raises(AlreadyRunningError, match="Stop it first"):
        case.restore(saved)
    with pytest.raises(RefusedError, match="2 commits followed, up to 4; mode fail"):
        case.restore(saved, mode=RestoreMode.FAIL)
    with pytest.raises(RefusedError, match=rf"no savepoint at or before commit 1 .*{saved}"):
        case.restore(commit=1)
    with pytest.raises(RefusedError, match="none at commit 3"):
        case.restore(commit=3, mode=RestoreMode.REEMIT)
    with pytest.raises(RefusedError, match="not both"):
        case.restore(saved, commit=3)
    _check_ahead(case, newest)
    _check_damage(case, newest)
    _check_other_rows(case, saved)

    admin, before = AdminClient(dict(case.config)), TopicPartition(topics[""], 1, 55)
    admin.delete_records([before])[before].result(30)
    with pytest.raises(RefusedError, match=rf"first {topics['']}-1, offsets 40 to 54, of commit 3"):
        case.restore(saved)
    assert case.home.current() == current
    assert sorted(case.home.lineages.iterdir()) == lineages

    elsewhere = case.home.path.with_name("elsewhere")
    made = case.restore(newest, to=elsewhere)
    assert made.directory == elsewhere
    assert (elsewhere / "checkpoint" / "metadata").exists()
    assert case.home.current() == current
    with pytest.raises(RefusedError, match="exists already"):
        case.restore(newest, to=elsewhere)

    # What a restore found may be gone when the driver starts.
    rounds.send(topics)
    case.run()
    case.restore(newest)
    before = TopicPartition(topics[""], 1, 95)
    admin.delete_records([before])[before].result(30)
    runs = case.tail().place.run
    case.run(expected=64)
    assert case.tail().place.run == runs, "it was refused before anybody was fenced"


def _check_ahead(case: Case, savepoint: str) -> None:
    manifest = case.home.savepoints / savepoint / "manifest.json"
    body = json_store.read(manifest, READABLE)
    assert body is not None
    json_store.write(manifest, {**body, "commit": 9})
    with pytest.raises(RefusedError, match=r"at commit 9, and the ledger .* ends at commit 4"):
        case.restore(savepoint)
    json_store.write(manifest, {**body, "source": {name: {"0": 1} for name in body["source"]}})
    with pytest.raises(RefusedError, match="ends at offset 1 of"):
        case.restore(savepoint)
    json_store.write(manifest, body)


def _check_damage(case: Case, savepoint: str) -> None:
    file = case.home.savepoints / savepoint / "checkpoint" / "offsets" / "3"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(RefusedError, match="is damaged: offsets/3"):
        case.restore(savepoint)
    file.write_bytes(whole)


def _check_other_rows(case: Case, savepoint: str) -> None:
    """Let the job say that it may give other rows each time: that matters where it replays its own commits."""
    current, claim = case.home.current(), case.tail().claim
    assert current is not None
    assert claim is not None
    job = jobs.read(case.home, current.id, claim.version)
    assert job is not None
    jobs.write(case.home, current.id, replace(job, nondeterministic=("Rand is not deterministic",)))
    with pytest.raises(RefusedError, match=r"commits 3 to 4 have to be replayed.*Rand is not deterministic"):
        case.restore(savepoint)
    for version, accepted in (("another", False), (claim.version, True)):
        request = RestoreRequest(savepoint=savepoint, version=version, accept_nondeterminism=accepted)
        check_restore(case.home, case.name, case.config, request)
    with pytest.raises(RefusedError, match="Rand is not deterministic"):
        check_restore(case.home, case.name, case.config, RestoreRequest(savepoint=savepoint, version=claim.version))
    jobs.write(case.home, current.id, job)
