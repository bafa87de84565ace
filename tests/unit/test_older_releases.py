"""What older releases have written, in ``tests/releases/<release>``, is read; and what a newer one might write is, too.

A document, record or trigger of a new kind needs a file that this release has written: the tests at the end fail until
it is there.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

import airflow_provider_exactlyonce
from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.backfill import progress, workspace
from airflow_provider_exactlyonce.checkpoint import job as jobs
from airflow_provider_exactlyonce.checkpoint import manifest
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import json_store, moving, releases, requests, restarts, status, upgrade_plan
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.drivers import FailureDetector
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.control.moving import Move
from airflow_provider_exactlyonce.control.releases import Release
from airflow_provider_exactlyonce.control.requests import TaskRequest
from airflow_provider_exactlyonce.control.status import ReplayReport
from airflow_provider_exactlyonce.control.stopping import StopRequest
from airflow_provider_exactlyonce.control.upgrade_plan import Plan
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger import ranges, records
from airflow_provider_exactlyonce.policies.termination import Bound, RunTarget
from airflow_provider_exactlyonce.streaming.driver.stop_condition import StopCondition
from airflow_provider_exactlyonce.streaming.sinks.iceberg.ledger import LedgerProperty
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.attempts import AttemptNote
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log import delivery
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.log import FileLog
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.storage import LocalStorage

ROOT = Path(airflow_provider_exactlyonce.__file__).parent
RELEASES = sorted((Path(__file__).parents[1] / "releases").iterdir())
TOKEN = "5b1e0c2a-8d2f-4f0e-9a35-0d6c1f7e2b10"
LINEAGE = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
VERSION = "5ad1e2f3a4b5"
MOVE = Move(source="/var/exactlyonce/shop-totals", target="s3://bucket/pipelines/shop-totals", lineage=LINEAGE, run=4)


@dataclass(frozen=True)
class Kind:
    """One kind of what is written.

    :param read: reads it as the package does, below a release's directory
    :param told: what was read as JSON values again, all that the release has written or more; or, for what is read by
        its keys, what ``read`` has to give
    """

    read: Callable[[Path], Any]
    told: Callable[[Any], Any] | object


def home(of: Path) -> Home:
    return Home(str(of / "home"))


def lineage(of: Path) -> Lineage:
    stored = home(of).lineage(LINEAGE)
    assert stored is not None
    return stored


def plan(of: Path) -> Plan:
    stored = upgrade_plan.read(home(of))
    assert stored is not None
    return stored


def release_of(of: Path) -> Release:
    stored = releases.read(home(of))
    assert stored is not None
    return stored


def log_record(kind: str, *, replaced: tuple[str, ...] = ()) -> Kind:
    """Return a record of a sink's log; what it names as replaced nobody needs any more."""

    def read(of: Path) -> Any:
        folder = of / "sinks" / "log"
        folder.mkdir(exist_ok=True)
        shutil.copy(of / "sinks" / f"log-{kind}.json", folder / f"{1:020d}.json")
        return FileLog(LocalStorage(str(of / "sinks")), "log").read(1)

    return Kind(read, lambda record: {**json.loads(record.encoded()), "replaced": list(replaced)})


def record(name: str) -> Kind:
    return Kind(
        lambda of: records.decode((of / "ledger" / f"{name}.json").read_bytes()),
        lambda stored: json.loads(records.encode(stored)),
    )


def request(name: str) -> Kind:
    return Kind(
        lambda of: workspace.asked_of(Home(str(of / "home/backfills" / name))),
        # The home is the one that it is in, wherever that was when it was asked for.
        lambda asked: {**asdict(asked), "home": "/var/exactlyonce/shop-totals", "request": asked.request.to_json()},
    )


def stop_target(of: Path) -> str | None:
    looks_once = FailureDetector(home(of), waits=False)
    return StopRequest(home(of), "0f1e2d3c4b5a6978", reason="", detector=looks_once).target()


def goal(of: Path) -> str | None:
    stop_goal = StopCondition(home(of), RunTarget(bound=Bound.COMMITS, value=1.0), "aa11")
    stop_goal.begin(0)
    return stop_goal.reached(27, 0)


