"""What S3 alone does when it fails, and what those do who have a home there."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from upath import UPath

from airflow_provider_exactlyonce.control import json_store, requests
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.lease import HeartbeatMonitor, Liveness
from airflow_provider_exactlyonce.exceptions import RefusedError, required
from airflow_provider_exactlyonce.storage import s3
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import Store
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from airflow_provider_exactlyonce.streaming.driver.status_reporter import DriverReport
from airflow_provider_exactlyonce.streaming.driver.stop_reasons import StopReasons
from airflow_provider_exactlyonce.triggers.shared_poller import HOME_THREADS
from tests import object_stores
from tests.clocks import AheadClock
from tests.object_stores import Faults, Kind
from tests.waiting import HANG_SECONDS

pytestmark = pytest.mark.filterwarnings("default")

ALWAYS = 100


@pytest.fixture(scope="module")
def kind() -> Kind:
    return object_stores.S3


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


def test_a_request_that_was_never_sent_leaves_no_doubt(
    store: Store, place: Path, moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full_listener() as address, monkeypatch.context() as patched:
        patched.setattr(s3, "_PATIENCE", {"connect_timeout": 0.2, "read_timeout": 1})
        full = object_stores.S3.place(address)
        with pytest.raises(OSError, match="was not written: Connect timeout") as unsent:
            store_of(full).create(full, b"mine")
    theirs = object_stores.S3.place(moto, place.name)
    assert isinstance(store, s3.S3Store)
    send = store._once.call_s3

    def send_second(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(store._once, "call_s3", send)
        store_of(theirs).create(theirs, b"theirs")
        raise required(required(unsent.value.__cause__, "why").__cause__, "the error of the request")

    monkeypatch.setattr(store._once, "call_s3", send_second)
    with pytest.raises(FileExistsError):
        store.create(place, b"mine")
    stored = store.read(place)
    assert stored is not None
    assert stored.content == b"theirs"


def test_a_bucket_that_is_not_there_or_refuses_us_is_no_empty_place(moto: str) -> None:
    elsewhere: Any = UPath("s3://another/a", **object_stores.options(moto))
    with pytest.raises(OSError, match="bucket"):
        store_of(elsewhere).read(elsewhere)
    with pytest.raises(OSError, match="bucket"):
        store_of(elsewhere).create(elsewhere, b"x")


def test_what_the_server_keeps_of_a_directory_is_not_taken_for_removed(
    store: Store, place: Path, faults: Faults
) -> None:
    store.create(place / "a", b"")
    faults.plan("POST", "undeleted")
    with pytest.raises(OSError, match="s3://bucket/a was not deleted: AccessDenied: Access Denied"):
        store.remove(place)
    store.remove(place)
    assert list(store.files(place)) == []


def test_a_long_directory_is_listed_and_removed_piece_by_piece(
    store: Store, place: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(store, s3.S3Store)
    monkeypatch.setattr(s3, "_DELETED_AT_ONCE", 2)
    call = store.system.call_s3

    def with_short_pages(method: str, **arguments: Any) -> Any:
        return call(method, **arguments, **({"MaxKeys": 2} if method == "list_objects_v2" else {}))

    monkeypatch.setattr(store.system, "call_s3", with_short_pages)
    names = ["a", "b/1", "b/2", "c", "d/3"]
    for name in names:
        store.create(place / name, b"")
    assert list(store.files(place)) == names
    assert list(store.names(place)) == ["a", "b", "c", "d"]
    faults.plan("POST")
    store.remove(place)
    assert faults.seen.count("POST") == 3
    assert list(store.files(place)) == []


def test_a_file_system_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    place: Any = UPath(f"file://{tmp_path}/a")
    with pytest.raises(RefusedError, match="LocalFileSystem is no file system for a home"):
        store_of(place)


def test_an_outage_is_nobody_s_silence(place: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = AheadClock()
    monkeypatch.setattr(leases, "time", clock)
    lease = place / "lease.json"
    leases.acquire(lease, "shop", "t")
    monitor = HeartbeatMonitor("t", lease)
    assert monitor.look() is Liveness.ALIVE
    faults.plan("GET", *["drop"] * ALWAYS)
    clock.ahead += 300
    with pytest.raises(OSError):  # noqa: PT011
        monitor.look()
    faults.plan("GET")
    assert monitor.look() is Liveness.ALIVE
    clock.ahead += leases.STALE_SECONDS + 1
    assert monitor.look() is Liveness.ALIVE, "a request may have taken so long"
    clock.ahead += leases.stale_seconds(lease)
    assert monitor.look() is Liveness.STALE


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


class _AllAtOnce(BaseHTTPRequestHandler):
    """Answers once as many ask as a triggerer has threads for homes."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[threading.Barrier]

    def do_GET(self) -> None:
        self.asked.wait(HANG_SECONDS)
        text = b"<Error><Code>NoSuchKey</Code></Error>"
        self.send_response(404)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


class _Listening(ThreadingHTTPServer):
    request_queue_size = 200


def test_each_thread_of_a_triggerer_has_a_request_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own limit is ten; a home that answers late would hold up the others."""
    threads = HOME_THREADS._max_workers
    monkeypatch.setattr(_AllAtOnce, "asked", threading.Barrier(threads), raising=False)
    monkeypatch.setattr(s3, "_PATIENCE", {"connect_timeout": HANG_SECONDS, "read_timeout": HANG_SECONDS})
    with _Listening(("127.0.0.1", 0), _AllAtOnce) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            place = object_stores.S3.place(f"http://127.0.0.1:{server.server_port}")
            store = store_of(place)
            assert set(HOME_THREADS.map(lambda each: store.read(place / str(each)), range(threads))) == {None}
        finally:
            server.shutdown()
            serving.join()
