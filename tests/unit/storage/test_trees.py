from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.trees import content_of, content_of_bytes, copy_file
from tests import memory_store


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
    monkeypatch.setattr(type(store_of(tmp_path)), "copy", lambda *places, **_: places[2].write_bytes(b"byteZ") and None)
    with pytest.raises(ExactlyOnceError, match="was written, and has Content"):
        copy_file(tmp_path / "a", tmp_path / "b")


def test_no_file_has_no_content(tmp_path: Path) -> None:
    assert content_of(tmp_path / "a") is None