def task(of: Path, clears: int) -> str:
    return TaskRequest(home(of), ("shop_totals", "save", "run-1", "-1"), clears=clears).name


def savepoint(name: str) -> Kind:
    return Kind(lambda of: Savepoints(home(of).savepoints).get(name), manifest.encode)


#: What is written, by the file of it.
KINDS: dict[str, Kind] = {
    "home/home.json": Kind(
        lambda of: (home(of).identity(), home(of).pipeline()), ("3f333df6-90a4-4fda-8dd3-9485d27cee36", "shop-totals")
    ),
    "home/current": Kind(lambda of: home(of).current().id, LINEAGE),  # type: ignore[union-attr]
    "moved/home.json": Kind(lambda of: moving.document(of / "moved"), codec.dump),
    "moved/current": Kind(lambda of: moving.sealed(of / "moved"), MOVE),
    f"home/lineages/{LINEAGE}/lineage.json": Kind(lineage, lambda stored: {**stored.document(), "last_commit": 17}),
    f"home/lineages/{LINEAGE}/progress.json": Kind(lambda of: lineage(of).last_commit, 21),
    f"home/lineages/{LINEAGE}/replay.json": Kind(
        lambda of: json_store.load(home(of).lineages / LINEAGE / "replay.json", ReplayReport), codec.dump
    ),
    f"home/lineages/{LINEAGE}/jobs/{VERSION}.json": Kind(
        lambda of: jobs.read(home(of), LINEAGE, VERSION),
        lambda job: {**asdict(job), "plan": {"schema": 1, **asdict(job.plan)}},
    ),
    "home/control/lease.json": Kind(lambda of: leases.read(home(of).lease), codec.dump),
    "home/control/status.json": Kind(lambda of: status.read(home(of).status), codec.dump),
    f"home/control/commands/account-{TOKEN}.json": Kind(
        lambda of: status.read(home(of).final_status_path(TOKEN)), codec.dump
    ),
    "home/control/intent.json": Kind(lambda of: intents.read(home(of).intent), codec.dump),
    "home/control/restarts.json": Kind(
        lambda of: restarts.read(home(of).restarts),
        lambda stored: {"restarts": [codec.dump(restart) for restart in stored]},
    ),
    "home/control/upgrade.json": Kind(plan, lambda stored: stored.document()),
    "home/control/commands/stop.json": Kind(lambda of: requests.stop_requested(home(of), TOKEN), "exactlyonce stop"),
    f"home/control/commands/killed-{TOKEN}.json": Kind(
        lambda of: requests.killed_by(home(of), TOKEN), "shop_totals/stream/run-1/-1"
    ),
    "home/control/commands/savepoint-0f1e2d3c.json": Kind(
        lambda of: requests.savepoint_requests(home(of), TOKEN)[0], codec.dump
    ),
    "home/control/commands/savepoint-0f1e2d3d.done.json": Kind(
        lambda of: requests.savepoint_answer(home(of), "0f1e2d3d"), codec.dump
    ),
    "home/control/commands/savepoint-0f1e2d3e.done.json": Kind(
        lambda of: requests.savepoint_answer(home(of), "0f1e2d3e"), codec.dump
    ),
    "home/control/commands/stop-0f1e2d3c4b5a6978.json": Kind(stop_target, TOKEN),
    "home/control/commands/task-ec118760f41ff305.json": Kind(
        lambda of: task(of, 2) == task(of, 0) != task(of, 3), True
    ),
    "home/control/commands/goal-aa11.json": Kind(goal, "commit 27 is there"),
    "home/release.json": Kind(release_of, codec.dump),
    f"home/applications/{VERSION}/release.json": Kind(
        lambda of: releases.application(home(of), VERSION),
        lambda known: {"path": known.path, "job_hash": known.job_hash},
    ),
    "home/savepoints/12-0f1e2d3c/manifest.json": savepoint("12-0f1e2d3c"),
    "home/savepoints/9-00aa11bb/manifest.json": Kind(
        savepoint("9-00aa11bb").read, lambda stored: {**manifest.encode(stored), "schema": 1}
    ),
    "home/savepoints/20-00000001/taking.json": Kind(
        lambda of: "20-00000001" in Savepoints(home(of).savepoints).leftovers(), False
    ),
    "home/savepoints/20-00000002/deleting.json": Kind(
        lambda of: "20-00000002" in Savepoints(home(of).savepoints).leftovers(), True
    ),
    "home/backfills/identity.json": Kind(
        lambda of: workspace.make(
            home(of), "shop-totals", workspace.asked_of(Home(str(of / "home/backfills/time"))).request
        ).identity(),
        "a987fbc9-4bed-4078-8f07-9141ba07c9f3",
    ),
    "home/backfills/commits/home.json": Kind(
        lambda of: Home(str(of / "home/backfills/commits")).pipeline(), "shop-totals.backfill"
    ),
    **{f"home/backfills/{name}/request.json": request(name) for name in ("commits", "offsets", "time", "watermark")},
    "home/backfills/commits/resolved.json": Kind(
        lambda of: workspace.begun(Home(str(of / "home/backfills/commits"))),
        lambda begun: {**asdict(begun), "resolved": begun.resolved.to_json()},
    ),
    "home/backfills/commits/result.json": Kind(
        lambda of: workspace.result_of(Home(str(of / "home/backfills/commits")))["rows"],  # type: ignore[index]
        120,
    ),
    f"home/backfills/commits/lineages/{LINEAGE}/steps.json": Kind(
        lambda of: progress.read(Checkpoint(of / "home/backfills/commits/lineages" / LINEAGE / "checkpoint")),
        None,  # it lacks the step of each batch: what is written already is found in the ledger
    ),
    f"home/backfills/time/lineages/{LINEAGE}/steps.json": Kind(
        lambda of: progress.read(Checkpoint(of / "home/backfills/time/lineages" / LINEAGE / "checkpoint")), codec.dump
    ),
    "home/backfills/ledger.json": Kind(
        lambda of: workspace.known_ledger(Home(str(of / "home/backfills/commits"))), asdict
    ),
    **{
        f"ledger/{name}.json": record(name)
        for name in ("commit", "commit-at-least-once", "backfill", "backfill-end", "run")
    },
    "sinks/entry.json": Kind(
        lambda of: SinkEntry.from_json((of / "sinks/entry.json").read_text()), lambda entry: json.loads(entry.to_json())
    ),
    **{f"sinks/log-{kind}.json": log_record(kind) for kind in ("claim", "commit")},
    "sinks/log-compaction.json": log_record("compaction", replaced=("day=2026-01-01/part-9.parquet",)),
    "sinks/delta-note.json": Kind(
        lambda of: AttemptNote.decoded((of / "sinks/delta-note.json").read_bytes(), "delta-note.json"),
        lambda note: json.loads(note.encoded()),
    ),
    "sinks/iceberg-note.json": Kind(
        lambda of: AttemptNote.decoded((of / "sinks/iceberg-note.json").read_bytes(), "iceberg-note.json"),
        lambda note: json.loads(note.encoded()),
    ),
    "sinks/iceberg-property.json": Kind(
        lambda of: LedgerProperty.decoded((of / "sinks/iceberg-property.json").read_text(), "iceberg-property.json"),
        lambda stored: json.loads(stored.encoded()),
    ),
    "sinks/delivered.json": Kind(lambda of: delivery.read_note(LocalStorage(str(of)), "sinks"), asdict),
    "assets/range.json": Kind(
        lambda of: ranges.CommittedRange.parse(json.loads((of / "assets/range.json").read_text())),
        lambda stored: stored.to_json(),
    ),
    "assets/cut.json": Kind(
        lambda of: ranges.Cut.parse(json.loads((of / "assets/cut.json").read_text())), lambda stored: stored.to_json()
    ),
}
#: Files that are no documents: a job's, and Spark's own.
OTHERS = (f"home/applications/{VERSION}/shop_totals.py", f"home/lineages/{LINEAGE}/checkpoint/metadata")
#: Whole directories of sinks, which their own tests go on with.
WHOLE = ("triggers/", "file-sink/", "write-ahead-log/")
#: What is read and written again, so that fields of a newer release have to stay in it.
REWRITTEN: dict[str, Callable[[Path], object]] = {
    f"home/lineages/{LINEAGE}/lineage.json": lambda of: home(of).remember(lineage(of)),
    "home/control/upgrade.json": lambda of: upgrade_plan.write(home(of), plan(of), before=plan(of)),
    "home/release.json": lambda of: releases.write(home(of), release_of(of), releases.stored(home(of))),
    "home/savepoints/12-0f1e2d3c/manifest.json": lambda of: pin(of, "12-0f1e2d3c"),
}


