"""An object store that throttles, loses requests and loses answers: what was not answered is never taken for a no."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from upath import UPath

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage import s3
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import ChangedError, OutcomeUnknownError, Store, Stored
from tests import object_stores
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
