"""``tests/unit`` mirrors what it tests, so that the tests of a module are found where its name says; all are quick."""

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


def has_owner(file: Path) -> bool:
    owner = file.with_name(file.stem.removeprefix("test_"))
    return any((root / owner).is_dir() or (root / owner).with_suffix(".py").is_file() for root in MIRRORED)


def test_each_file_of_tests_has_the_name_of_a_module_in_its_room() -> None:
    files = {file.relative_to(UNIT) for file in UNIT.rglob("test_*.py")}
    without = {str(file) for file in files if not has_owner(file)}
    assert without == PROJECT_WIDE | OF_A_ROOM


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
