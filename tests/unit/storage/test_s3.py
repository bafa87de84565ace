"""What S3's client fails with before it has asked anybody, and no server ever answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from aiobotocore.credentials import AioRefreshableCredentials
from botocore.exceptions import CredentialRetrievalError, NoCredentialsError
from upath import UPath

from airflow_provider_exactlyonce.storage import conditional
from airflow_provider_exactlyonce.storage.s3 import S3Store
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError, is_no_answer

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
PLACE: Any = UPath("s3://bucket/shop/lease.json")


class Client:
    """A client that fails before it sends its first requests, and does the others.

    :param failures: of its first requests
    """

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def call_s3(self, method: str, **arguments: Any) -> dict[str, Any]:
        if self._failures:
            raise self._failures.pop(0)
        return {"ETag": "1", "ContentLength": 4, "LastModified": LONG_AGO, "Metadata": {}}


def store(*failures: Exception) -> S3Store:
    client: Any = Client(*failures)
    return S3Store(client, client)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional, "PAUSES", (0.0, 0.0, 0.0))


def expired() -> RuntimeError:
    """Return what the library says of credentials that it has fetched, and that have expired already."""
    was = {
        "access_key": "a",
        "secret_key": "b",
        "token": "c",
        "expiry_time": LONG_AGO.isoformat(),
    }

    async def refresh() -> dict[str, str]:
        return was

    async def use() -> None:
        made = AioRefreshableCredentials.create_from_metadata(was, refresh_using=refresh, method="test")
        await made.get_frozen_credentials()

    with pytest.raises(RuntimeError) as raised:
        asyncio.run(use())
    return raised.value


UNSENT: tuple[Callable[[], Exception], ...] = (
    lambda: CredentialRetrievalError(provider="container-role", error_msg="no answer"),
    NoCredentialsError,
    expired,
)


@pytest.mark.parametrize("failure", UNSENT)
def test_a_write_for_which_there_were_no_credentials_was_not_made_and_is_repeated(
    failure: Callable[[], Exception],
) -> None:
    store(failure()).create(PLACE, b"mine")
    store(failure()).replace_if(PLACE, b"mine", "0")
    store(failure()).delete_if(PLACE, "0")
    with pytest.raises(OSError, match=r"lease\.json was not written: \S") as raised:
        store(*(failure() for _ in conditional.PAUSES)).create(PLACE, b"mine")
    assert is_no_answer(raised.value)


@pytest.mark.parametrize("failure", UNSENT)
def test_what_was_not_asked_for_lack_of_credentials_is_not_known(failure: Callable[[], Exception]) -> None:
    with pytest.raises(OSError, match=r"s3://bucket/shop/: \S") as raised:
        store(failure()).names(PLACE.parent)
    assert is_no_answer(raised.value)


def test_what_else_goes_wrong_within_the_client_leaves_a_write_in_doubt() -> None:
    failing = store(*(RuntimeError("the transport is closed") for _ in conditional.PAUSES))
    with pytest.raises(OutcomeUnknownError):
        failing.delete_if(PLACE, "0")
