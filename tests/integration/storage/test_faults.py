"""An object store that throttles, loses requests and loses answers: what was not answered is never taken for a no."""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from upath import UPath

from airflow_provider_exactlyonce.control import json_store, requests
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.lease import HeartbeatMonitor, Life
from airflow_provider_exactlyonce.exceptions import RefusedError, required
from airflow_provider_exactlyonce.storage import s3
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import ChangedError, OutcomeUnknownError, Store, Stored
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from airflow_provider_exactlyonce.streaming.driver.status_reporter import DriverReport
from airflow_provider_exactlyonce.streaming.driver.stop_reasons import StopReasons
from tests import object_stores
from tests.clocks import AheadClock
from tests.object_stores import Faults

pytestmark = pytest.mark.filterwarnings("default")

ALWAYS = 100


@pytest.fixture(scope="module")
def faults(moto: str) -> Iterator[Faults]:
    with object_stores.proxy(moto) as faults:
        yield faults


@pytest.fixture
def place(faults: Faults, moto: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a place of which the proxy is asked."""
    monkeypatch.setattr(s3, "_PAUSES", (0.0, 0.0, 0.0, 0.0))
    faults.planned.clear()
    place: Any = UPath(f"s3://bucket/{uuid.uuid4()}", **object_stores.options(faults.address))
    return place  # type: ignore[no-any-return]


@pytest.fixture
def store(place: Path) -> Store:
    return store_of(place)


@contextmanager
def full_listener() -> Iterator[str]:
    """Give the address of a server that takes no connection any more, and refuses none."""
    with contextlib.ExitStack() as sockets:
        server = sockets.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def content(store: Store, place: Path) -> bytes | None:
    stored = store.read(place)
    return stored.content if stored else None


@pytest.mark.parametrize("fault", ["lose", "drop", "503", "slow"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_write_that_was_not_answered_is_repeated_and_known_again(
    store: Store, place: Path, faults: Faults, fault: str, times: int
) -> None:
    faults.plan("PUT", *[fault] * times)
    version = store.create(place, b"mine")
    assert store.read(place) == Stored(content=b"mine", version=version)
    faults.plan("PUT", *[fault] * times)
    version = store.replace_if(place, b"mine too", version)
    assert store.read(place) == Stored(content=b"mine too", version=version)
    faults.plan("DELETE", *[fault] * times)
    store.delete_if(place, version)
    assert store.read(place) is None


@pytest.mark.parametrize("fault", ["lose", "drop", "503"])
def test_no_library_below_repeats_a_write(store: Store, place: Path, faults: Faults, fault: str) -> None:
    store.replace(place, b"so that a connection is open")
    faults.plan("PUT", *[fault] * ALWAYS)
    with pytest.raises(OutcomeUnknownError) if fault != "lose" else nullcontext():
        store.replace(place, b"mine")
    assert [seen for seen in faults.seen if seen.startswith("PUT")] == [f"PUT {fault}"] * len(s3._PAUSES)
    faults.plan("DELETE", *[fault] * ALWAYS)
    with pytest.raises(OutcomeUnknownError) if fault != "lose" else nullcontext():
        store.delete_if(place, store.read(place).version)  # type: ignore[union-attr]
    sent = [seen for seen in faults.seen if seen.startswith("DELETE")]
    assert sent == [f"DELETE {fault}"] * len(sent)
    assert len(sent) == len(s3._PAUSES)


@pytest.mark.parametrize("fault", ["lose", "drop", "503"])
def test_somebody_else_s_file_is_not_taken_for_ours(
    store: Store, place: Path, faults: Faults, fault: str, moto: str
) -> None:
    theirs: Any = UPath(str(place), **object_stores.options(moto))
    store_of(theirs).create(theirs, b"theirs")
    faults.plan("PUT", fault)
    with pytest.raises(OutcomeUnknownError):  # ours may have been made before theirs
        store.create(place, b"theirs")
    faults.plan("PUT", fault)
    with pytest.raises(OutcomeUnknownError):
        store.replace_if(place, b"ours", '"0123"')
    assert content(store, place) == b"theirs"


def test_a_request_that_was_never_sent_leaves_no_doubt(
    store: Store, place: Path, moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full_listener() as address, monkeypatch.context() as patched:
        patched.setattr(s3, "_PATIENCE", {"connect_timeout": 0.2, "read_timeout": 1})
        full: Any = UPath(f"s3://bucket/{uuid.uuid4()}", **object_stores.options(address))
        with pytest.raises(OSError, match="was not written: Connect timeout") as unsent:
            store_of(full).create(full, b"mine")
    theirs: Any = UPath(str(place), **object_stores.options(moto))
    assert isinstance(store, s3.S3Store)
    send = store._once.call_s3

    def send_second(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(store._once, "call_s3", send)
        store_of(theirs).create(theirs, b"theirs")
        raise required(unsent.value.__cause__, "the error of the request")

    monkeypatch.setattr(store._once, "call_s3", send_second)
    with pytest.raises(FileExistsError):
        store.create(place, b"mine")
    assert content(store, place) == b"theirs"


def test_without_any_answer_nobody_knows_and_whoever_looks_finds_it(store: Store, place: Path, faults: Faults) -> None:
    faults.plan("PUT", *["drop"] * ALWAYS)
    with pytest.raises(OutcomeUnknownError, match="nobody knows whether"):
        store.create(place, b"mine")
    assert store.read(place) is None
    faults.plan("PUT", *["lose"] * ALWAYS)
    version = store.create(place, b"mine")
    assert store.read(place) == Stored(content=b"mine", version=version)
    faults.plan("DELETE", *["drop"] * ALWAYS)
    with pytest.raises(OutcomeUnknownError, match="was deleted"):
        store.delete_if(place, version)
    assert content(store, place) == b"mine"


@pytest.mark.parametrize("fault", ["lose", "drop", "503", "slow"])
def test_a_read_is_repeated_and_no_answer_is_never_taken_for_no_file(
    store: Store, place: Path, faults: Faults, fault: str
) -> None:
    store.create(place, b"mine")
    faults.plan("GET", fault)
    assert content(store, place) == b"mine"
    faults.plan("HEAD", fault)
    facts = store.facts(place)
    assert facts is not None
    if fault != "slow":
        faults.plan("GET", *[fault] * ALWAYS)
        faults.plan("HEAD", *[fault] * ALWAYS)
        for question in (store.read, store.facts, store.names):
            with pytest.raises(OSError):  # noqa: PT011
                question(place)


def test_a_refusal_is_a_no_at_once(store: Store, place: Path, faults: Faults) -> None:
    store.create(place, b"theirs")
    faults.plan("PUT")
    with pytest.raises(FileExistsError):
        store.create(place, b"mine")
    with pytest.raises(ChangedError):
        store.replace_if(place, b"mine", '"0123"')
    assert faults.seen == ["PUT", "PUT"]


def test_a_bucket_that_is_not_there_or_refuses_us_is_no_empty_place(moto: str) -> None:
    elsewhere: Any = UPath("s3://another/a", **object_stores.options(moto))
    with pytest.raises(OSError, match="bucket"):
        store_of(elsewhere).read(elsewhere)
    with pytest.raises(OSError, match="bucket"):
        store_of(elsewhere).create(elsewhere, b"x")


class Forgetful(s3.S3Store):
    """A server that takes a condition for a decoration."""

    def _put(self, place: Path, content: bytes, **condition: str) -> str:
        return super()._put(place, content)


def test_a_server_that_ignores_conditions_is_refused_by_name(moto: str) -> None:
    folder: Any = UPath(f"s3://bucket/{uuid.uuid4()}", **object_stores.options(moto))
    real = store_of(folder)
    assert isinstance(real, s3.S3Store)
    with pytest.raises(RefusedError, match="creates a file that is there"):
        Forgetful(real.system, real._once).check(folder)
    assert list(real.names(folder)) == []


def test_a_file_system_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    place: Any = UPath(f"file://{tmp_path}/a")
    with pytest.raises(RefusedError, match="LocalFileSystem is no file system for a home"):
        store_of(place)


def test_threads_share_a_store_and_copies_are_made_by_the_server(faults: Faults, place: Path) -> None:
    stores: list[Store] = []
    folder, options = str(place), object_stores.options(faults.address)

    def look() -> None:
        there: Any = UPath(folder, **options)
        stores.append(store_of(there))

    looking = [threading.Thread(target=look) for _ in range(2)]
    for thread in looking:
        thread.start()
    for thread in looking:
        thread.join()
    store = store_of(place)
    assert stores == [store, store]
    store.create(place / "source", b"bytes")
    faults.plan("PUT")
    elsewhere: Any = UPath(folder, **options)
    store.copy(elsewhere / "source", place / "copy")
    assert [seen for seen in faults.seen if seen != "HEAD"] == ["PUT"]
    assert content(store, place / "copy") == b"bytes"


def test_an_outage_is_nobody_s_silence(place: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = AheadClock()
    monkeypatch.setattr(leases, "time", clock)
    lease = place / "lease.json"
    leases.acquire(lease, "shop", "t")
    monitor = HeartbeatMonitor("t", lease)
    assert monitor.look() is Life.ALIVE
    faults.plan("GET", *["drop"] * ALWAYS)
    clock.ahead += 300
    with pytest.raises(OSError):  # noqa: PT011
        monitor.look()
    faults.plan("GET")
    assert monitor.look() is Life.ALIVE
    clock.ahead += leases.STALE_SECONDS + 1
    assert monitor.look() is Life.ALIVE, "a request may have taken so long"
    clock.ahead += leases.stale_seconds(lease)
    assert monitor.look() is Life.STALE


def test_a_driver_that_can_not_read_what_is_asked_of_it_goes_on_and_hears_of_it_later(
    place: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3.S3Store, "seconds_per_read", 0.0)
    home = Home(str(place), place)
    options = DriverOptions(home=home, config={}, token="t", until="forever")
    stop = StopReasons(options, DriverReport(home, "t", "shop"))
    faults.plan("GET", *["drop"] * ALWAYS)
    assert stop.reason() is None
    faults.plan("GET")
    requests.request_stop(home, "t", reason="maintenance")
    assert stop.reason() == "maintenance"
    faults.plan("GET", *["drop"] * ALWAYS)
    assert stop.reason() == "maintenance"


def test_one_look_reads_each_document_once(place: Path, faults: Faults) -> None:
    document = place / "a.json"
    json_store.write(document, {"number": 1})
    faults.plan("GET")
    with json_store.one_look():
        assert json_store.read(document) == {"number": 1}
        json_store.write(document, {"number": 2})
        assert json_store.read(document) == {"number": 1}
        assert json_store.read(place / "b.json") is json_store.read(place / "b.json") is None
    assert faults.seen.count("GET") == 2
    assert json_store.read(document) == {"number": 2}
