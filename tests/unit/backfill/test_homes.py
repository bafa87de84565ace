"""Backfills of one pipeline take turns, whatever starts them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.backfill import homes
from airflow_provider_exactlyonce.backfill.request import BackfillRequest
from airflow_provider_exactlyonce.backfill.resolve import Resolved
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError, StopRequestedError
from tests.waiting import HANG_SECONDS

HOLD = """
import sys, time
from airflow_provider_exactlyonce.backfill import homes
from airflow_provider_exactlyonce.control.home import Home
with homes.turn(Home(sys.argv[1]), lambda: None):
    print("has it", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create("p")
    return home


def made(home: Home, commits: str) -> Home:
    return homes.make(home, "p", BackfillRequest.parse(commits=commits))


def never() -> None:
    return None


def test_a_request_has_one_home_and_what_it_is_for_is_in_it(home: Home) -> None:
    one, other = made(home, "1..2"), made(home, "1..3")
    assert made(home, "1..2").path == one.path != other.path
    assert (one.identity(), one.pipeline()) == (other.identity(), "p.backfill")
    assert one.identity() != home.identity()
    asked = homes.asked_of(one)
    assert (asked.pipeline, asked.home, asked.request.commits) == ("p", str(home.path), (1, 2))
    with pytest.raises(RefusedError, match="is no home of a backfill"):
        homes.asked_of(home)
    with pytest.raises(RefusedError, match="is the home of pipeline p, not of q"):
        homes.make(home, "q", BackfillRequest.parse(commits="1..2"))


def test_only_one_has_the_turn_and_who_waits_may_give_up(home: Home) -> None:
    one, other = made(home, "1..2"), made(home, "1..3")
    got = threading.Event()

    def second() -> None:
        with homes.turn(other, never):
            got.set()

    with homes.turn(one, never):
        waiting = threading.Thread(target=second)
        waiting.start()
        assert not got.wait(0.5)

        def give_up() -> None:
            raise StopRequestedError("stopped")

        with pytest.raises(StopRequestedError), homes.turn(other, give_up):
            pytest.fail("it is not its turn")
    assert got.wait(HANG_SECONDS)
    waiting.join()


def test_the_turn_of_a_process_that_is_killed_is_over(home: Home) -> None:
    one, other = made(home, "1..2"), made(home, "1..3")
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(one.path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"has it\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        with homes.turn(other, never):
            assert str(other.path) in (other.path.parent / "turn.lock").read_text()
    finally:
        process.kill()
        process.communicate()


def test_the_ledger_keeps_what_an_unfinished_backfill_reads(home: Home) -> None:
    assert homes.oldest_needed(home) is None
    for commits, base in (("8..9", 7), ("5..9", 3)):
        one = made(home, commits)
        homes.begin(
            one, homes.Begun(version="v", name="n", resolved=Resolved(starts={}, ends={}, begins={}, base_commit=base))
        )
        assert homes.oldest_needed(home) == {7: None, 3: 8}[base], "it has not made its lineage yet"
        one.create("p.backfill")
    assert homes.oldest_needed(home) == 4
    homes.forget(made(home, "5..9"))
    assert homes.oldest_needed(home) == 8
