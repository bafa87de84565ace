"""The doctor finds each planted fault by its name, repairs it where that is safe, and is silent on the healthy."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.control import lease
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.doctor import gather
from airflow_provider_exactlyonce.doctor.checks import transactions as transaction_room
from airflow_provider_exactlyonce.doctor.examine import examine
from airflow_provider_exactlyonce.doctor.probes import transactions
from airflow_provider_exactlyonce.exceptions import IncompatibleVersionError
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.ledger import topic as ledger_topics
from airflow_provider_exactlyonce.ledger.records import CommitRecord, ledger_topic
from tests import commands
from tests.integration.doctor import faults
from tests.integration.doctor.faults import Patient
from tests.integration.ledger.crafted import CraftedPipeline, rows_of
from tests.integration.streaming.conftest import world
from tests.integration.streaming.harness import World, check_counts
from tests.integration.streaming.replay.harness import Bench, Case, StoppingDriver, check_content
from tests.integration.streaming.replay.shapes import ROWS_A_BATCH, SHAPES, Shape
from tests.waiting import eventually

__all__ = ["world"]  # a fixture


#: fault: (what is found, what remains after --fix)
FOUND: dict[Callable[[Patient], None], tuple[set[str], set[str]]] = {
    faults.torn_commit: ({"torn-files"}, set()),
    faults.empty_offsets: ({"torn-files"}, set()),
    faults.missing_offsets_before_the_newest: ({"torn-files"}, set()),
    faults.torn_state: ({"torn-files"}, set()),
    faults.flipped_state: ({"torn-files"}, set()),
    faults.missing_table: ({"torn-files"}, set()),
    faults.state_is_gone: ({"torn-files"}, set()),
    faults.checkpoint_is_gone: ({"checkpoint-gone"}, set()),
    faults.all_state_is_gone: ({"state-lost"}, {"state-lost"}),
    faults.query_id_lost: ({"query-id-lost"}, set()),
    faults.query_id_torn: ({"query-id-lost"}, set()),
    faults.foreign_checkpoint: ({"foreign-checkpoint"}, {"foreign-checkpoint"}),
    faults.older_backup: ({"checkpoint-behind-ledger"}, set()),
    faults.batch_not_noted: ({"batch-not-recorded-by-spark"}, {"batch-not-recorded-by-spark"}),
    faults.other_offsets: ({"offsets-differ-from-ledger"}, set()),
    faults.ahead_of_the_ledger: ({"checkpoint-ahead-of-ledger"}, {"checkpoint-ahead-of-ledger"}),
    faults.torn_plan: ({"leftover-offsets"}, set()),
    faults.plan_with_another_source: ({"leftover-offsets"}, set()),
    faults.plan_with_another_topic: ({"leftover-offsets"}, set()),
    faults.plan_with_another_backend: ({"leftover-offsets"}, set()),
    faults.plan_two_ahead: ({"leftover-offsets"}, set()),
    faults.half_a_repartition: ({"unfinished-repartition"}, set()),
    faults.failed_start: ({"leftover-offsets", "driver-failed"}, set()),
    faults.failed_driver: ({"driver-failed"}, {"driver-failed"}),
    faults.batch_too_long: ({"batch-too-long"}, set()),
    faults.damaged_savepoint: ({"savepoint-damaged"}, set()),
    faults.savepoint_without_a_file: ({"savepoint-damaged"}, set()),
    faults.torn_manifest: ({"savepoint-damaged"}, set()),
    faults.unfinished_savepoint: ({"unfinished-savepoint"}, set()),
    faults.unfinished_delete: ({"unfinished-savepoint"}, set()),
    faults.unfinished_verification: ({"unfinished-savepoint"}, set()),
    faults.savepoint_ahead: ({"savepoint-ahead-of-ledger"}, {"savepoint-ahead-of-ledger"}),
    faults.savepoint_of_a_newer_release: ({"not-looked-at"}, {"not-looked-at"}),
    faults.savepoint_of_another: ({"savepoint-of-another-pipeline"}, {"savepoint-of-another-pipeline"}),
    faults.unfinished_restore: ({"unfinished-restore"}, set()),
    faults.torn_pointer: ({"lineage-lost"}, set()),
    faults.missing_pointer: ({"lineage-lost"}, set()),
    faults.pointer_to_another_lineage: ({"lineage-not-current"}, set()),
    faults.pointer_to_an_abandoned_lineage: ({"lineage-abandoned"}, set()),
    faults.lost_lineage: ({"lineage-lost"}, set()),
    faults.torn_home: ({"home-torn"}, set()),
    faults.missing_home_document: ({"home-torn"}, set()),
    faults.home_of_another: ({"home-of-another-pipeline"}, {"home-of-another-pipeline"}),
    faults.other_home: ({"foreign-home"}, {"foreign-home"}),
    faults.home_is_gone: ({"home-not-here"}, {"home-not-here"}),
    faults.home_is_empty: ({"home-empty"}, {"home-empty"}),
    faults.ledger_set_back: ({"ledger-set-back"}, {"ledger-set-back"}),
    faults.ledger_recreated: ({"ledger-recreated"}, {"ledger-recreated"}),
    faults.another_cluster: ({"another-cluster"}, {"another-cluster"}),
    faults.stale_lease: ({"stale-lease"}, set()),
    faults.lease_of_a_lost_machine: ({"stale-lease"}, set()),
    faults.frozen_driver: ({"silent-driver"}, {"silent-driver"}),
    faults.two_drivers: ({"two-drivers"}, {"two-drivers"}),
    faults.ledger_that_deletes: ({"ledger-settings"}, set()),
    faults.sink_that_nobody_can_write: ({"unsafe-setting"}, {"unsafe-setting"}),
    faults.unclean_source: ({"unsafe-setting"}, {"unsafe-setting"}),
    faults.source_that_lacks_replicas: ({"topic-unavailable"}, {"topic-unavailable"}),
    faults.broker_that_takes_late_writes: ({"cluster-refused"}, {"cluster-refused"}),
    faults.compacted_source: ({"source-compacted"}, {"source-compacted"}),
    faults.expiring_source: ({"savepoint-input-expiring"}, set()),
    faults.source_that_is_nearly_full: ({"savepoint-input-expiring"}, set()),
    faults.open_transaction: ({"open-transaction"}, set()),
    faults.foreign_transaction: ({"foreign-transaction"}, {"foreign-transaction"}),
}
#: The same findings from another cause.
VARIANTS = (
    faults.empty_offsets,
    faults.missing_offsets_before_the_newest,
    faults.torn_state,
    faults.missing_table,
    faults.state_is_gone,
    faults.query_id_torn,
    faults.torn_plan,
    faults.plan_with_another_topic,
    faults.plan_with_another_backend,
    faults.plan_two_ahead,
    faults.failed_driver,
    faults.batch_too_long,
    faults.savepoint_without_a_file,
    faults.unfinished_delete,
    faults.unfinished_verification,
    faults.missing_pointer,
    faults.lost_lineage,
    faults.missing_home_document,
    faults.ledger_recreated,
    faults.another_cluster,
    faults.lease_of_a_lost_machine,
    faults.unclean_source,
)


def ask(case: Case, *arguments: str, home: Path | None = None) -> tuple[int, dict[str, Any]]:
    """Run ``exactlyonce doctor``; returns its exit code and JSON."""
    given = ["doctor", case.name, "--bootstrap-servers", case.config["bootstrap.servers"], "--json", *arguments]
    said = commands.run(*given, *(["--home", str(home)] if home else []), code=None)
    return said.code, said.body


def names(body: Mapping[str, Any]) -> set[str]:
    return {finding["name"] for finding in body["findings"]}


@pytest.fixture(scope="module")
def clinic(
    jvm: None,
    tmp_path_factory: pytest.TempPathFactory,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
) -> Bench:
    return Bench(kafka_config, tmp_path_factory.mktemp("clinic"), make_topic)


def healthy(clinic: Bench) -> Case:
    """Give a pipeline of six commits, stopped, with savepoints at the second and the fourth."""
    topics, rounds = clinic.topics("update"), clinic.input()
    case = clinic.case("update", topics, limit=ROWS_A_BATCH)
    for _ in range(6):
        rounds.send(topics)
    for stop in (2, 4):
        case.run(stop_at=stop)
        case.save()
    case.run()
    return case


@pytest.fixture(scope="module")
def one_patient(clinic: Bench) -> Patient:
    case = healthy(clinic)
    patient = Patient(case, case.home.path.with_name("pristine"), [])
    patient.keep()
    return patient


@pytest.fixture
def patient(one_patient: Patient) -> Iterator[Patient]:
    """Give the healthy pipeline; whatever becomes of its home is undone."""
    yield one_patient
    one_patient.heal()


def test_nothing_is_wrong_with_a_healthy_pipeline_that_is_stopped(patient: Patient) -> None:
    before = sorted(patient.home.path.rglob("*"))
    assert ask(patient.case) == (0, {**ask(patient.case)[1], "healthy": True, "findings": []})
    code, body = ask(patient.case, "--fix")
    assert (code, body["findings"], body["mended"], body["not_mended"]) == (0, [], [], [])
    assert sorted(patient.home.path.rglob("*")) == before


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=[pytest.mark.slow] if fault in VARIANTS else []) for fault in FOUND],
    ids=lambda fault: fault.__name__,
)
def test_a_planted_fault_is_found_named_and_mended_where_that_is_safe(
    patient: Patient, fault: Callable[[Patient], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "STALE_SECONDS", 1.5)
    monkeypatch.setattr(transaction_room, "_PATIENCE_SECONDS", 0.0)
    expected, remaining = FOUND[fault]
    fault(patient)
    code, body = ask(patient.case)
    assert names(body) == expected, body["findings"]
    assert code == (0 if {finding["severity"] for finding in body["findings"]} == {"info"} else 1)
    assert all(finding["what"] and finding["do"] for finding in body["findings"])
    code, after = ask(patient.case, "--fix")
    assert names(after) == remaining, after
    assert bool(after["mended"]) == any(finding["fixable"] for finding in body["findings"])
    assert after["not_mended"] == []
    assert lease.read(patient.home.lease) is None or fault in (faults.frozen_driver, faults.two_drivers)
    assert code == (1 if remaining - {"batch-not-recorded-by-spark"} else 0)


def test_a_copied_home_is_told_from_the_real_one(patient: Patient) -> None:
    _, body = ask(patient.case, "--fix", home=patient.pristine)
    assert names(body) == {"copied-home"}


def test_what_does_not_answer_is_told_and_the_rest_is_looked_at(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "_PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(reach, "_PATIENCE_SECONDS", 1.0)
    faults.torn_state(patient)
    faults.damaged_savepoint(patient)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        config = {"bootstrap.servers": f"127.0.0.1:{free.getsockname()[1]}"}
        assert {finding.name for finding in examine(patient.case.name, config, None).findings} == {
            "kafka-unreachable",
            "home-unknown",
        }
        examination = examine(patient.case.name, config, str(patient.home.path))
        assert {finding.name for finding in examination.findings} == {
            "kafka-unreachable",
            "torn-files",
            "savepoint-damaged",
        }
        examination = examine(patient.case.name, config, str(patient.home.path), fix=True)
    assert [name for name, _ in examination.done] == ["savepoint-damaged"]
    assert [(name, why.partition(",")[0]) for name, why in examination.refused] == [
        ("torn-files", "Kafka does not answer")
    ]
    assert {finding.name for finding in examine("never-started", patient.case.config, None).findings} == {
        "ledger-missing"
    }


@pytest.mark.parametrize("document", ["identity", "current"])
def test_a_home_that_does_not_answer_is_told_and_nothing_is_judged_by_what_is_not_known(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, document: str
) -> None:
    faults.torn_state(patient)

    def no_answer(_: Home) -> None:
        raise TimeoutError("no answer for 30 s")

    monkeypatch.setattr(Home, document, no_answer)
    examination = examine(patient.case.name, patient.case.config, None, fix=True)
    (finding,) = examination.findings
    assert (finding.name, finding.what) == (
        "not-looked-at",
        f"the home {patient.home} could not be looked at: no answer for 30 s",
    )
    assert examination.done == []


def test_files_are_not_mended_while_a_driver_lives_and_the_damaged_ones_are_kept(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "_PAUSE_SECONDS", 0.1)
    faults.torn_state(patient)
    with lease.holding(patient.home.lease, patient.case.name, "a driver"):
        code, body = ask(patient.case, "--fix")
    assert (code, names(body), body["mended"]) == (1, {"torn-files"}, [])
    assert "stop it first" in body["not_mended"][0]["why"]
    damaged = patient.lineage.id
    _, body = ask(patient.case, "--fix")
    assert names(body) == set()
    assert str(patient.home.lineages / damaged) in body["mended"][0]["done"]
    assert (patient.home.lineages / damaged / "checkpoint" / "commits").is_dir()


def test_a_mending_that_was_killed_leaves_nothing_that_is_taken_for_a_lineage(patient: Patient) -> None:
    for failpoint in ("restore-copied", "restore-renamed"):
        faults.torn_state(patient)
        before = patient.lineage.id
        words = ("doctor", patient.case.name, "--fix", "--bootstrap-servers")
        servers = patient.case.config["bootstrap.servers"]
        commands.run_apart(*words, servers, code=-signal.SIGKILL, failpoints=failpoint)
        assert patient.lineage.id == before
        code, body = ask(patient.case, "--fix")
        assert (code, names(body)) == (0, set()), body
        patient.heal()


def restarts(patient: Patient, *, batches: int) -> None:
    """Check that the pipeline goes on after it was repaired, and has written everything once."""
    newest = patient.case.tail().place.commit
    patient.case.run()
    assert patient.case.tail().place.commit == newest + batches
    check_content(patient.case)
    assert ask(patient.case)[1]["findings"] == []
    patient.keep()


@pytest.mark.parametrize(
    "fault",
    [
        faults.torn_state,
        pytest.param(faults.state_is_gone, marks=pytest.mark.slow),
        pytest.param(faults.half_a_repartition, marks=pytest.mark.slow),
        pytest.param(faults.lost_lineage, marks=pytest.mark.slow),
    ],
    ids=lambda fault: fault.__name__,
)
def test_a_mended_pipeline_goes_on_and_writes_everything_once(
    patient: Patient, clinic: Bench, fault: Callable[[Patient], None]
) -> None:
    fault(patient)
    assert ask(patient.case)[0] == 1
    assert names(ask(patient.case, "--fix")[1]) == set()
    clinic.input().send(patient.case.topics)
    restarts(patient, batches=1)


def counted_otherwise(events: DataFrame) -> DataFrame:
    return events.groupBy("k").agg(F.count("*").alias("n"), F.sum("id").alias("s"), F.max("id").alias("m"))


@pytest.mark.slow
def test_what_a_start_of_a_changed_job_leaves_behind_is_dropped_and_the_old_job_goes_on(
    patient: Patient, clinic: Bench
) -> None:
    clinic.input().send(patient.case.topics)
    changed = Case(**{**vars(patient.case), "shape": Shape(counted_otherwise, "update")})
    changed.run(expected=IncompatibleVersionError.exit_code)
    assert names(ask(patient.case)[1]) == {"driver-failed", "leftover-offsets"}
    assert names(ask(patient.case, "--fix")[1]) == set()
    restarts(patient, batches=1)


def test_a_batch_that_takes_too_long_is_cut_in_half_and_everything_is_written_once(
    patient: Patient, clinic: Bench
) -> None:
    rounds = clinic.input()
    for _ in range(2):
        rounds.send(patient.case.topics)
    patient.case.run(stop_at=patient.case.tail().place.commit + 1)
    number = patient.newest + 1
    planned = patient.checkpoint.offsets(number)
    assert planned is not None, "a stop leaves the next batch planned"
    assert ask(patient.case)[1]["findings"] == []
    faults._failed(patient, "BatchTimedOutError", f"batch {number} took longer than its transaction may", 68)
    assert names(ask(patient.case)[1]) == {"batch-too-long"}
    assert names(ask(patient.case, "--fix")[1]) == set()
    before, cut = patient.checkpoint.offsets(number - 1), patient.checkpoint.offsets(number)
    assert before is not None
    assert cut is not None
    for topic, ends in planned.kafka_ends().items():
        for partition, end in ends.items():
            start = before.kafka_ends()[topic][partition]
            assert cut.kafka_ends()[topic][partition] == start + (end - start) // 2
    assert (cut.watermark, cut.timestamp, cut.conf) == (planned.watermark, planned.timestamp, planned.conf)
    restarts(patient, batches=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failpoint", "expected", "remaining"),
    [
        ("after-pre-commit", {"stale-lease", "open-transaction"}, set()),
        (
            "after-end-transaction",
            {"stale-lease", "batch-not-recorded-by-spark"},
            {"batch-not-recorded-by-spark"},
        ),
    ],
)
def test_what_a_killed_driver_leaves_is_told_and_mended_and_everything_is_written_once(
    world: World, failpoint: str, expected: set[str], remaining: set[str]
) -> None:
    world.send(1500)
    driver = world.start(failpoints=f"{failpoint}:batch=2")
    assert driver.wait() == -9, driver.output()[-3000:]
    examination = examine(world.pipeline, world.config, None)
    assert {finding.name for finding in examination.findings} == expected, examination.findings
    examination = examine(world.pipeline, world.config, None, fix=True)
    assert {finding.name for finding in examination.findings} == remaining, examination
    assert examination.is_healthy
    again = world.start()
    assert again.wait() == 0, again.output()[-3000:]
    check_counts(world)
    assert examine(world.pipeline, world.config, None).findings == []


class ExaminedDriver(StoppingDriver):
    """Has the doctor look at its pipeline while it runs, in the middle of its batches."""

    found: ClassVar[list[Any]] = []

    def _on_commit(self, record: CommitRecord, seconds: float, before: bool) -> None:
        super()._on_commit(record, seconds, before)
        if len(self.found) < 2:
            self.found.append(examine(self._pipeline.name, self._options.config, None, fix=True))


def test_nothing_is_wrong_with_a_healthy_pipeline_that_runs(patient: Patient, clinic: Bench) -> None:
    rounds = clinic.input()
    for _ in range(3):
        rounds.send(patient.case.topics)
    ExaminedDriver.found.clear()
    patient.case.run(driver=ExaminedDriver)
    assert [(examination.findings, examination.done, examination.refused) for examination in ExaminedDriver.found] == [
        ([], [], [])
    ] * 2
    check_content(patient.case)
    patient.keep()


def wrong(case: Case) -> list[Any]:
    """Return what is found of a pipeline besides that it has left out late rows, which some shapes' input has."""
    return [finding for finding in ask(case)[1]["findings"] if finding["name"] != "late-rows"]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_wrong_with_any_shape_of_pipeline_nor_after_a_restore(clinic: Bench, shape: str) -> None:
    topics, rounds = clinic.topics(shape), clinic.input()
    case = clinic.case(shape, topics, limit=ROWS_A_BATCH)
    for _ in range(4):
        rounds.send(topics)
    case.run(stop_at=2)
    assert wrong(case) == []
    saved = case.save()
    case.run()
    assert wrong(case) == []
    case.restore(saved)
    assert wrong(case) == []
    case.run()
    assert wrong(case) == []