def pin(release: Path, savepoint: str) -> None:
    savepoints = home(release).savepoints
    (savepoints / savepoint / "checkpoint").mkdir()
    (savepoints / savepoint / "checkpoint" / "metadata").touch()  # of its bytes the releases here have none
    Savepoints(savepoints).pin(savepoint)


@pytest.fixture(params=RELEASES, ids=lambda folder: folder.name)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of what one release has written, just now: what is left for a day counts as nobody's."""
    copy = Path(shutil.copytree(request.param, tmp_path / "release"))
    for place in (copy, *copy.rglob("*")):
        os.utime(place)
    return copy


def changed(file: Path, **fields: Any) -> None:
    """Write fields into a document, which may have a checksum, or into a record."""
    body = json.loads(file.read_text())
    if body.pop("checksum", None) is None:
        file.write_text(json.dumps({**body, **fields}))
    else:
        json_store.write(file, {**body, **fields})


def body_of(file: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(file.read_text())
    body.pop("checksum", None)
    return body


def kept_of(read_back: Any, written: Any) -> Any:
    """Return what is told of what was written: later releases have added fields, at any depth."""
    if isinstance(read_back, dict) and isinstance(written, dict):
        return {name: kept_of(read_back[name], value) for name, value in written.items() if name in read_back}
    if isinstance(read_back, list) and isinstance(written, list) and len(read_back) == len(written):
        return [kept_of(read_part, written_part) for read_part, written_part in zip(read_back, written, strict=True)]
    return read_back


@pytest.mark.parametrize("name", KINDS)
def test_what_an_older_release_has_written_is_read_whole(release: Path, name: str) -> None:
    written, kind = body_of(release / name), KINDS[name]
    stored = kind.read(release)
    if not callable(kind.told):
        assert stored == kind.told
        return
    read_back = json.loads(json.dumps(kind.told(stored)))
    expected = {name: value for name, value in written.items() if name != "schema" or name in read_back}
    assert kept_of(read_back, expected) == expected


@pytest.mark.parametrize("name", KINDS)
def test_a_field_of_a_newer_release_changes_nothing_of_what_is_read(release: Path, name: str) -> None:
    before = KINDS[name].read(Path(shutil.copytree(release, release.with_name("before"))))
    changed(release / name, of_a_newer_release={"depth": [1, {"a": None}]})
    after = KINDS[name].read(release)
    moved = json.loads(json.dumps(str(before)).replace("/before/", "/release/"))
    assert str(after) == moved


#: What has no schema: in Airflow's own store, a mark whose being there says all, what is not written any more.
UNNUMBERED = (
    "assets/cut.json",
    "assets/range.json",
    "home/savepoints/20-00000002/deleting.json",
    "sinks/delivered.json",
)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in UNNUMBERED])
def test_a_newer_schema_is_refused_by_name(release: Path, name: str) -> None:
    changed(release / name, schema=99)
    with pytest.raises(RefusedError, match=r"is of schema 99, and this release .* reads .*or a newer one") as refused:
        KINDS[name].read(release)
    named = (
        "ledger record of",
        "sink's entry of commit 21",
        "savepoint 12-0f1e2d3c",
        Path(name).name,
        f"{1:020d}.json",
    )
    assert any(part in str(refused.value) for part in named)


