"""Faults that a doctor has to find: each is planted into a pipeline that was healthy."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka.admin import ResourceType

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.manifest import READABLE
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import json_store, lease, status
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.control.status import DriverError, DriverState, Status
from airflow_provider_exactlyonce.kafka import record_batch
from airflow_provider_exactlyonce.kafka.transaction import TransactionSession
from airflow_provider_exactlyonce.kafka.wire import Code, Producer, WireClient
from airflow_provider_exactlyonce.ledger import topic as ledger_topics
from airflow_provider_exactlyonce.ledger.records import ledger_topic, transactional_id
from tests.integration.streaming.replay.harness import Case
from tests.kafka_settings import setting as setting
from tests.waiting import eventually

OTHER_ID = "00000000-0000-4000-8000-00000000beef"


@dataclass
class Patient:
    """A healthy pipeline that is stopped, with a copy of its home.

    :param undo: what takes a fault back that isn't in the home
    """

    case: Case
    pristine: Path
    undo: list[Callable[[], object]]

    @property
    def home(self) -> Home:
        return self.case.home

    @property
    def lineage(self) -> Lineage:
        lineage = self.home.current()
        assert lineage is not None
        return lineage

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.home.checkpoint(self.lineage.id))

    @property
    def newest(self) -> int:
        """Spark's newest batch."""
        commit = self.checkpoint.newest_commit()
        assert commit is not None
        return commit

    @property
    def savepoint(self) -> str:
        """The newest savepoint."""
        return Savepoints(self.home.savepoints).list()[-1].id

    def only(self, pattern: str) -> Path:
        """Return a file of the checkpoint."""
        return sorted(self.checkpoint.path.glob(pattern))[0]

    def keep(self) -> None:
        """Take the home as it is now for the healthy one."""
        shutil.rmtree(self.pristine, ignore_errors=True)
        shutil.copytree(self.home.path, self.pristine)

    def heal(self) -> None:
        while self.undo:
            self.undo.pop()()
        shutil.rmtree(self.home.path, ignore_errors=True)
        shutil.copytree(self.pristine, self.home.path)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    """Change a byte of a file that others may share by a hard link."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()
    file.write_bytes(data)


def torn_commit(patient: Patient) -> None:
    truncate(patient.checkpoint.path / f"commits/{patient.newest}")


def empty_offsets(patient: Patient) -> None:
    (patient.checkpoint.path / f"offsets/{patient.newest}").write_bytes(b"")


def missing_offsets_before_the_newest(patient: Patient) -> None:
    (patient.checkpoint.path / f"offsets/{patient.newest - 1}").unlink()


def torn_state(patient: Patient) -> None:
    truncate(patient.only(f"state/0/0/{patient.newest + 1}_*.zip"))


def flipped_state(patient: Patient) -> None:
    flip(patient.only(f"state/0/1/{patient.newest + 1}_*.zip"))


def missing_table(patient: Patient) -> None:
    for table in patient.checkpoint.path.glob("state/0/0/SSTs/*.sst"):
        table.unlink()


def state_is_gone(patient: Patient) -> None:
    shutil.rmtree(patient.checkpoint.path / "state")


def checkpoint_is_gone(patient: Patient) -> None:
    shutil.rmtree(patient.checkpoint.path)


def all_state_is_gone(patient: Patient) -> None:
    state_is_gone(patient)
    shutil.rmtree(patient.home.savepoints)


def query_id_lost(patient: Patient) -> None:
    (patient.checkpoint.path / "metadata").unlink()


def query_id_torn(patient: Patient) -> None:
    truncate(patient.checkpoint.path / "metadata")


def foreign_checkpoint(patient: Patient) -> None:
    (patient.checkpoint.path / "metadata").write_text(json.dumps({"id": OTHER_ID}))


def older_backup(patient: Patient) -> None:
    """Put the checkpoint back to where it was three batches ago, and leave newer state behind."""
    for batch in range(patient.newest - 2, patient.newest + 1):
        patient.checkpoint.removal("commits", batch)()
        patient.checkpoint.removal("offsets", batch)()


def batch_not_noted(patient: Patient) -> None:
    patient.checkpoint.removal("commits", patient.newest)()


def other_offsets(patient: Patient) -> None:
    """Let the newest batch have ended elsewhere than the ledger says."""
    file = patient.checkpoint.path / f"offsets/{patient.newest}"
    version, header, line = file.read_text().split("\n", 2)
    ends = {topic: {p: end - 1 for p, end in of.items()} for topic, of in json.loads(line).items()}
    file.write_text("\n".join([version, header, json.dumps(ends)]))
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def ahead_of_the_ledger(patient: Patient) -> None:
    patient.home.remember(replace(patient.lineage, base_batch=patient.lineage.base_batch - 2))


def plan(patient: Patient, change: Callable[[str, dict[str, Any], str], str]) -> None:
    """Plan a batch after the newest, as a start that failed would."""
    text = (patient.checkpoint.path / f"offsets/{patient.newest}").read_text()
    version, header, line = text.split("\n", 2)
    file = patient.checkpoint.path / f"offsets/{patient.newest + 1}"
    file.write_text(change(version, json.loads(header), line))


def torn_plan(patient: Patient) -> None:
    plan(patient, lambda version, header, line: version)


def plan_with_another_source(patient: Patient) -> None:
    plan(patient, lambda version, header, line: "\n".join([version, json.dumps(header), line, line]))


def plan_with_another_topic(patient: Patient) -> None:
    plan(patient, lambda version, header, line: "\n".join([version, json.dumps(header), '{"other":{"0":1}}']))


def plan_with_another_backend(patient: Patient) -> None:
    def change(version: str, header: dict[str, Any], line: str) -> str:
        header["conf"]["spark.sql.streaming.stateStore.providerClass"] = "another"
        return "\n".join([version, json.dumps(header), line])

    plan(patient, change)


def plan_two_ahead(patient: Patient) -> None:
    plan(patient, lambda version, header, line: "\n".join([version, json.dumps(header), line]))
    file = patient.checkpoint.path / f"offsets/{patient.newest + 1}"
    shutil.copy(file, file.with_name(str(patient.newest + 2)))


def half_a_repartition(patient: Patient) -> None:
    def change(version: str, header: dict[str, Any], line: str) -> str:
        header["conf"]["spark.sql.shuffle.partitions"] = "7"
        return "\n".join([version, json.dumps(header), line])

    plan(patient, change)


def failed_start(patient: Patient) -> None:
    plan(patient, lambda version, header, line: "\n".join([version, json.dumps(header), line]))
    _failed(patient, "StreamingQueryException", "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] …", 1)


def failed_driver(patient: Patient) -> None:
    _failed(patient, "BadRecordError", "in-0 offset 7: it has no value", 67)


def batch_too_long(patient: Patient) -> None:
    def change(version: str, header: dict[str, Any], line: str) -> str:
        ends = {topic: {p: end + 9 for p, end in of.items()} for topic, of in json.loads(line).items()}
        return "\n".join([version, json.dumps(header), json.dumps(ends)])

    plan(patient, change)
    _failed(patient, "BatchTimedOutError", f"batch {patient.newest + 1} took longer than its transaction may", 68)


def _failed(patient: Patient, kind: str, message: str, code: int) -> None:
    claim = patient.case.tail().claim
    assert claim is not None
    failed_status = Status(
        pipeline=patient.case.name,
        token=claim.token,
        state=DriverState.FAILED,
        run=claim.run,
        lineage=patient.lineage.id,
        error=DriverError(kind=kind, decision="refuse", exit_code=code, message=message),
    )
    status.write(patient.home.status, failed_status)


def damaged_savepoint(patient: Patient) -> None:
    flip(next((patient.home.savepoints / patient.savepoint / "checkpoint").glob("state/0/0/SSTs/*.sst")))


def savepoint_without_a_file(patient: Patient) -> None:
    oldest = Savepoints(patient.home.savepoints).list()[0]
    (patient.home.savepoints / oldest.id / "checkpoint" / f"commits/{oldest.batch}").unlink()


def torn_manifest(patient: Patient) -> None:
    truncate(patient.home.savepoints / patient.savepoint / "manifest.json")


def unfinished_savepoint(patient: Patient) -> None:
    body = {"machine": process_identity.this_machine(), "pid": dead_pid(), "process_started": 1}
    json_store.write(patient.home.savepoints / "9-abcdef" / "taking.json", body)


def unfinished_verification(patient: Patient) -> None:
    body = {"machine": process_identity.this_machine(), "pid": dead_pid(), "process_started": 1}
    json_store.write(patient.home.savepoints / ".verify-abcdef" / "taking.json", body)


def unfinished_delete(patient: Patient) -> None:
    body = {"machine": process_identity.this_machine(), "pid": dead_pid(), "process_started": 1}
    json_store.write(patient.home.savepoints / patient.savepoint / "deleting.json", body)


def savepoint_ahead(patient: Patient) -> None:
    _change_manifest(patient, commit=99)


def savepoint_of_a_newer_release(patient: Patient) -> None:
    _change_manifest(patient, schema=99)


def savepoint_of_another(patient: Patient) -> None:
    _change_manifest(patient, pipeline="another")


def _change_manifest(patient: Patient, **changes: Any) -> None:
    file = patient.home.savepoints / patient.savepoint / "manifest.json"
    body = json_store.read(file, READABLE)
    assert body is not None
    json_store.write(file, {**body, **changes})


def unfinished_restore(patient: Patient) -> None:
    (patient.home.lineages / f".unfinished-{OTHER_ID}" / "checkpoint").mkdir(parents=True)


def torn_pointer(patient: Patient) -> None:
    truncate(patient.home.path / "current")


def missing_pointer(patient: Patient) -> None:
    (patient.home.path / "current").unlink()


def pointer_to_another_lineage(patient: Patient) -> None:
    patient.home.remember(replace(patient.lineage, id=OTHER_ID))
    patient.home.use(OTHER_ID)


def pointer_to_an_abandoned_lineage(patient: Patient) -> None:
    """Restore a savepoint, then point ``current`` back to where it pointed before."""
    before = patient.lineage.id
    patient.case.restore()
    patient.home.use(before)


def lost_lineage(patient: Patient) -> None:
    (patient.home.lineages / patient.lineage.id / "lineage.json").unlink()


def torn_home(patient: Patient) -> None:
    truncate(patient.home.path / "home.json")


def missing_home_document(patient: Patient) -> None:
    (patient.home.path / "home.json").unlink()


def home_of_another(patient: Patient) -> None:
    body = json_store.read(patient.home.path / "home.json")
    assert body is not None
    json_store.write(patient.home.path / "home.json", {**body, "pipeline": "another"})


def other_home(patient: Patient) -> None:
    body = json_store.read(patient.home.path / "home.json")
    assert body is not None
    json_store.write(patient.home.path / "home.json", {**body, "id": OTHER_ID})


def home_is_empty(patient: Patient) -> None:
    """Remove all that is in the home, as a volume does that is not mounted."""
    shutil.rmtree(patient.home.path)
    patient.home.path.mkdir()


def home_is_gone(patient: Patient) -> None:
    shutil.rmtree(patient.home.path)


def ledger_set_back(patient: Patient) -> None:
    patient.home.remember(replace(patient.lineage, last_commit=99))


def ledger_recreated(patient: Patient) -> None:
    patient.home.remember(replace(patient.lineage, ledger_topic_id="another"))


def another_cluster(patient: Patient) -> None:
    patient.home.remember(replace(patient.lineage, cluster_id="another"))


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def _lease(patient: Patient, **changes: Any) -> lease.Lease:
    held = lease.acquire(patient.home.lease, patient.case.name, "another", run=1)
    held = replace(held, **changes)
    json_store.write(patient.home.lease, asdict(held))
    return held


def stale_lease(patient: Patient) -> None:
    _lease(patient, pid=dead_pid())


def lease_of_a_lost_machine(patient: Patient) -> None:
    _lease(patient, machine="lost", host="lost", heartbeat=time.time() - 3600)


def frozen_driver(patient: Patient) -> None:
    _lease(patient, heartbeat=time.time() - 60)  # this very process does not renew it


def two_drivers(patient: Patient) -> None:
    """Let an older run go on to renew its lease beside the newest run in the ledger."""
    held, ended = _lease(patient), threading.Event()

    def renew() -> None:
        while not ended.wait(0.2):
            lease.renew(patient.home.lease, held)

    renewing = threading.Thread(target=renew)
    renewing.start()
    patient.undo += [renewing.join, ended.set]


def _set(patient: Patient, topic: str, **changes: str) -> None:
    _for_a_while(patient, setting(patient.case.config, topic, ResourceType.TOPIC, **changes))


def _for_a_while(patient: Patient, fault: AbstractContextManager[None]) -> None:
    fault.__enter__()
    patient.undo.append(lambda: fault.__exit__(None, None, None))


def unverified(config: Mapping[str, str]) -> AbstractContextManager[None]:
    """Let the broker take writes to partitions that are in no transaction."""
    return setting(config, "1", ResourceType.BROKER, transaction_partition_verification_enable="false")


def ledger_that_deletes(patient: Patient) -> None:
    _set(patient, ledger_topic(patient.case.name), cleanup_policy="delete", min_compaction_lag_ms="0")
    patient.undo.insert(0, lambda: ledger_topics.repair(patient.case.config, patient.case.name))


def sink_that_nobody_can_write(patient: Patient) -> None:
    _set(patient, patient.case.sink, min_insync_replicas="2")


def unclean_source(patient: Patient) -> None:
    _set(patient, patient.case.topics[""], unclean_leader_election_enable="true")


def source_that_lacks_replicas(patient: Patient) -> None:
    _set(patient, patient.case.topics[""], min_insync_replicas="2")


def broker_that_takes_late_writes(patient: Patient) -> None:
    _for_a_while(patient, unverified(patient.case.config))


def compacted_source(patient: Patient) -> None:
    _set(patient, patient.case.topics[""], cleanup_policy="compact")


def expiring_source(patient: Patient) -> None:
    first = patient.case.commits()[0]
    age = time.time() * 1000 - first.committed
    _set(patient, patient.case.topics[""], retention_ms=str(int(age * 1.2) + 5_000))


def source_that_is_nearly_full(patient: Patient) -> None:
    _set(patient, patient.case.topics[""], retention_bytes="2000")


def open_transaction(patient: Patient) -> None:
    """Leave a transaction of the pipeline open, as a driver does that was killed in mid batch."""
    _leave_open(patient, transactional_id(patient.case.name))


def foreign_transaction(patient: Patient) -> None:
    _leave_open(patient, f"somebody-{time.time_ns()}")


def _leave_open(patient: Patient, name: str) -> None:
    client = WireClient(dict(patient.case.config))
    session = TransactionSession(client, name, timeout_milliseconds=600_000)
    session.initialise()
    session.begin()
    session.write(patient.case.sink, 0, b"k", b"v")

    def end() -> None:
        session.initialise()
        client.close()

    patient.undo.append(end)


def leave_hanging(config: Mapping[str, str], client: WireClient, topic: str, producer: Producer) -> None:
    """Write as a straggler does of which its coordinator knows nothing."""
    body = record_batch.encode_few([(b"k", b"v")], int(time.time() * 1000))
    record = record_batch.with_header(body, producer_id=producer.id, epoch=producer.epoch, base_sequence=0)
    with unverified(config):
        eventually(
            lambda: client.produce("straggler", topic, {1: b"".join(record)})[1].code == Code.NONE,
            "the straggler writes",
        )
