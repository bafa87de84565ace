from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.trees import content_of, content_of_bytes, copy_file
from tests import memory_store


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_all_files_are_listed_hidden_and_empty_ones_too(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "home" if kind == "local" else memory_store.folder()
    assert store_of(folder).files(folder) == []
    for name in ("b", "a/2", "a/.2.crc", "a/c/1", ".exactlyonce-1/probe", "a/.exactlyonce-lock-2/file"):
        store_of(folder).replace(folder / name, b"" if name == "b" else b"x")
    assert store_of(folder).files(folder) == ["a/.2.crc", "a/2", "a/c/1", "b"]
    assert store_of(folder).files(folder / "a") == [".2.crc", "2", "c/1"]


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


def test_a_file_is_copied_to_another_file_system_once(tmp_path: Path) -> None:
    source, target = tmp_path / "a", memory_store.folder() / "a"
    with pytest.raises(FileNotFoundError, match="is gone"):
        copy_file(source, target)
    source.write_bytes(b"bytes")
    assert copy_file(source, target) == (content_of_bytes(b"bytes"), True)
    assert copy_file(source, target) == (content_of_bytes(b"bytes"), False)
    source.write_bytes(b"other")
    assert copy_file(source, target) == (content_of_bytes(b"other"), True)
    assert copy_file(target, tmp_path / "back/a") == (content_of_bytes(b"other"), True)
    assert (tmp_path / "back/a").read_bytes() == b"other"


def test_a_copy_with_other_bytes_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"bytes")
    monkeypatch.setattr(
        type(store_of(tmp_path)), "copy", lambda self, source, target: target.write_bytes(b"byteZ") and None
    )
    with pytest.raises(ExactlyOnceError, match="was written, and has Content"):
        copy_file(tmp_path / "a", tmp_path / "b")


def test_no_file_has_no_content(tmp_path: Path) -> None:
    assert content_of(tmp_path / "a") is None
