"""The documents of a home that decide who runs a pipeline, on each file system, and on one that fails."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from upath import UPath

from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import json_store, restarts, status
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.lease import Lease, Liveness
from airflow_provider_exactlyonce.control.restarts import Restart
from airflow_provider_exactlyonce.control.status import DriverState, Status
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError
from airflow_provider_exactlyonce.storage import conditional
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError
from tests import object_stores
from tests.object_stores import Faults

# The clients of object stores have deprecations of their own.
pytestmark = pytest.mark.filterwarnings("default")

DRIVERS = 6


def raced(folder: Path, judged: Lease | None) -> Counter[str]:
    """Let many drivers take a lease that each of them has found so; returns what became of them."""
    winners: Counter[str] = Counter()
    barrier = threading.Barrier(DRIVERS)

    def take(number: int) -> None:
        barrier.wait()
        try:
            leases.take_over(folder / "lease.json", "shop", f"driver-{number}", judged)
        except AlreadyRunningError:
            winners["refused"] += 1
        else:
            winners[f"driver-{number}"] += 1

    threads = [threading.Thread(target=take, args=(number,)) for number in range(DRIVERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return winners


def test_of_many_drivers_that_find_a_pipeline_free_one_takes_it(folder: Path) -> None:
    path = folder / "lease.json"
    left: Lease | None = None
    for _ in range(3):
        winners = raced(folder, left)
        held = leases.read(path)
        assert held is not None
        assert winners == {"refused": DRIVERS - 1, held.token: 1}
        left = held


def test_a_lease_is_renewed_released_and_taken_as_on_any_other_file_system(folder: Path) -> None:
    path = folder / "lease.json"
    assert leases.read(path) is None
    old = leases.acquire(path, "shop", "old")
    assert leases.look(path)[1] is Liveness.ALIVE
    new = leases.acquire(path, "shop", "new", run=2)
    assert leases.renew(path, old) is None
    assert leases.renew(path, replace(old, run=1)) is None
    json_store.overwrite(path, replace(old, run=1))
    renewed = leases.renew(path, new)
    assert renewed is not None
    assert leases.read(path) == renewed
    leases.release(path, old)
    assert leases.read(path) == renewed
    with pytest.raises(AlreadyRunningError):
        leases.take_over(path, "shop", "third", None)
    leases.release(path, renewed)
    assert leases.read(path) is None


def test_of_a_driver_that_renews_and_one_that_takes_over_one_holds_the_lease(folder: Path) -> None:
    path = folder / "lease.json"
    mine = leases.acquire(path, "shop", "mine")
    kept: list[Lease | None] = []

    def renew() -> None:
        for _ in range(10):
            kept.append(leases.renew(path, mine))

    renewing = threading.Thread(target=renew)
    renewing.start()
    theirs = leases.acquire(path, "shop", "theirs")
    renewing.join()
    assert leases.read(path) == theirs
    lost = kept.index(None) if None in kept else len(kept)
    assert kept[lost:] == [None] * (len(kept) - lost)


def test_a_document_is_written_read_and_removed_there(folder: Path) -> None:
    intent = Intent(token="t", owner="o", until="forever", series="t", restarts=0, log="l")
    intents.write(folder / "intent.json", intent)
    assert intents.read(folder / "intent.json") == intent
    intents.remove(folder / "intent.json", "another")
    assert intents.read(folder / "intent.json") == intent
    intents.remove(folder / "intent.json", "t")
    assert intents.read(folder / "intent.json") is None
    written = Status(pipeline="shop", token="t", state=DriverState.RUNNING)
    status.write(folder / "status.json", written)
    assert status.read(folder / "status.json") == written
    died = Restart(series="s", number=1, token="t", run=1, commit=2, cause="it died", exit_code=1, died=3.0)
    restarts.append(folder / "restarts.json", died)
    restarts.relaunched(folder / "restarts.json", "t", 4.0)
    assert restarts.read(folder / "restarts.json") == (replace(died, relaunched=4.0),)
    with pytest.raises(FileExistsError):
        json_store.write(folder / "status.json", {}, exclusive=True)


def test_a_torn_document_is_none_and_is_replaced(folder: Path) -> None:
    path = folder / "lease.json"
    store_of(path).replace(path, b'{"pipeline": "sh')
    assert leases.read(path) is None
    assert leases.take_over(path, "shop", "t", None) == leases.read(path)


@pytest.fixture(scope="module")
def faults(moto: str) -> Iterator[Faults]:
    with object_stores.proxy(moto) as faults:
        yield faults


@pytest.fixture
def path(faults: Faults, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Give the place of a lease of which a proxy is asked."""
    monkeypatch.setattr(conditional, "PAUSES", (0.0, 0.0, 0.0, 0.0))
    faults.planned.clear()
    return UPath(f"s3://bucket{tmp_path}/lease.json", **object_stores.options(faults.address))


@pytest.mark.parametrize("fault", ["lose", "drop", "503"])
def test_a_driver_whose_write_was_not_answered_knows_whether_the_lease_is_its_own(
    path: Path, faults: Faults, fault: str
) -> None:
    faults.plan("PUT", fault)
    mine = leases.take_over(path, "shop", "mine", None)
    assert leases.read(path) == mine
    faults.plan("PUT", fault)
    renewed = leases.renew(path, mine)
    assert renewed is not None
    faults.plan("DELETE", fault)
    leases.release(path, renewed)
    assert leases.read(path) is None


def test_a_driver_that_hears_nothing_takes_and_gives_up_nothing(path: Path, faults: Faults) -> None:
    held = leases.acquire(path, "shop", "theirs")
    faults.plan("PUT", *["drop"] * 100)
    with pytest.raises(OutcomeUnknownError):
        leases.take_over(path, "shop", "mine", held)
    with pytest.raises(OutcomeUnknownError):
        leases.renew(path, held)
    faults.plan("GET", *["drop"] * 100)
    with pytest.raises(OSError, match=r"\S"):
        leases.read(path)
    faults.planned.clear()
    assert leases.read(path) == held


def test_a_home_on_a_file_system_without_an_implementation_is_refused_by_name() -> None:
    from airflow_provider_exactlyonce.control.home import Home

    with pytest.raises(RefusedError, match="webhdfs: is not read"):
        Home("webhdfs://google_default@bucket/pipelines/shop")