@pytest.mark.parametrize("name", REWRITTEN)
def test_an_older_release_that_writes_a_document_again_keeps_what_it_does_not_know(release: Path, name: str) -> None:
    more = {"of_a_newer_release": {"depth": [1, {"a": None}]}}
    changed(release / name, **more)
    before = body_of(release / name)
    REWRITTEN[name](release)
    assert body_of(release / name) == {**before, **more, **({"last_commit": 21} if "last_commit" in before else {})}


def test_an_upgrade_that_an_older_release_goes_on_with_keeps_a_newer_releases_options(release: Path) -> None:
    file = release / "home/control/upgrade.json"
    changed(file, options={**body_of(file)["options"], "canary": 3})
    upgrade_plan.write(home(release), plan(release), before=plan(release))
    assert body_of(file)["options"]["canary"] == 3


def test_a_death_that_an_older_release_records_keeps_what_a_newer_one_said_of_those_before(release: Path) -> None:
    file = release / "home/control/restarts.json"
    entries = [{**restart, "blamed": "disk"} for restart in body_of(file)["restarts"]]
    changed(file, restarts=entries)
    restarts.append(home(release).restarts, restarts.read(home(release).restarts)[0])
    expected = [*entries, entries[0]]
    assert kept_of(body_of(file)["restarts"], expected) == expected


