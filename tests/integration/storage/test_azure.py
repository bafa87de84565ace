"""What Azure's storage alone does, and how it is reached."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from azure.storage.blob import BlobClient, BlobServiceClient
from upath import UPath

from airflow_provider_exactlyonce.storage import azure_environment, conditional
from airflow_provider_exactlyonce.storage.opening import is_there, store_of
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError
from tests import azurite, object_stores
from tests.integration.storage.reached_homes import check_reached
from tests.object_stores import AZURE

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def blobs(address: str) -> BlobServiceClient:
    return BlobServiceClient(f"{address}/{azurite.ACCOUNT}", azurite.KEY)


def test_a_request_that_was_never_sent_leaves_no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional, "PAUSES", (0.0, 0.0))
    nobody = AZURE.place("http://127.0.0.1:1")
    with pytest.raises(OSError, match=r"was not written: .*refused") as refused:
        store_of(nobody).create(nobody, b"mine")
    assert not isinstance(refused.value, OutcomeUnknownError)


def test_without_credentials_nothing_is_sent_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional, "PAUSES", (0.0, 0.0))
    for name in ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")  # else it asks the host's metadata service
    place: Any = UPath("abfss://bucket/a", **azure_environment.options("orders"))
    with pytest.raises(OSError, match=r"was not written: .*EnvironmentCredential") as refused:
        store_of(place).create(place, b"mine")
    assert not isinstance(refused.value, OutcomeUnknownError)
    with pytest.raises(OSError, match="EnvironmentCredential"):
        store_of(place).read(place)


def test_a_container_that_is_not_there_is_not_taken_for_no_file(azure: str) -> None:
    elsewhere: Any = UPath("abfss://another/a", **azurite.options(azure))
    store = store_of(elsewhere)
    for use in (store.read, store.facts, store.names, lambda place: store.create(place, b"x")):
        with pytest.raises(OSError, match="Azure answers 404: ContainerNotFound"):
            use(elsewhere)


def test_one_who_is_denied_is_told_so(azure: str) -> None:
    given = azure_environment.options(azurite.ACCOUNT, key="d3Jvbmc=", endpoint=f"{azure}/{azurite.ACCOUNT}")
    place: Any = UPath("abfss://bucket/a", **given)
    store = store_of(place)
    for use in (store.read, lambda place: store.create(place, b"x")):
        with pytest.raises(PermissionError, match=r"Azure answers 403: Auth(orizationFailure|enticationFailed)"):
            use(place)


def test_a_directory_that_hadoop_has_made_is_no_file_and_is_removed_after_what_is_in_it(
    azure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Any = AZURE.place(azure)
    store = store_of(folder)
    store.replace(folder / "1" / "2.zip", b"")
    account = blobs(azure)
    key = folder.path.removeprefix("bucket/")
    for name in (key, f"{key}/1", f"{key}/empty"):
        account.get_blob_client("bucket", name).upload_blob(b"", metadata={"hdi_isfolder": "true"})
    assert list(store.names(folder)) == ["1"]
    assert list(store.files(folder)) == ["1/2.zip"]
    assert (store.facts(folder / "1"), store.read(folder / "1")) == (None, None)
    assert is_there(folder / "1")
    delete = BlobClient.delete_blob

    def delete_empty(self: BlobClient) -> None:
        below = account.get_container_client("bucket").list_blob_names(name_starts_with=f"{self.blob_name}/")
        assert list(below) == [], "an account with directories deletes empty ones only"
        delete(self)

    monkeypatch.setattr(BlobClient, "delete_blob", delete_empty)
    store.remove(folder)
    assert list(store.names(folder)) == list(store.files(folder)) == []
    assert list(account.get_container_client("bucket").list_blob_names(name_starts_with=key)) == []


@pytest.mark.parametrize("end", ["success", "failed", "replaced"])
def test_a_copy_that_takes_its_time_is_waited_for(azure: str, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    folder: Any = AZURE.place(azure)
    store, begin, look = store_of(folder), BlobClient.start_copy_from_url, BlobClient.get_blob_properties
    store.create(folder / "a", b"mine")
    looks = iter(["pending", end, end])

    def slow(self: BlobClient, url: str) -> dict[str, Any]:
        return {**begin(self, url), "copy_status": "pending"}

    def seen(self: BlobClient) -> Any:
        found = look(self)
        found.copy.status = next(looks)
        if found.copy.status == "replaced":
            found.copy.id = "of another"
        return found

    monkeypatch.setattr(BlobClient, "start_copy_from_url", slow)
    monkeypatch.setattr(BlobClient, "get_blob_properties", seen)
    if end == "success":
        store.copy(folder / "a", folder / "b")
    else:
        with pytest.raises(OSError, match=f"Azure's copy of .*/a is {end}"):
            store.copy(folder / "a", folder / "b")
    monkeypatch.setattr(BlobClient, "get_blob_properties", look)
    assert len(list(looks)) == (1 if end == "success" else 0)
    assert is_there(folder / "b") == (end != "failed"), "what a copy left is deleted as long as it is that copy's"


def test_what_is_copied_and_is_not_there_is_missing(azure: str, tmp_path: Path) -> None:
    folder: Any = AZURE.place(azure)
    store = store_of(folder)
    with pytest.raises(FileNotFoundError):
        store.copy(folder / "a", folder / "b")
    with pytest.raises(FileNotFoundError):
        store.copy(tmp_path / "a", folder / "b", of=store_of(tmp_path))
    assert not is_there(folder / "b")


def test_a_file_of_many_blocks_is_read_and_written_over_lost_answers(azure: str, tmp_path: Path) -> None:
    content = os.urandom(70_000_000)
    (tmp_path / "large").write_bytes(content)
    with object_stores.proxy(azure) as faults:
        folder: Any = AZURE.place(faults.address)
        store, local = store_of(folder), store_of(tmp_path)
        faults.plan("PUT", "", "503", "lose", "", "drop")
        store.copy(tmp_path / "large", folder / "large", of=local)
        faults.plan("GET", "", "503", "", "drop")
        local.copy(folder / "large", tmp_path / "back", of=store)
    assert (tmp_path / "back").read_bytes() == content


def test_a_task_reaches_its_home_by_a_connection_and_a_command_by_the_environment(
    azure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"abfss://lake@bucket/{uuid.uuid4()}"
    check_reached(url, azurite.connection(azure), azurite.environment(azure), monkeypatch)
