"""Who changes the lineage in use while another does, or a driver starts: one is done, the other changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.checkpoint import lineages
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError
from airflow_provider_exactlyonce.storage.opening import LOCAL
from tests.waiting import eventually

#: A restore's second half: what it was given is copied, renamed and switched to.
RESTORER = """
import sys
from pathlib import Path
from airflow_provider_exactlyonce.checkpoint import lineages
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError
home, name = Home(sys.argv[1]), sys.argv[2]
leases.HEARTBEAT_SECONDS = 1000.0  # as if it was frozen: nothing of it moves while it is held
try:
    with leases.holding(home.lease, "shop", f"restore-{name}", leases.check_stopped(home.lease, "shop")) as hold:
        lineages.remove_unfinished(home.lineages, hold)
        lineage = Lineage(id=name, parent="first", parent_run=3, parent_commit=7)
        lineages.make(home.lineages / name, Path(sys.argv[1]) / "saved", ["offsets/0"], lineage)
        lineages.switch(home, lineage, hold)
except AlreadyRunningError as error:
    sys.exit(f"AlreadyRunningError: {error}")
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(str(tmp_path / "home"))
    (home.path / "saved/offsets").mkdir(parents=True)
    (home.path / "saved/offsets/0").write_text("v1")
    home.remember(Lineage(id="first"))
    home.use("first")
    return home


@contextmanager
def held(home: Home, name: str, step: str) -> Iterator[Callable[[], tuple[int, str]]]:
    """Run a restorer up to a step; gives what lets it go on, and returns how it has ended and what it said."""
    hold = home.path / f"hold-{name}"
    with subprocess.Popen(
        [sys.executable, "-c", RESTORER, home.path, name],
        env={**os.environ, failpoints.VARIABLE: f"{step}:hold={hold}"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:

        def go_on() -> tuple[int, str]:
            hold.unlink()
            said = process.communicate()[1]
            return process.returncode, said

        try:
            eventually(lambda: hold.exists() or process.poll() is not None, f"the restorer is at {step}")
            assert process.poll() is None, process.communicate()[1]
            yield go_on
        finally:
            process.kill()


def take_over(home: Home, token: str) -> leases.Lease:
    """Take the lease of one that has been silent for too long."""
    return leases.take_over(home.lease, "shop", token, leases.read(home.lease))


def restored(home: Home, hold: leases.Hold, name: str) -> None:
    lineage = Lineage(id=name, parent="first", parent_run=3, parent_commit=7)
    lineages.make(home.lineages / name, home.path / "saved", ["offsets/0"], lineage)
    lineages.switch(home, lineage, hold)


def in_use(home: Home) -> str:
    current = home.current()
    assert current is not None, "what current names is there"
    return current.id


def test_a_restore_that_froze_before_its_switch_leaves_what_a_later_restore_has_made(home: Home) -> None:
    with held(home, "slow", "restore-switching") as go_on:
        left = leases.read(home.lease)
        with leases.holding(home.lease, "shop", "restore-fast", left) as hold:
            restored(home, hold, "fast")
        code, said = go_on()
    assert code == 1
    assert "AlreadyRunningError: another process has taken pipeline shop over meanwhile" in said
    assert in_use(home) == "fast"
    assert {directory.name for directory in home.lineages.iterdir()} == {"first", "fast"}, (
        "and nothing of its own stays"
    )


def test_a_restore_that_froze_before_its_switch_does_not_switch_under_a_driver(home: Home) -> None:
    with held(home, "slow", "restore-switching") as go_on:
        driver = take_over(home, "driver")
        code, said = go_on()
    assert code == 1
    assert f"pid {os.getpid()} on {driver.host} has taken pipeline shop over" in said
    assert in_use(home) == "first"
    assert leases.read(home.lease) == driver, "and it has not released the driver's lease"


def test_a_restore_that_froze_right_after_its_switch_keeps_everybody_out_until_it_is_ended(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOCAL, "held_seconds", 0.2)
    with held(home, "slow", "restore-switched") as go_on:
        with pytest.raises(AlreadyRunningError, match=r"lease\.lock for 0 s: it is frozen; end it"):
            take_over(home, "driver")
        assert go_on() == (0, "")
    assert in_use(home) == "slow"


def test_a_restore_that_was_killed_right_after_its_switch_keeps_nobody_out(home: Home) -> None:
    with held(home, "slow", "restore-switched"):
        pass
    with leases.holding(home.lease, "shop", "driver", leases.check_stopped(home.lease, "shop")):
        assert in_use(home) == "slow"


def test_a_restore_that_froze_before_it_cleaned_up_leaves_what_its_successor_is_making(home: Home) -> None:
    left = leases.acquire(home.lease, "shop", "slow")
    slow = leases.Hold(home.lease, left)
    with leases.holding(home.lease, "shop", "fast", left) as fast:
        (home.lineages / ".unfinished-fast").mkdir()
        with pytest.raises(AlreadyRunningError):
            lineages.remove_unfinished(home.lineages, slow)
        assert (home.lineages / ".unfinished-fast").is_dir()
        lineages.remove_unfinished(home.lineages, fast)
        assert not (home.lineages / ".unfinished-fast").exists()


def test_a_restore_removes_what_was_never_started_and_never_what_is_in_use(home: Home) -> None:
    for name in ("a", "b", "c"):
        with leases.holding(home.lease, "shop", name) as hold:
            restored(home, hold, name)
        assert in_use(home) == name
        assert {directory.name for directory in home.lineages.iterdir()} == {"first", name}


def test_a_removal_that_dies_half_way_leaves_nothing_that_is_taken_for_a_lineage(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with leases.holding(home.lease, "shop", "a") as hold:
        restored(home, hold, "a")
    lineage = Lineage(id="b", parent="first", parent_run=3, parent_commit=7)
    shutil.copytree(home.lineages / "a", home.lineages / "b")
    home.remember(lineage)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying, leases.holding(home.lease, "shop", "b") as hold:
        dying.setattr(shutil, "rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            lineages.switch(home, lineage, hold)
    assert in_use(home) == "b"
    assert {name for name in ("first", "a", "b") if home.lineage(name) is not None} == {"first", "b"}
    with leases.holding(home.lease, "shop", "c") as hold:
        lineages.remove_unfinished(home.lineages, hold)
    assert {directory.name for directory in home.lineages.iterdir()} == {"first", "b"}


@pytest.mark.parametrize("dead", [False, True])
def test_of_many_who_take_a_free_lease_at_once_one_does(home: Home, dead: bool) -> None:
    if dead:
        leases.acquire(home.lease, "shop", "dead")
    judged, barrier, won, lost = leases.read(home.lease), threading.Barrier(8), [], []

    def start(number: int) -> None:
        barrier.wait()
        try:
            won.append(leases.take_over(home.lease, "shop", f"start-{number}", judged))
        except AlreadyRunningError as error:
            lost.append(str(error))

    threads = [threading.Thread(target=start, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(lost) == 7
    assert leases.read(home.lease) == won[0]


def test_a_lease_whose_holder_came_back_since_it_was_judged_is_not_taken_over(home: Home) -> None:
    mine = leases.acquire(home.lease, "shop", "thawed")
    judged = leases.read(home.lease)
    assert leases.renew(home.lease, mine) is not None
    with pytest.raises(AlreadyRunningError, match="has taken pipeline shop meanwhile"):
        leases.take_over(home.lease, "shop", "hasty", judged)
