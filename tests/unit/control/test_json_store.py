from __future__ import annotations

import itertools
import stat
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.lease import Lease
from airflow_provider_exactlyonce.storage.local import LocalStore
from airflow_provider_exactlyonce.storage.store import ChangedError
from tests.clocks import StandingClock


def test_what_was_written_is_read(tmp_path: Path) -> None:
    json_store.write(tmp_path / "a" / "d.json", {"x": 1, "y": ["ü", None]})
    assert json_store.read(tmp_path / "a" / "d.json") == {"x": 1, "y": ["ü", None]}


def test_only_the_owner_can_read_it_and_no_temporary_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "control" / "d.json"
    json_store.write(path, {"secret": "s"})
    json_store.write(path, {"secret": "t"}, durable=False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["d.json"]


def test_every_truncation_and_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    json_store.write(path, {"run": 12})
    whole = path.read_bytes()
    for length in range(len(whole) - 1):
        path.write_bytes(whole[:length])
        assert json_store.read(path) is None
    path.write_bytes(whole.replace(b"12", b"13"))
    assert json_store.read(path) is None


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"checksum": 1}', "\x00" * 40])
def test_what_is_no_document_of_ours_is_not_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "d.json").write_text(text)
    assert json_store.read(tmp_path / "d.json") is None


def test_an_exclusive_write_never_replaces(tmp_path: Path) -> None:
    json_store.write(tmp_path / "d.json", {"x": 1}, exclusive=True)
    with pytest.raises(FileExistsError):
        json_store.write(tmp_path / "d.json", {"x": 2}, exclusive=True)
    assert json_store.read(tmp_path / "d.json") == {"x": 1}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(("seconds", "asked"), [(0.0, ["a", "b"]), (20.0, ["a"])])
def test_an_error_is_shared_in_one_look_and_one_that_took_long_is_that_of_all_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, asked: list[str]
) -> None:
    clock, read, asks = StandingClock(), LocalStore.read, list[str]()
    monkeypatch.setattr(json_store, "time", clock)
    for name in ("a", "b", "c"):
        json_store.write(tmp_path / name, {"x": 1})

    def unanswered(store: LocalStore, place: Path) -> object:
        if place.name == "c":
            return read(store, place)
        asks.append(place.name)
        clock.now += seconds
        raise OSError(f"{place.name} is not answered")

    monkeypatch.setattr(LocalStore, "read", unanswered)
    with json_store.one_look():
        for _ in range(500):
            for name in ("a", "b"):
                with pytest.raises(OSError, match="is not answered"):
                    json_store.read(tmp_path / name)
        if seconds:
            with pytest.raises(OSError, match="a is not answered"):
                json_store.read(tmp_path / "c")
        else:
            assert json_store.read(tmp_path / "c") == {"x": 1}
    assert asks == asked
    with json_store.one_look():
        assert json_store.read(tmp_path / "c") == {"x": 1}, "the next look asks again"


def test_what_is_changed_again_and_again_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"

    def decide(_: Lease | None) -> Lease:
        path.write_text(str(next(numbers)))
        return lease

    lease = leases.acquire(tmp_path / "l", "p", "t")
    numbers = itertools.count()
    with pytest.raises(ChangedError, match="changed 100 times"):
        json_store.change(path, Lease, decide)
    assert path.read_text() == "99"
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(ChangedError, match="changed 100 times"):
        json_store.overwrite(path, lease)
