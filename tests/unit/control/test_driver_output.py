"""What a driver printed can be read where the home is, whatever becomes of its host."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import driver_output
from airflow_provider_exactlyonce.control.driver_output import KEPT_BYTES, DriverOutput
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.processes import OUTPUT_VARIABLE
from airflow_provider_exactlyonce.storage.opening import store_of
from tests import memory_store


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Home("memory", memory_store.folder())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = tmp_path / "driver-1.log"
    log.write_text("one\ntwo\n")
    return log


def place_in(home: Home) -> Path:
    return home.control / "logs" / "driver-t.log"


def kept(home: Home) -> bytes:
    stored = store_of(home.path).read(place_in(home))
    return stored.content if stored is not None else b""


def test_a_local_home_has_the_file_itself(tmp_path: Path, log: Path) -> None:
    home = Home(tmp_path / "home")
    DriverOutput(home, "t", log).keep()
    assert DriverOutput(home, "t", log).last_lines() == ["one", "two"]
    assert not home.control.exists()


def test_another_host_reads_what_was_kept(remote: Home, log: Path) -> None:
    DriverOutput(remote, "t", log).keep()
    log.write_text("of another driver of that host, with the same number\n")
    assert DriverOutput(remote, "t", log).last_lines() == ["one", "two"]
    log.unlink()
    assert DriverOutput(remote, "t", log).last_lines() == ["one", "two"]
    assert DriverOutput(remote, "other", log).last_lines() == []


def test_what_has_grown_is_kept_again_and_nothing_else_is_written(remote: Home, log: Path) -> None:
    output = DriverOutput(remote, "t", log)
    output.keep()
    store_of(remote.path).delete(place_in(remote))
    output.keep()
    assert kept(remote) == b"", "there was nothing new"
    with log.open("a") as file:
        file.write("three\n")
    output.keep()
    assert kept(remote) == b"one\ntwo\nthree\n"


def test_the_end_of_a_long_output_is_kept(remote: Home, log: Path) -> None:
    log.write_bytes(b"x" * KEPT_BYTES + b"\nthe end\n")
    DriverOutput(remote, "t", log).keep()
    assert len(kept(remote)) == KEPT_BYTES
    assert DriverOutput(remote, "t", log).last_lines()[-1] == "the end"


def test_a_file_that_was_deleted_takes_nothing_away(remote: Home, log: Path) -> None:
    DriverOutput(remote, "t", log).keep()
    log.unlink()
    DriverOutput(remote, "t", log).keep()
    assert kept(remote) == b"one\ntwo\n"


@pytest.mark.parametrize("is_started_by_hand", [True, False])
def test_a_driver_knows_its_output_from_who_started_it(
    remote: Home, log: Path, monkeypatch: pytest.MonkeyPatch, is_started_by_hand: bool
) -> None:
    if is_started_by_hand:
        monkeypatch.delenv(OUTPUT_VARIABLE, raising=False)
        assert driver_output.of_this_driver(remote, "t") is None
        return
    monkeypatch.setenv(OUTPUT_VARIABLE, str(log))
    output = driver_output.of_this_driver(remote, "t")
    assert output is not None and output.log == log
    assert driver_output.of_this_driver(Home(log.parent), "t") is None, "there it is in the home"
