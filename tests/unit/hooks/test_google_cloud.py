"""What a task and a driver get of a connection to Google Cloud Storage, for a home in a bucket."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from upath import UPath

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.hooks.object_storage import (
    check_for_cluster,
    driver_environment,
    driver_files,
    open_place,
    split,
)

HOME = "gs://lake@bucket/shop"


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)

    def connect(conn_type: str = "google_cloud_platform", **extra: Any) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": conn_type, "extra": extra}))

    return connect


def opened() -> Any:
    return open_place("lake", UPath("gs://bucket/shop"))


def test_the_connection_is_taken_out_of_the_location() -> None:
    assert split(HOME) == ("lake", "gs://bucket/shop")


@pytest.mark.parametrize("prefix", ["", "extra__google_cloud_platform__"])
def test_a_key_in_the_connection_becomes_a_file(
    connect: Callable[..., None], key: dict[str, str], prefix: str, tmp_path: Path
) -> None:
    connect(**{f"{prefix}keyfile_dict": json.dumps(key)})
    file = Path(driver_environment(HOME, tmp_path)["GOOGLE_APPLICATION_CREDENTIALS"] or "")
    assert file.is_relative_to(tmp_path)
    ((named, text),) = driver_files(HOME, tmp_path).items()
    assert (named, json.loads(text)) == (file, key)
    place = opened()
    assert str(place) == "gs://bucket/shop"
    assert place.storage_options["token"].service_account_email == key["client_email"]
    assert "PRIVATE" not in repr(place) + str(place.storage_options)
    assert opened().storage_options["token"] is place.storage_options["token"], "it is read once, and renewed"


def test_a_key_s_file_is_handed_on_by_its_path(
    connect: Callable[..., None], key: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "key.json"
    file.write_text(json.dumps(key))
    connect(key_path=str(file))
    assert driver_environment(HOME, tmp_path / "here") == {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}
    assert opened().storage_options["token"].service_account_email == key["client_email"]
    assert not driver_files(HOME, tmp_path / "here")


def test_without_a_key_both_find_the_application_default_credentials(
    connect: Callable[..., None], tmp_path: Path
) -> None:
    connect()
    assert driver_environment(HOME, tmp_path) == {}
    assert opened().storage_options["token"] == "google_default"
    check_for_cluster(HOME)


def test_an_emulator_is_asked_without_credentials(connect: Callable[..., None], tmp_path: Path) -> None:
    connect(**{"gcs.endpoint": "http://127.0.0.1:4443/", "is_anonymous": True})
    assert driver_environment(HOME, tmp_path) == {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:4443"}
    options = opened().storage_options
    assert (options["token"], options["endpoint_url"]) == ("anon", "http://127.0.0.1:4443")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"key_secret_name": "a"}, "has key_secret_name: a home or a table on gs: takes a service account's key"),
        ({"impersonation_chain": "a@b"}, "has impersonation_chain"),
        ({"credential_config_file": "/a"}, "has credential_config_file"),
        ({"is_anonymous": True}, "has is_anonymous: an emulator takes both"),
        ({"gcs.endpoint": "http://elsewhere"}, r"has gcs\.endpoint: an emulator takes both"),
        ({"keyfile_dict": "hunter2"}, "no key of a service account in keyfile_dict"),
        ({"keyfile_dict": {"type": "authorized_user", "refresh_token": "hunter2"}}, "no key of a service account"),
        ({"keyfile_dict": {"type": "service_account"}, "key_path": "/a"}, "has key_path and keyfile_dict"),
        ({"key_path": "/nowhere/key.json"}, "has key_path, which can't be read"),
    ],
)
def test_what_is_no_way_to_a_home_is_refused_by_name_and_no_secret_is_shown(
    connect: Callable[..., None], tmp_path: Path, extra: dict[str, Any], message: str
) -> None:
    connect(**extra)
    with pytest.raises(RefusedError, match=message) as refused:
        opened()
    assert "hunter2" not in str(refused.value)
    if "key_path" not in extra:
        with pytest.raises(RefusedError, match=message):
            driver_environment(HOME, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_torn_key_is_refused_and_not_shown(connect: Callable[..., None], key: dict[str, str]) -> None:
    connect(keyfile_dict={**key, "private_key": "hunter2"})
    with pytest.raises(RefusedError, match="connection lake has no key of a service account") as refused:
        opened()
    assert "hunter2" not in str(refused.value)


def test_a_connection_of_another_type_is_refused(connect: Callable[..., None], tmp_path: Path) -> None:
    connect("aws")
    with pytest.raises(RefusedError, match="of type aws: a home on gs: takes one of type google_cloud_platform"):
        driver_environment(HOME, tmp_path)


def test_a_key_is_on_this_host_and_no_way_for_a_driver_in_a_cluster(
    connect: Callable[..., None], key: dict[str, str]
) -> None:
    for extra in ({"keyfile_dict": key}, {"key_path": "/key.json"}):
        connect(**extra)
        with pytest.raises(RefusedError, match="has a key, which only this host has"):
            check_for_cluster(HOME)
    check_for_cluster("gs://bucket/shop")
    check_for_cluster("s3://lake@bucket/shop")
