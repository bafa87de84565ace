"""Object stores that throttle, lose requests and lose answers: what was not answered is never taken for a no."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.checkpoint import integrity
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.rebuild import set_aside
from airflow_provider_exactlyonce.checkpoint.state import StateDirectory
from airflow_provider_exactlyonce.control import releases
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import FencedError, RefusedError
from airflow_provider_exactlyonce.storage import conditional
from airflow_provider_exactlyonce.storage.conditional import ConditionalStore
from airflow_provider_exactlyonce.storage.opening import is_there, store_of
from airflow_provider_exactlyonce.storage.store import ChangedError, OutcomeUnknownError, Store, Stored, is_no_answer
from airflow_provider_exactlyonce.streaming.driver.status_reporter import DriverReport
from tests.object_stores import Faults, Kind
from tests.unit.checkpoint import crafted

pytestmark = pytest.mark.filterwarnings("default")

ALWAYS = 100


def content(store: Store, place: Path) -> bytes | None:
    stored = store.read(place)
    return stored.content if stored else None


def content_of_file(store: Store, place: Path) -> bytes:
    with store.reading(place) as file:
        return file.read()


@pytest.mark.parametrize("fault", ["lose", "drop", "503", pytest.param("slow", marks=pytest.mark.slow)])
@pytest.mark.parametrize("times", [1, 2])
def test_a_write_that_was_not_answered_is_repeated_and_known_again(
    kind: Kind, store: Store, place: Path, faults: Faults, fault: str, times: int
) -> None:
    faults.plan(kind.write, *[fault] * times)
    version = store.create(place, b"mine")
    assert store.read(place) == Stored(content=b"mine", version=version)
    faults.plan(kind.write, *[fault] * times)
    version = store.replace_if(place, b"mine too", version)
    assert store.read(place) == Stored(content=b"mine too", version=version)
    faults.plan("DELETE", *[fault] * times)
    store.delete_if(place, version)
    assert store.read(place) is None


def test_a_proxy_that_knows_no_such_page_does_not_say_that_there_is_no_such_file(
    kind: Kind, store: Store, place: Path, faults: Faults
) -> None:
    version = store.create(place, b"mine")
    for method in {"GET", "HEAD", "POST", kind.write, "DELETE"}:
        faults.plan(method, *["404"] * ALWAYS)
    asked: tuple[Callable[[], Any], ...] = (
        *(partial(store.read, place), partial(store.facts, place), partial(store.names, place.parent)),
        *(partial(store.remove, place.parent), partial(store.delete, place), partial(store.delete_if, place, version)),
        *(partial(store.copy, place, place.with_name("copy")), partial(content_of_file, store, place)),
        *(partial(store.replace_if, place, b"too", version), partial(store.create, place, b"too")),
    )
    for ask in asked:
        with pytest.raises((OSError, OutcomeUnknownError)) as raised:
            ask()
        assert is_no_answer(raised.value), (ask, raised.value)
    faults.planned.clear()
    assert content(store, place) == b"mine"


@pytest.mark.parametrize("fault", ["lose", "drop", "503"])
def test_no_library_below_repeats_a_write(kind: Kind, store: Store, place: Path, faults: Faults, fault: str) -> None:
    store.replace(place, b"so that a connection is open")
    faults.plan(kind.write, *[fault] * ALWAYS)
    with pytest.raises(OutcomeUnknownError) if fault != "lose" else nullcontext():
        store.replace(place, b"mine")
    version = store.read(place).version  # type: ignore[union-attr]
    faults.plan("DELETE", *[fault] * ALWAYS)
    with pytest.raises(OutcomeUnknownError) if fault != "lose" else nullcontext():
        store.delete_if(place, version)
    for method in (kind.write, "DELETE"):
        assert ALWAYS - len(faults.planned[method]) == len(conditional.PAUSES)


@pytest.mark.parametrize("fault", ["lose", "drop", "503"])
def test_somebody_else_s_file_is_not_taken_for_ours(
    kind: Kind, server: str, store: Store, place: Path, faults: Faults, fault: str
) -> None:
    theirs: Any = kind.place(server, place.name)
    store_of(theirs).create(theirs, b"theirs")
    faults.plan(kind.write, fault)
    with pytest.raises(OutcomeUnknownError):  # ours may have been made before theirs
        store.create(place, b"theirs")
    faults.plan(kind.write, fault)
    with pytest.raises(OutcomeUnknownError):
        store.replace_if(place, b"ours", kind.version)
    assert content(store, place) == b"theirs"


def test_without_any_answer_nobody_knows_and_whoever_looks_finds_it(
    kind: Kind, store: Store, place: Path, faults: Faults
) -> None:
    faults.plan(kind.write, *["drop"] * ALWAYS)
    with pytest.raises(OutcomeUnknownError, match="nobody knows whether"):
        store.create(place, b"mine")
    assert store.read(place) is None
    faults.plan(kind.write, *["lose"] * ALWAYS)
    version = store.create(place, b"mine")
    assert store.read(place) == Stored(content=b"mine", version=version)
    faults.plan("DELETE", *["drop"] * ALWAYS)
    with pytest.raises(OutcomeUnknownError, match="was deleted"):
        store.delete_if(place, version)
    assert content(store, place) == b"mine"


@pytest.mark.parametrize("fault", ["lose", "drop", "503", pytest.param("slow", marks=pytest.mark.slow)])
def test_a_read_is_repeated_and_no_answer_is_never_taken_for_no_file(
    kind: Kind, store: Store, place: Path, faults: Faults, fault: str
) -> None:
    store.create(place, b"mine")
    for question, method in ((store.read, "GET"), (store.facts, kind.look), (store.names, "GET")):
        faults.plan(method, fault)
        assert question(place) is not None
        if fault != "slow":
            faults.plan(method, *[fault] * ALWAYS)
            with pytest.raises(OSError):  # noqa: PT011
                question(place)
            faults.plan(method)


def test_a_refusal_is_a_no_at_once(kind: Kind, store: Store, place: Path, faults: Faults) -> None:
    store.create(place, b"theirs")
    faults.plan(kind.write)
    with pytest.raises(FileExistsError):
        store.create(place, b"mine")
    with pytest.raises(ChangedError):
        store.replace_if(place, b"mine", kind.version)
    assert faults.seen == [kind.write] * 2


def test_a_server_that_ignores_conditions_is_refused_by_name(
    kind: Kind, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = kind.place(server)
    store = store_of(folder)
    assert isinstance(store, ConditionalStore)
    monkeypatch.setattr(store, "_unchanged", lambda _: {})
    with pytest.raises(RefusedError, match="creates a file that is there"):
        store.check(folder)
    assert list(store.names(folder)) == []


def test_threads_share_a_store_and_copies_are_made_by_the_server(kind: Kind, faults: Faults, place: Path) -> None:
    stores: list[Store] = []

    def look() -> None:
        stores.append(store_of(kind.place(faults.address)))

    looking = [threading.Thread(target=look) for _ in range(2)]
    for thread in looking:
        thread.start()
    for thread in looking:
        thread.join()
    store = store_of(place)
    assert stores == [store, store]
    store.create(place / "source", b"bytes")
    faults.plan(kind.write)
    elsewhere = kind.place(faults.address, place.name)
    store.copy(elsewhere / "source", place / "copy")
    assert [seen for seen in faults.seen if seen != "HEAD"] == [kind.write]
    assert content(store, place / "copy") == b"bytes"


@pytest.mark.parametrize("fault", ["drop", "503"])
def test_what_was_not_done_is_an_os_error(store: Store, place: Path, faults: Faults, fault: str) -> None:
    store.create(place / "a", b"mine")
    for method in ("GET", "HEAD", "DELETE", "PUT", "POST"):
        faults.plan(method, *[fault] * ALWAYS)
    for ask in (partial(store.copy, place / "a", place / "b"), partial(store.remove, place)):
        with pytest.raises(OSError, match=r"\S"):
            ask()
    faults.plan("GET")
    faults.plan("HEAD")
    for ask in (partial(store.delete, place / "a"), partial(store.remove, place)):
        with pytest.raises(OSError, match=r"\S"):
            ask()
    faults.planned.clear()
    assert list(store.files(place)) == ["a"]


def never_taken_for_a_no(faults: Faults, ask: Callable[[], Any], step: int = 1) -> None:
    """Check that who asks for several things hears of an outage, after whichever of the answers it begins.

    :param step: not after each of them, but each so many
    """
    faults.requests.clear()
    expected = ask()
    for answered in range(0, len(faults.requests), step):
        faults.left = answered
        try:
            answer = ask()
        except OSError:
            continue
        finally:
            faults.left = None
        assert answer, f"after {answered} answers nobody knows"
        assert answer == expected  # a client may ask for more than it needs


@pytest.mark.slow
def test_a_checkpoint_that_is_not_wholly_read_is_not_taken_for_one_that_lacks_something(
    place: Path, faults: Faults, tmp_path: Path
) -> None:
    local = crafted.checkpoint(tmp_path / "local", batches=1)
    store = store_of(place)
    for path in store_of(tmp_path).files(local.path):
        store.copy(local.path / path, place / path, of=store_of(tmp_path))
    there = Checkpoint(place)
    assert integrity.files_of(there, 0) == integrity.files_of(local, 0)
    never_taken_for_a_no(faults, partial(integrity.newest_whole, there), step=4)
    for ask in (
        partial(StateDirectory(place).operators, 0),
        lambda: list(there.initial_positions()),
        partial(there.newer_state, 0),
        partial(there.state_names_are_unique, 0),
        partial(is_there, place / "offsets"),
        partial(is_there, place / "nothing"),
    ):
        never_taken_for_a_no(faults, ask)


def test_what_is_set_aside_is_whole_before_anything_is_removed(place: Path, faults: Faults) -> None:
    store, home = store_of(place), Home(str(place), place)
    torn, names = place / "lineages" / "torn", {"a/1", "b"}
    for name in names:
        store.create(torn / name, name.encode())
    for answered in count():
        faults.left = answered
        with suppress(OSError):
            set_aside(home, torn)
        is_done, faults.left = faults.left >= 0, None
        aside = {path.partition("/")[2] for path in store.files(place / "set-aside")}
        assert names == aside or names == {*store.files(torn)}
        if is_done:
            break
    assert answered > 2 * len(names)
    assert not store.files(torn)


def test_the_file_of_a_version_that_can_not_be_read_now_is_not_taken_for_lost(place: Path, faults: Faults) -> None:
    home = Home(str(place), place)
    releases.keep(home, "v1", Path("job.py"), b"print()")
    assert releases.application(home, "v1") is not None
    never_taken_for_a_no(faults, partial(releases.application, home, "v1"))


def test_a_failure_that_can_not_be_written_down_is_told_by_the_exit_code(place: Path, faults: Faults) -> None:
    home = Home(str(place), place)
    report = DriverReport(home, "token", "shop")
    report.own()
    error = FencedError("run 2 of shop has begun")
    faults.left = 0
    try:
        assert report.failed(error, error) == FencedError.exit_code
    finally:
        faults.left = None
