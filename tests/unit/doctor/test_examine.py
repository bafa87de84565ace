"""Findings that no broker gives in a test's time: what the checks say of the facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce import polling
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.restart import RestartDecision, RestartSource
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.control.lease import Lease, Liveness
from airflow_provider_exactlyonce.doctor import examine, repairs
from airflow_provider_exactlyonce.doctor.facts import (
    CheckpointFacts,
    DriverFacts,
    Facts,
    HistoryFacts,
    HomeFacts,
    SavepointFacts,
    TopicsFacts,
    TransactionFacts,
)
from airflow_provider_exactlyonce.doctor.findings import Finding, Remedy
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.ledger.commit_range import CommitSpan
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from tests.clocks import StandingClock
from tests.ledger_records import claim_record
from tests.unit.checkpoint import crafted

NEWEST = 3


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    """Give the facts of a healthy pipeline that is stopped: three commits, a savepoint of the second."""
    home = Home(tmp_path / "home")
    checkpoint = crafted.checkpoint(home.checkpoint(crafted.LINEAGE), batches=NEWEST)
    lineage = Lineage(id=crafted.LINEAGE, cluster_id="c", ledger_topic_id="t", last_commit=NEWEST)
    claim = claim_record(2, lineage=crafted.LINEAGE, home_path=str(home.path))
    newest = crafted.record(NEWEST - 1)
    span = CommitSpan(first=NEWEST, last=NEWEST)
    span.add(newest)
    saved = Savepoints(home.savepoints).take(checkpoint, 1, crafted.record(1), None)
    facts = Facts(pipeline="p", config={})
    facts.reachable = True
    facts.tail = LedgerTail(
        cluster_id="c", topic_id="t", end_offset=9, claim=claim, claim_offset=1, commit=newest, commit_offset=8
    )
    facts.home = HomeFacts(home=home, exists=True, identity="id", pipeline="p", lineage=lineage, successors=[lineage])
    facts.checkpoint = CheckpointFacts(
        checkpoint=Checkpoint(checkpoint.path),
        lineage=lineage,
        restart=RestartDecision(source=RestartSource.CHECKPOINT, batch=2),
    )
    facts.savepoints = SavepointFacts(whole=[saved])
    facts.history = HistoryFacts(spans={2: span}, done=newest)
    facts.driver = DriverFacts()
    facts.topics = TopicsFacts(earliest={("in", 0): 0, ("in", 1): 0})
    facts.transactions = TransactionFacts(own=None, alive={})
    return facts


def sentences(facts: Facts) -> dict[str, str]:
    return {
        finding.name: finding.what for finding in examine.judge(facts) if finding.name != "transactional-id-expired"
    }


def test_what_a_reemit_restored_differs_from_no_commit_of_the_ledger(facts: Facts) -> None:
    checkpoint, history = facts.checkpoint, facts.history
    assert checkpoint is not None
    assert history is not None
    restart = RestartDecision(source=RestartSource.CHECKPOINT, batch=1)
    checkpoint.checkpoint.removal("commits", 2)()
    lineage = replace(checkpoint.lineage, base_batch=1, base_commit=NEWEST)
    facts.checkpoint = replace(checkpoint, lineage=lineage, restart=restart)
    assert "offsets-differ-from-ledger" in sentences(facts)
    facts.checkpoint = replace(checkpoint, lineage=replace(lineage, reemits=2), restart=restart)
    assert sentences(facts) == {}


def test_a_pipeline_that_was_stopped_for_long_is_told_of_its_expired_id_and_nothing_else(facts: Facts) -> None:
    (finding,) = examine.judge(facts)
    assert (finding.name, finding.severity.value, finding.fixable) == ("transactional-id-expired", "info", False)
    assert facts.driver is not None
    facts.in_motion = True
    assert examine.judge(facts) == []


def test_a_savepoint_whose_history_the_ledger_has_forgotten_is_told(facts: Facts) -> None:
    assert facts.history is not None
    facts.history.incomplete = {2: 3}
    assert "commit 3 after it is not in the ledger" in sentences(facts)["savepoint-history-gone"]


def test_input_that_a_replay_would_lack_is_told_with_its_first_range(facts: Facts) -> None:
    assert facts.topics is not None
    facts.topics.earliest = {("in", 0): 25, ("in", 1): 0}
    assert "in-0, offsets 20 to 24, of commit 3, is gone" in sentences(facts)["savepoint-input-gone"]
    facts.topics.earliest = {("in", 0): 31, ("in", 1): 0}
    assert "in-0, offsets 30 to 30" in sentences(facts)["unread-input-gone"]


def test_what_a_start_would_say_of_the_cluster_is_told(facts: Facts) -> None:
    assert facts.topics is not None
    facts.topics.cluster = "broker 1 is too old"
    facts.topics.problems = {(facts.clusters.own, "in"): ("topic-unavailable", "in-0 has no leader")}
    assert sentences(facts) == {"cluster-refused": "broker 1 is too old", "topic-unavailable": "in-0 has no leader"}


@pytest.mark.parametrize("is_source", [True, False])
def test_of_two_topics_of_one_name_on_two_clusters_the_one_that_is_away_hides_nothing_of_the_other(
    facts: Facts, is_source: bool
) -> None:
    assert facts.topics is not None
    facts.clusters = SourceClusters({}, {"in": "elsewhere"}, lambda conn_id: {})
    away = facts.clusters.of("in") if is_source else facts.clusters.own
    facts.topics.problems = {(away, "in"): ("topic-unavailable", "in-0 has no leader")}
    facts.topics.earliest = {} if is_source else {("in", 0): 25, ("in", 1): 0}
    assert ("savepoint-input-gone" in sentences(facts)) is not is_source
    assert facts.topics.is_there(facts.clusters.own, "in") is is_source


def test_a_ledger_that_contradicts_itself_is_told(facts: Facts) -> None:
    assert facts.history is not None
    facts.history.contradictions = ["I4, commit 3: commits 2 to 2 are not in the ledger"]
    assert "commits 2 to 2" in sentences(facts)["ledger-contradicts-itself"]


def test_of_a_home_that_is_gone_it_is_told_where_it_was_and_what_to_do(facts: Facts, tmp_path: Path) -> None:
    assert facts.home is not None
    path = str(facts.home.home.path)
    facts.home.exists = False
    (gone,) = [finding for finding in examine.judge(facts) if finding.name == "home-not-here"]
    assert gone.what == f"{path} is not on this machine; run 2 of p started from {path} on host h"
    for way in (
        "on another machine",
        "not mounted",
        "--accept-home",
        "from a copy",
        "doctor p --fix",
        "a new pipeline",
    ):
        assert way in gone.do
    facts.home = HomeFacts(home=Home(tmp_path / "misspelt"), exists=False)
    (misspelt,) = [finding for finding in examine.judge(facts) if finding.name == "home-not-here"]
    assert misspelt.what.startswith(f"{tmp_path}/misspelt is not on this machine; run 2 of p started from {path}")
    assert misspelt.do == f"pass --home {path}"


def test_one_who_renews_the_status_beside_the_holder_of_the_lease_is_a_second_driver(facts: Facts) -> None:
    held = Lease(pipeline="p", token="t", host="h", machine="m", pid=7, process_started=1, heartbeat=0.0, run=2)
    facts.driver = DriverFacts(lease=held, life=Liveness.ALIVE, told_by_another=True)
    assert "pid 7 on h holds the lease, and another driver renews" in sentences(facts)["two-drivers"]


def test_nothing_is_done_without_a_remedy_nor_to_a_home_that_does_not_belong_to_the_ledger(
    facts: Facts,
) -> None:
    with pytest.raises(RefusedError, match="nothing is safe"):
        repairs.repair(facts, Finding("state-lost", "w", "d"))
    assert facts.home is not None
    facts.home.identity = "another"
    with pytest.raises(RefusedError, match=r"do not belong together: .* is not the home of pipeline p"):
        repairs.repair(facts, Finding("torn-files", "w", "d", Remedy.REBUILD))


def test_a_driver_that_has_started_since_the_look_is_not_disturbed(
    facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_exactlyonce.control import lease

    home = facts.home.home if facts.home else Home(tmp_path)
    held = lease.acquire(home.lease, "p", "a driver")
    clock = StandingClock(meanwhile=lambda: lease.renew(home.lease, held))
    monkeypatch.setattr(lease, "time", clock)
    monkeypatch.setattr(polling, "time", clock)
    with pytest.raises(AlreadyRunningError, match="stop it first"):
        repairs.repair(facts, Finding("unfinished-savepoint", "w", "d", Remedy.CLEAN_UP))


def test_a_remedy_that_fails_is_told_and_the_others_are_tried(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [
        Finding("query-id-lost", "one", "d", Remedy.REBUILD),
        Finding("torn-files", "two", "d", Remedy.REBUILD),
        Finding("unfinished-savepoint", "three", "d", Remedy.CLEAN_UP),
    ]

    def repair(_: Facts, finding: Finding) -> str:
        if finding.remedy is Remedy.CLEAN_UP:
            raise ExactlyOnceError("disk full")
        findings[:] = [other for other in findings if other.remedy is not finding.remedy]
        return "done"

    def gather(*_: Any) -> Facts:
        return facts

    monkeypatch.setattr(examine, "gather", gather)
    monkeypatch.setattr(examine, "judge", lambda _: list(findings))
    monkeypatch.setattr(examine, "repair", repair)
    examination = examine.examine("p", {}, None, fix=True)
    assert examination.done == [("query-id-lost", "done")], "one lineage repairs both"
    assert examination.refused == [("unfinished-savepoint", "disk full")], "and is not tried again"
    assert [finding.name for finding in examination.findings] == ["unfinished-savepoint"]