def test_a_field_that_is_missing_or_of_another_type_is_named(tmp_path: Path) -> None:
    json_store.write(tmp_path / "lease.json", {"pipeline": "shop", "token": 7})
    with pytest.raises(RefusedError, match=r"lease\.json can't be read: .*token"):
        leases.read(tmp_path / "lease.json")


@pytest.mark.parametrize("schema", [0, -1, "1", 1.5, None, True])
def test_a_schema_that_is_no_number_of_ours_is_refused(tmp_path: Path, schema: object) -> None:
    json_store.write(tmp_path / "home.json", {"schema": schema, "id": "a", "pipeline": "shop"})
    with pytest.raises(RefusedError, match="is of schema"):
        Home(str(tmp_path)).identity()


def test_every_trigger_that_an_older_release_has_stored_is_made_again(release: Path) -> None:
    for file in (release / "triggers").iterdir():
        stored = json.loads(file.read_text())
        module, _, name = stored["classpath"].rpartition(".")
        classpath, arguments = getattr(importlib.import_module(module), name)(**stored["arguments"]).serialize()
        assert classpath == stored["classpath"]
        assert arguments.items() >= stored["arguments"].items()


def test_every_file_of_a_release_has_a_reader(release: Path) -> None:
    files = {str(file.relative_to(release)) for file in release.rglob("*") if file.is_file()}
    assert {name for name in files if not name.startswith(WHOLE)} <= {*KINDS, *OTHERS}


