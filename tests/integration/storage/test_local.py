"""What a local file system has to have."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError


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


def test_a_home_has_the_files_that_it_always_had(tmp_path: Path) -> None:
    lineage = Home(tmp_path / "home").create("shop")
    files = {str(path.relative_to(tmp_path / "home")) for path in (tmp_path / "home").rglob("*") if path.is_file()}
    made = f"lineages/{lineage.id}"
    assert files == {"home.json", "current", f"{made}/lineage.json", f"{made}/checkpoint/metadata"}
