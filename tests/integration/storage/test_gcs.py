"""What Google Cloud Storage alone does when it fails, and how it is reached."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from google.auth.exceptions import TransportError
from upath import UPath

from airflow_provider_exactlyonce.storage import conditional
from airflow_provider_exactlyonce.storage import gcs as adapter
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError, Store
from tests import object_stores
from tests.integration.storage.reached_homes import check_reached
from tests.object_stores import Faults, Kind

pytestmark = pytest.mark.filterwarnings("default")

ALWAYS = 100


@pytest.fixture(scope="module")
def kind() -> Kind:
    return object_stores.GCS


def content(store: Store, place: Path) -> bytes | None:
    stored = store.read(place)
    return stored.content if stored else None


def test_a_request_that_was_never_sent_leaves_no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional, "PAUSES", (0.0, 0.0))
    nobody = object_stores.GCS.place("http://127.0.0.1:1")
    with pytest.raises(OSError, match="was not written: Cannot connect") as refused:
        store_of(nobody).create(nobody, b"mine")
    assert not isinstance(refused.value, OutcomeUnknownError)


def test_without_a_valid_token_nothing_is_sent(store: Store, place: Path, faults: Faults) -> None:
    assert isinstance(store, adapter.GcsStore)
    faults.plan("POST")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store.system.credentials, "maybe_refresh", _fail_to_refresh)
        with pytest.raises(OSError, match=r"was not written: .*token server") as refused:
            store.create(place, b"mine")
        assert not isinstance(refused.value, OutcomeUnknownError)
        with pytest.raises(OSError, match="token server"):
            store.read(place)
    assert not faults.seen


def _fail_to_refresh() -> None:
    raise TransportError("the token server does not answer")


def test_one_that_is_told_to_write_less_often_was_not_made(store: Store, place: Path, faults: Faults) -> None:
    faults.plan("POST", *["429"] * ALWAYS)
    with pytest.raises(OSError, match="was not written") as refused:
        store.create(place, b"mine")
    assert not isinstance(refused.value, OutcomeUnknownError)
    faults.plan("POST", "429")
    store.create(place, b"mine")
    faults.plan("POST", "429")
    with pytest.raises(FileExistsError):
        store.create(place, b"another")
    assert content(store, place) == b"mine"


def test_a_bucket_that_is_not_there_is_written_to_by_nobody(gcs: str) -> None:
    elsewhere: Any = UPath("gs://another/a", **object_stores.gcs_options(gcs))
    with pytest.raises(OSError, match="gs://another/a: Google Cloud Storage answers 404"):
        store_of(elsewhere).create(elsewhere, b"x")


def test_google_s_word_for_a_bucket_that_is_not_there_is_not_taken_for_no_file(
    store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps({"error": {"code": 404, "message": "The specified bucket does not exist."}}).encode()
    answer = adapter._Answer(status=404, headers={}, body=body)
    monkeypatch.setattr(adapter.GcsStore, "_send", lambda *_, **__: answer)
    for question in (store.read, store.facts, store.names):
        with pytest.raises(OSError, match="bucket does not exist"):
            question(place)


def test_a_file_that_is_made_while_it_is_asked_for_is_read(
    store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = adapter.GcsStore._metadata

    def metadata(self: adapter.GcsStore, place: Path) -> conditional.ObjectMetadata | None:
        monkeypatch.undo()
        self.create(place, b"another's")
        return look(self, place)

    monkeypatch.setattr(adapter.GcsStore, "_metadata", metadata)
    assert content(store, place) == b"another's"


@pytest.mark.parametrize("status", [401, 403])
def test_one_who_is_denied_is_told_so(store: Store, place: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    answer = adapter._Answer(status=status, headers={}, body=b"Anonymous caller")
    monkeypatch.setattr(adapter.GcsStore, "_send", lambda *_, **__: answer)
    with pytest.raises(PermissionError, match=f"answers {status}: Anonymous caller"):
        store.read(place)
    with pytest.raises(PermissionError, match="Anonymous caller"):
        store.create(place, b"x")


def test_a_long_directory_is_listed_page_by_page(store: Store, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [
        {"items": [{"name": "top/"}, {"name": "top/b"}], "nextPageToken": "more"},
        {"prefixes": ["top/a/"], "items": [{"name": "top/c"}]},
    ]
    asked: list[dict[str, str]] = []

    def send(self: object, method: str, url: str, parameters: dict[str, str]) -> adapter._Answer:
        asked.append(parameters)
        return adapter._Answer(status=200, headers={}, body=json.dumps(pages[len(asked) - 1]).encode())

    monkeypatch.setattr(adapter.GcsStore, "_send", send)
    top: Any = object_stores.GCS.place("http://127.0.0.1:1", "top")
    assert list(store.names(top)) == ["a", "b", "c"]
    assert [parameters.get("pageToken") for parameters in asked] == [None, "more"]


def test_a_task_reaches_its_home_by_a_connection_and_a_command_by_the_environment(
    gcs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"gs://lake@bucket/{uuid.uuid4()}"
    check_reached(url, object_stores.gcs_connection(gcs), object_stores.gcs_environment(gcs), monkeypatch)


def test_the_mark_that_hadoop_makes_of_a_directory_is_not_in_it(gcs: str) -> None:
    folder: Any = object_stores.GCS.place(gcs)
    store = store_of(folder)
    store.replace(folder / "1" / "2.zip", b"")
    name = quote(f"{folder.path.removeprefix('bucket/')}/", safe="")
    upload = f"{gcs}/upload/storage/v1/b/bucket/o?uploadType=media&name={name}"
    urllib.request.urlopen(urllib.request.Request(upload, b"", method="POST")).close()
    assert list(store.names(folder)) == ["1"]
    assert list(store.files(folder)) == ["1/2.zip"]
    store.remove(folder)
    assert list(store.names(folder)) == list(store.files(folder)) == []


RACE = """
import sys, time
from upath import UPath
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import ChangedError
from tests import object_stores

address, folder, races = sys.argv[1], sys.argv[2], int(sys.argv[3])
folder = UPath(folder, **object_stores.gcs_options(address))
store = store_of(folder)
sys.stdin.readline()
won = 0
for race in range(races):
    try:
        store.create(folder / f"race-{race}", b"x")
    except FileExistsError:
        continue
    won += 1
counted = 0
while counted < races:
    stored = store.read(folder / "count")
    try:
        store.replace_if(folder / "count", b"%d" % (int(stored.content) + 1), stored.version)
    except ChangedError:
        continue
    counted += 1
print(won)
"""


@pytest.mark.slow
def test_of_many_processes_one_creates_a_file_and_none_loses_a_number(gcs: str) -> None:
    folder, races, writers = object_stores.GCS.place(gcs), 10, 3
    store_of(folder).create(folder / "count", b"0")
    command = [sys.executable, "-c", RACE, gcs, str(folder), str(races)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(writers)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=90)[0] for process in processes]
    assert sum(map(int, said)) == races
    assert content(store_of(folder), folder / "count") == b"%d" % (races * writers)