#: Where a document is written, by the part of the fixtures that has it; None where only the process that wrote it, or
#: one that it has started, reads it.
WRITTEN: Mapping[str, str | None] = {
    "doctor.repairs._identity": "home/home.json",
    "streaming.replay.replay.write_report": "replay.json",
    "streaming.commit.run.rebase": "lineage.json",
    "streaming.driver.stop_condition.begin": "goal-",
    "backfill.progress.write": "steps.json",
    "backfill.workspace.adopt": "backfills/identity.json",
    "backfill.workspace.note_ledger": "backfills/ledger.json",
    "backfill.workspace.make": "backfills/identity.json",
    "backfill.workspace.begin": "resolved.json",
    "backfill.workspace.write_result": "result.json",
    "control.home.use": "current",
    "control.home.switch": "current",
    "control.home.create": "home.json",
    "control.home.remember": "lineage.json",
    "control.home.note_commit": "progress.json",
    "control.moving.begin": "moved/home.json",
    "control.moving.finish": "moved/home.json",
    "control.moving.seal": "moved/current",
    "control.requests.request_stop": "stop.json",
    "control.requests.note_killed": "killed-",
    "control.requests.request_savepoint": "savepoint-0f1e2d3c.json",
    "control.requests.answer_savepoint": ".done.json",
    "control.requests._write": "task-",
    "control.status.write": "status.json",
    "control.restarts._change": "restarts.json",
    "control.intent.announce": "intent.json",
    "control.intent.confirm": "intent.json",
    "control.intent.write": "intent.json",
    "control.upgrade_plan.write": "upgrade.json",
    "control.stopping._record": "stop-",
    "control.releases.write": "home/release.json",
    "control.releases.keep": "applications/",
    "control.lease.acquire": "lease.json",
    "control.lease.take_over": "lease.json",
    "control.lease.sure": "lease.json",
    "control.lease.renew": "lease.json",
    "upgrade.shadow_main.main": None,
    "upgrade.shadow_run.run": None,
    "checkpoint.savepoints.take": "taking.json",
    "checkpoint.savepoints.copying": "taking.json",
    "checkpoint.savepoints.pin": "manifest.json",
    "checkpoint.savepoints._write": "manifest.json",
    "checkpoint.savepoints._delete": "deleting.json",
    "checkpoint.savepoints._remove": "deleting.json",
    "checkpoint.job.write": "jobs/",
    "checkpoint.lineages.make": "lineage.json",
}
#: The dataclasses that are made of what was stored, by the part of the fixtures that has them.
LOADED: Mapping[str, str | None] = {
    "LogRecord": "log-",
    "AttemptNote": "-note.json",
    "LedgerProperty": "iceberg-property",
    "SinkEntry": "entry.json",
    "DeliveryProgress": "delivered.json",
    "BackfillProgress": "steps.json",
    "LedgerSeen": "backfills/ledger.json",
    "Intent": "intent.json",
    "ClaimRecord": "ledger/run.json",
    "CommitRecord": "ledger/commit.json",
    "Cut": "cut.json",
    "Lineage": "lineage.json",
    "HomeDocument": "home.json",
    "Move": "moved/current",
    "SavepointRequest": "savepoint-0f1e2d3c.json",
    "SavepointAnswer": ".done.json",
    "Status": "status.json",
    "RecordedRestarts": "restarts.json",
    "Plan": "upgrade.json",
    "_DriverToStop": "stop-",
    "Release": "home/release.json",
    "Lease": "lease.json",
    "JobDescription": "jobs/",
    "Savepoint": "manifest.json",
    "_Taker": "taking.json",
    "QueryPlan": "manifest.json",
    "SavedRequest": "backfills/commits/request.json",
    "StartedBackfill": "resolved.json",
    "ShadowRequest": None,
}


def calls(name: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of ``module.function`` in the package, with the function that makes them."""
    for file in sorted(ROOT.rglob("*.py")):
        module, text = ".".join(file.relative_to(ROOT).with_suffix("").parts), file.read_text()
        for function in ast.walk(ast.parse(text)) if name in text else ():
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                        yield f"{module}.{function.name}", node


def has_fixture(part: str | None) -> bool:
    return part is None or any(part in name for name in KINDS)


def test_every_place_that_writes_a_document_has_a_fixture_of_it() -> None:
    places = {place for name in ("write", "change", "overwrite", "swap") for place, _ in calls(f"json_store.{name}")}
    assert places == set(WRITTEN), "add what it writes to tests/releases, and to KINDS and WRITTEN"
    assert all(map(has_fixture, WRITTEN.values()))


def test_every_class_that_is_read_from_what_was_stored_has_a_fixture() -> None:
    read = [call.args[0] for _, call in calls("codec.load")] + [call.args[1] for _, call in calls("json_store.load")]
    read += [call.args[1] for name in ("change", "remove") for _, call in calls(f"json_store.{name}")]
    names = {ast.unparse(node) for node in read} - {"kind", "cls"}
    assert names <= set(LOADED), "add what it is read from to tests/releases, and to KINDS and LOADED"
    assert all(map(has_fixture, LOADED.values()))


def test_every_trigger_has_a_fixture() -> None:
    declared = {
        node.name
        for file in (ROOT / "triggers").glob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Trigger") and node.name != "PollingTrigger"
    }
    stored = {file.stem for release in RELEASES for file in (release / "triggers").iterdir()}
    assert declared <= stored, "add what it is stored as to tests/releases/<this release>/triggers"
