"""``tests`` mirrors the package: the tests of a module are found where its name says. Those in ``unit`` are quick."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

import airflow_provider_exactlyonce
from tests import durations
from tests.unit.conftest import no_processes_and_no_sleep

UNIT: Final = Path(__file__).parent
INTEGRATION: Final = UNIT.with_name("integration")
REPOSITORY: Final = UNIT.parents[1]
#: Where the module, or the room, of a test may be.
MIRRORED: Final = (Path(airflow_provider_exactlyonce.__file__).parent, REPOSITORY, REPOSITORY / "tests")

#: Tests of the whole project.
PROJECT_WIDE: Final = {
    "test_concepts.py",
    "test_conventions.py",
    "test_import_rules.py",
    "test_layout.py",
    "test_moved_names.py",
    "test_older_releases.py",
    "test_options.py",
    "test_provider_info.py",
    "test_site.py",
}
#: Tests of several modules of their room.
OF_A_ROOM: Final = {
    "kafka/test_record_properties.py",
    "ledger/test_source_tables.py",
    "links/test_links.py",
    "operators/test_arguments.py",
    "operators/test_rendered.py",
    "state/test_shop.py",
    "streaming/sequencer/test_model.py",
}
#: Folders of tests of the whole, whatever their names; what is below them is in a room again.
SCENARIOS: Final = {".", "airflow", "brokers", "clusters", "compatibility", "protocol", "streaming"}
#: Tests with a real broker, Spark or Airflow that are of several modules of their room, and what they have in common.
OF_SEVERAL: Final = {
    "control": ("drivers that somebody else began or stops", {"other_hosts", "stop_requests", "takeover"}),
    "jars": ("a file that is built from the sources beside it", {"exclusive_files_jar"}),
    "kafka": (
        "requests as a real broker takes them, or while it fails",
        {
            *("ambiguity", "broker_lost", "encoder_roundtrip", "epochs", "expiry", "failing_requests", "fencing"),
            *("produce", "security", "write_rows"),
        },
    ),
    "ledger": ("a start beside a restore", {"start_and_restore"}),
    "operators": ("where an operator's driver and home are", {"bucket", "streaming_deferred", "two_workers"}),
    "storage": (
        "one contract on each store, and homes and checkpoints there",
        {
            *(
                "contract",
                "cost",
                "documents",
                "faults",
                "hdfs_from_airflow",
                "home_copy",
                "remote_home",
                "s3_from_airflow",
            ),
            *("savepoints", "spark_files"),
        },
    ),
    "streaming/commit": ("calls that fail between all steps of a commit", {"commit_in_doubt"}),
    "streaming/registry": ("both formats with a real registry", {"schema_registry"}),
    "streaming/replay": (
        "pipelines that are restored, run again, and compared with one that never was",
        {
            *("backfill", "crashes", "migration", "one_ahead", "recovery", "refusals", "restore", "spark_steering"),
            "variants",
        },
    ),
    "streaming/sinks": ("contracts of several sinks", {"beside_spark", "nested_columns", "own_sink", "retention"}),
    "streaming/sinks/delta": ("the contract of sinks, on this table", {"conformance", "history", "protocol", "table"}),
    "streaming/sinks/iceberg": (
        "the contract of sinks, on this table, in each catalog and store",
        {
            *("committer_states", "conformance", "expiry", "hdfs", "history", "protocol", "rest_catalog", "rows"),
            "table",
        },
    ),
    "streaming/sinks/postgres": ("the contract of sinks, on a server", {"conformance", "upsert"}),
    "upgrade": ("an upgrade between two clusters", {"source_clusters"}),
}


def has_owner(file: Path) -> bool:
    owner = file.with_name(file.stem.removeprefix("test_"))
    return any((root / owner).is_dir() or (root / owner).with_suffix(".py").is_file() for root in MIRRORED)


def test_each_file_of_tests_has_the_name_of_a_module_in_its_room() -> None:
    files = {file.relative_to(UNIT) for file in UNIT.rglob("test_*.py")}
    without = {str(file) for file in files if not has_owner(file)}
    assert without == PROJECT_WIDE | OF_A_ROOM


def test_each_file_of_tests_with_real_parts_has_the_name_of_a_module_in_its_room_or_is_of_several() -> None:
    files = {file.relative_to(INTEGRATION) for file in INTEGRATION.rglob("test_*.py")}
    without = {file for file in files if file.parent.as_posix() not in SCENARIOS and not has_owner(file)}
    assert without == {Path(room, f"test_{name}.py") for room, (_, names) in OF_SEVERAL.items() for name in names}


def test_each_recorded_time_is_of_a_test_file() -> None:
    files = {Path(nodeid.partition("::")[0]) for nodeid in durations.read()}
    assert {str(file) for file in files if not (REPOSITORY / file).is_file()} == set()


@pytest.mark.parametrize(
    "call",
    [
        lambda: subprocess.run(["true"], check=True),
        lambda: os.fork(),
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
        lambda: os.system("true"),
        lambda: time.sleep(0.001),
    ],
)
def test_a_unit_test_that_starts_a_process_or_sleeps_fails(call: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match="starts no process and never sleeps"):
        call()


def test_nor_do_its_threads() -> None:
    def sleep() -> None:
        with suppress(pytest.fail.Exception):  # which a thread tells nobody
            time.sleep(0.001)

    item: Any = SimpleNamespace()
    guard = no_processes_and_no_sleep(item)
    guard.__enter__()
    thread = threading.Thread(target=sleep, name="sleeper")
    thread.start()
    thread.join()
    with pytest.raises(pytest.fail.Exception, match="sleeper"):
        guard.__exit__(None, None, None)
