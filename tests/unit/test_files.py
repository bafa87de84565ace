"""A file is replaced whole, or nothing has happened."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_exactlyonce import files


def test_readers_see_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with files.replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("durable", [True, False])
def test_after_an_error_all_is_as_before(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), files.replacing(path, durable=durable) as file:
        file.write("text")  # type: ignore[call-overload]
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("links", [True, False])
def test_what_must_be_new_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    def none(*_: object) -> None:
        raise PermissionError("a file system without hard links")

    if not links:
        monkeypatch.setattr(os, "link", none)
    path = tmp_path / "a"
    with files.replacing(path, exclusive=True) as file:
        file.write(b"first")
    with pytest.raises(FileExistsError), files.replacing(path, exclusive=True):
        pass
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a"]


def repeat_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each link be made, and be asked for again as NFS does whose answer was lost."""
    link = os.link

    def twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)


def test_a_link_that_is_made_though_its_answer_says_that_there_is_one_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat_links(monkeypatch)
    with files.replacing(tmp_path / "a", exclusive=True) as file:
        file.write(b"ours")
    assert (tmp_path / "a").read_bytes() == b"ours"
    assert os.listdir(tmp_path) == ["a"]
    with pytest.raises(FileExistsError), files.replacing(tmp_path / "a", exclusive=True):
        pass
    assert os.listdir(tmp_path) == ["a"]


def test_a_link_that_is_made_within_a_tick_of_the_file_system_s_clock_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat_links(monkeypatch)
    stat = os.stat

    def of_one_tick(path: Any) -> Any:
        return SimpleNamespace(st_nlink=stat(path).st_nlink, st_ctime_ns=0)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", of_one_tick)
        with files.replacing(tmp_path / "a", exclusive=True) as file:
            file.write(b"ours")
    assert (tmp_path / "a").read_bytes() == b"ours"


def wait_for_a_tick(folder: Path, file: Path) -> None:
    """Wait until what changes in a folder has a later time than a file."""
    probe = folder / "probe"
    probe.touch()
    while probe.stat().st_ctime_ns <= file.stat().st_ctime_ns:
        probe.touch()
    probe.unlink()


def test_a_link_that_is_made_and_replaced_before_its_answer_says_that_there_is_one_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def late(source: str, target: str) -> None:
        wait_for_a_tick(tmp_path, Path(source))
        link(source, target)
        with files.replacing(tmp_path / "a") as file:
            file.write(b"theirs")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with files.replacing(tmp_path / "a", exclusive=True) as file:
        file.write(b"ours")
    assert (tmp_path / "a").read_bytes() == b"theirs"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_rename_that_is_made_though_its_answer_says_that_there_is_nothing_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exclusive: bool
) -> None:
    replace = os.replace

    def twice(source: str, target: Path) -> None:
        replace(source, target)
        replace(source, target)

    def no_links(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "replace", twice)
    monkeypatch.setattr(os, "link", no_links)
    with files.replacing(tmp_path / "a", exclusive=exclusive) as file:
        file.write(b"ours")
    assert (tmp_path / "a").read_bytes() == b"ours"
    assert os.listdir(tmp_path) == ["a"]
    (tmp_path / "b").mkdir()
    with pytest.raises(FileNotFoundError), files.replacing(tmp_path / "b" / "c", exclusive=exclusive):
        shutil.rmtree(tmp_path / "b")


def test_a_file_that_somebody_removes_before_it_has_its_name_has_replaced_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(FileNotFoundError), files.replacing(tmp_path / "a"):
        next(tmp_path.glob(".a.*")).unlink()


def test_a_link_that_fails_for_another_reason_is_no_reason_to_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "link", broken)
    with pytest.raises(OSError, match="Input/output"), files.replacing(tmp_path / "a", exclusive=True):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_only_those_who_may_read_it(tmp_path: Path, mode: int) -> None:
    with files.replacing(tmp_path / "a", mode=mode):
        pass
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


def test_a_directory_is_made_so_that_it_is_found_after_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[tuple[Path, list[str]]] = []
    monkeypatch.setattr(files, "flush", lambda path: flushed.append((path, os.listdir(path))))
    files.make_directory(tmp_path / "a" / "b")
    assert flushed == [(tmp_path, ["a"]), (tmp_path / "a", ["b"])]
    files.make_directory(tmp_path / "a" / "b")
    assert len(flushed) == 2, "whoever made it has waited"
