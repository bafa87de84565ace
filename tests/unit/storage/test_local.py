from __future__ import annotations

import stat
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.storage.opening import LOCAL, store_of
from tests import memory_store


def test_files_below_a_symbolic_link_are_files_of_the_directory_as_for_who_reads_them(tmp_path: Path) -> None:
    elsewhere = tmp_path / "large disk"
    (elsewhere / "3-ab").mkdir(parents=True)
    (elsewhere / "3-ab/manifest.json").write_text("{}")
    home = tmp_path / "home"
    home.mkdir()
    (home / "savepoints").symlink_to(elsewhere)
    assert LOCAL.files(home) == ["savepoints/3-ab/manifest.json"]


def test_symbolic_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path)
    with pytest.raises(OSError, match="links"):
        LOCAL.files(tmp_path)


def test_two_links_to_one_directory_are_no_circle(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    (tmp_path / "home").mkdir()
    for name in ("a", "b"):
        (tmp_path / "home" / name).symlink_to(tmp_path / "there")
    assert set(LOCAL.files(tmp_path / "home")) == {"a/file", "b/file"}
    (tmp_path / "there" / "back").symlink_to(tmp_path / "home")
    with pytest.raises(OSError, match="links"):
        LOCAL.files(tmp_path / "home")


def test_a_copy_is_for_no_more_eyes_than_what_it_is_of(tmp_path: Path) -> None:
    (tmp_path / "secret").touch(0o600)
    LOCAL.copy(tmp_path / "secret", tmp_path / "copy")
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600


def test_a_copy_from_another_file_system_is_for_its_owner(tmp_path: Path) -> None:
    source = memory_store.folder() / "manifest.json"
    store_of(source).create(source, b"{}")
    tmp_path.chmod(0o755)  # the directory that was made for the home
    copy = tmp_path / "savepoints" / "manifest.json"
    LOCAL.copy(source, copy, of=store_of(source))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (copy, copy.parent)] == [0o600, 0o700]
