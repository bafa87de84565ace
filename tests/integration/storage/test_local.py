"""What a local file system has to have."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import Stored
from tests.flushed_names import FlushedNames
from tests.integration.storage.conftest import lose_answers
from tests.waiting import eventually


def test_a_file_system_without_hard_links_and_without_locks_is_refused_when_a_home_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(os, "link", no_links)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", no_locks)
        with pytest.raises(RefusedError, match="neither hard links nor locks"):
            Home(tmp_path / "home").create("shop")
        assert list((tmp_path / "home").iterdir()) == []
    Home(tmp_path / "home").create("shop")
    assert Home(tmp_path / "home").pipeline() == "shop"


def test_whether_a_home_can_be_made_is_seen_where_answers_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_answers(monkeypatch)
    Home(tmp_path / "home").check_can_be_made()
    assert list(tmp_path.iterdir()) == []


def test_a_home_has_the_files_that_it_always_had(tmp_path: Path) -> None:
    lineage = Home(tmp_path / "home").create("shop")
    files = {str(path.relative_to(tmp_path / "home")) for path in (tmp_path / "home").rglob("*") if path.is_file()}
    made = f"lineages/{lineage.id}"
    assert files == {"home.json", "current", f"{made}/lineage.json", f"{made}/checkpoint/metadata"}


def counting(place: Path) -> None:
    store = store_of(place)
    while True:
        stored = store.read(place)
        assert stored is not None
        number = int(stored.content[:8]) + 1
        store.replace_if(place, b"%08d" % number * 20_000, stored.version, durable=False)


def has_passed(place: Path, number: int) -> bool:
    return int(place.read_bytes()[:8]) > number


def test_a_process_that_is_killed_while_it_replaces_a_file_leaves_it_whole_and_lets_go(tmp_path: Path) -> None:
    place, store = tmp_path / "count.json", store_of(tmp_path)
    version, number = store.create(place, b"%08d" % 0 * 20_000), 0
    count = f"from pathlib import Path; from {__name__} import counting; counting(Path({str(place)!r}))"
    for _ in range(5):
        # No fork, which would have the locks of this process's other threads.
        process = subprocess.Popen([sys.executable, "-c", count], cwd=Path(__file__).parents[3])
        eventually(partial(has_passed, place, number + 3), "it counts", poll_seconds=0.001)
        process.kill()
        process.wait()
        stored = store.read(place)
        assert stored is not None
        number = int(stored.content[:8])
        assert stored.content == b"%08d" % number * 20_000
        version = store.replace_if(place, stored.content, stored.version)
    assert store.read(place) == Stored(content=b"%08d" % number * 20_000, version=version)


def test_a_directory_that_can_not_be_read_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    scan = os.scandir

    def refuse(place: Any) -> Any:
        if str(place).endswith("/a"):
            raise PermissionError(13, "no", str(place))
        return scan(place)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError):
        store_of(tmp_path).files(tmp_path)


def test_what_is_kept_of_a_directory_is_not_taken_for_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, folder = store_of(tmp_path), tmp_path / "savepoint"
    store.create(folder / "a" / "1", b"")

    def refuse(place: Any, **_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(place))

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(PermissionError):
            store.remove(folder)
    store.remove(folder)
    store.remove(folder)
    assert store.facts(folder) is None


def test_a_new_home_is_found_again_after_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = FlushedNames(tmp_path, monkeypatch)
    home = Home(tmp_path / "pipelines" / "shop" / "home")
    lineage = home.create("shop")
    with store_of(home.path).holding(home.path / "held" / "work"):
        store_of(home.path).create(home.path / "held" / "plan.json", b"{}")
    documents = {path for path in home.path.rglob("*") if path.is_file() and path.suffix != ".lock"}
    assert home.path / "held" / "plan.json" in documents and any(lineage.id in str(path) for path in documents)
    assert names.lost(documents) == set()