@pytest.mark.parametrize(
    ("machine", "is_here"),
    [(process_identity.this_machine(), True), (f"another {process_identity.this_machine()}", False), ("", True)],
    ids=["of this machine", "of a machine of the same name", "of release 0.1.0"],
)
def test_a_superseded_driver_that_still_lives_is_found_and_another_machines_process_is_not_taken_for_it(
    kafka_config: Mapping[str, str], make_topic: Any, machine: str, is_here: bool
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            with CraftedPipeline(kafka_config, f"p-{make_topic()}", make_topic(partitions=2)) as crafted:
                time.sleep(0.05)
                now = int(time.time() * 1000) + 1000
                crafted.claim(pid=process.pid, host=socket.gethostname(), machine=machine, claimed=now)
                crafted.claim(pid=faults.dead_pid(), host=socket.gethostname(), claimed=now)
                crafted.commit(rows_of(0))
                crafted.settle()
                findings = examine(crafted.pipeline, kafka_config, None).findings
        finally:
            process.kill()
    sentences = {finding.name: finding.what for finding in findings}
    assert ("two-drivers" in sentences) is is_here
    assert not is_here or str(process.pid) in sentences["two-drivers"]


def test_transactions_that_nobody_will_end_are_told_and_the_pipelines_own_is_ended(
    kafka_config: Mapping[str, str], make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_SILENT_SECONDS", 0.0)
    with CraftedPipeline(kafka_config, f"p-{make_topic()}", make_topic(partitions=2)) as crafted:
        crafted.claim()
        crafted.commit(rows_of(0))
        crafted.settle()
        own = crafted.session.producer
        for producer in (replace(own, epoch=own.epoch + 1), replace(own, id=own.id + 1_000_000)):
            faults.leave_hanging(kafka_config, crafted.client, crafted.sink, producer)
        examination = examine(crafted.pipeline, kafka_config, None)
        hanging = [finding for finding in examination.findings if finding.name == "hanging-transaction"]
        assert {finding.fixable for finding in hanging} == {True, False}
        examination = examine(crafted.pipeline, kafka_config, None, fix=True)
        assert [name for name, _ in examination.done] == ["hanging-transaction"]
        (left,) = [finding for finding in examination.findings if finding.name == "hanging-transaction"]
        assert str(own.id + 1_000_000) in left.what


@pytest.mark.slow
def test_input_topics_and_ledger_that_are_lost_one_after_the_other_are_told(clinic: Bench) -> None:
    case = healthy(clinic)
    source, config = case.topics[""], dict(case.config)
    admin = AdminClient(dict(config))

    def keep_from(offset: int) -> None:
        place = TopicPartition(source, 1, offset)
        admin.delete_records([place])[place].result(30)

    keep_from(75)  # the second savepoint needs offsets from 80 on, the first from 40
    code, body = ask(case)
    assert (code, names(body)) == (0, {"old-savepoint-useless"})
    keep_from(85)
    assert names(ask(case)[1]) == {"old-savepoint-useless", "savepoint-input-gone"}
    _, body = ask(case, "--fix")
    assert [repair["name"] for repair in body["mended"]] == ["savepoint-input-gone"]
    assert names(body) == {"old-savepoint-useless"}
    rounds = clinic.input()
    rounds.send(case.topics)
    newest = case.home.current()
    assert newest is not None
    Checkpoint(case.home.checkpoint(newest.id)).removal("commits", 5)()
    Checkpoint(case.home.checkpoint(newest.id)).removal("offsets", 5)()
    Checkpoint(case.home.checkpoint(newest.id)).removal("commits", 4)()
    keep_from(125)
    assert {"replay-impossible", "unread-input-gone"} <= names(ask(case)[1])

    producer = Producer(config)
    producer.produce(ledger_topic(case.name), key=b"commit/7", value=b"garbage")
    producer.flush(30)
    assert {"ledger-unreadable"} <= names(ask(case, home=case.home.path)[1])
    for topic in (source, ledger_topic(case.name)):
        admin.delete_topics([topic])[topic].result(30)
    eventually(lambda: {"ledger-deleted"} <= names(ask(case, home=case.home.path)[1]), "the topics' deletion shows")


def test_a_ledger_that_contradicts_itself_is_told(kafka_config: Mapping[str, str], make_topic: Any) -> None:
    with CraftedPipeline(kafka_config, f"p-{make_topic()}", make_topic(partitions=2)) as crafted:
        crafted.claim()
        crafted.commit(rows_of(0))
        crafted.commit(rows_of(1), commit=3)
        crafted.settle()
        examination = examine(crafted.pipeline, kafka_config, None)
    sentences = {finding.name: finding.what for finding in examination.findings}
    assert "commits 2 to 2 are not in the ledger" in sentences["ledger-contradicts-itself"]


@pytest.mark.slow
def test_history_that_the_ledger_has_lost_is_told_and_a_new_savepoint_does_without_it(clinic: Bench) -> None:
    case = healthy(clinic)
    clinic.input().send(case.topics)
    case.run()
    ledger = ledger_topic(case.name)
    admin, place = AdminClient(dict(case.config)), TopicPartition(ledger, 0, case.tail().claim_offset)
    with faults.setting(case.config, ledger, cleanup_policy="delete"):
        admin.delete_records([place])[place].result(30)
    ledger_topics.repair(case.config, case.name)
    _, body = ask(case)
    assert names(body) == {"savepoint-history-gone", "old-savepoint-useless", "ledger-contradicts-itself"}
    _, body = ask(case, "--fix")
    assert [repair["name"] for repair in body["mended"]] == ["savepoint-history-gone"]
    assert names(body) == {"old-savepoint-useless", "ledger-contradicts-itself"}


def test_input_that_expires_unread_and_a_topic_that_is_gone_or_was_made_again_are_told(clinic: Bench) -> None:
    topics, rounds = clinic.topics("stateless"), clinic.input()
    case = clinic.case("stateless", topics)
    rounds.send(topics)
    case.run()
    assert names(ask(case)[1]) == set()
    hour = 3_600_000
    producer = Producer(dict(case.config))
    producer.produce(topics[""], b"{}", partition=1, timestamp=int(time.time() * 1000) - hour)
    producer.flush(30)
    with faults.setting(case.config, topics[""], retention_ms=str(hour + 120_000)):
        assert names(ask(case)[1]) == {"unread-input-expiring"}
    admin = AdminClient(dict(case.config))
    admin.delete_topics([case.sink])[case.sink].result(30)
    assert names(ask(case)[1]) == {"topic-missing"}
    admin.create_topics([NewTopic(case.sink, 2, 1)])[case.sink].result(30)
    assert names(ask(case)[1]) == {"topic-recreated"}
