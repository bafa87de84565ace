"""Google Cloud Storage: by conditions on an object's generation, a number that each of its contents gets anew."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from aiohttp import ClientConnectorError, ClientError, ClientTimeout, ConnectionTimeoutError
from fsspec.asyn import sync
from gcsfs.core import GCSFileSystem
from gcsfs.retry import HttpError, NonRetryableError
from google.auth.exceptions import GoogleAuthError
from typing_extensions import override

from airflow_provider_exactlyonce.storage.conditional import (
    MARK,
    Condition,
    ConditionalStore,
    ObjectMetadata,
    UnmadeError,
)
from airflow_provider_exactlyonce.storage.store import ChangedError, FileFacts, OutcomeUnknownError, Stored

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: For a connection, and for an answer to a document: watchers wait for them.
_PATIENCE: Final = ClientTimeout(total=None, sock_connect=5, sock_read=15)
#: Seconds before each try of a question; it changes nothing.
_LOOKS: Final = (0.0, 0.2, 0.5)
#: Refusals after which the same request may succeed.
_TEMPORARY: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
_DENIED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
#: There was no connection, or no valid token: the server has not heard of the request.
_UNSENT: Final = (ClientConnectorError, ConnectionTimeoutError, GoogleAuthError, HttpError, NonRetryableError)
_FAILURES: Final = (OSError, ClientError, *_UNSENT)

_DELETED_AT_ONCE: Final = 16


def open_store(system: AbstractFileSystem) -> GcsStore:
    """Return the store of a file system, with its credentials.

    :param system: of gcsfs, whichever of its kinds
    """
    options = {**system.storage_options, "use_listings_cache": False, "skip_instance_cache": True}
    return GcsStore(GCSFileSystem(**options))


class _NotFoundError(OSError):
    """A 404, perhaps of a proxy."""


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The server's answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_final(self) -> bool:
        """Whether the same request would fail again, and has done nothing."""
        return 400 <= self.status < 500 and self.status not in _TEMPORARY

    @property
    def message(self) -> str | None:
        """The error's text in Google's JSON; None when it has none, as a proxy's answer."""
        try:
            return str(json.loads(self.body)["error"]["message"])
        except (ValueError, TypeError, KeyError):
            return None

    @property
    def is_missing(self) -> bool:
        """Whether it says that there is no such object; a proxy's 404 does not, nor one that there is no bucket."""
        message = self.message
        return self.status == HTTPStatus.NOT_FOUND and message is not None and "bucket does not exist" not in message

    def json(self) -> dict[str, Any]:
        """Return the metadata of an object, or objects."""
        return json.loads(self.body) or {}

    def error(self, place: Path | str) -> OSError:
        """Return the error that it stands for."""
        message = self.message
        if message is None:
            message = " ".join(self.body.decode(errors="replace").split())[:300]
        text = f"{place}: Google Cloud Storage answers {self.status}: {message}"
        if self.status == HTTPStatus.NOT_FOUND:
            return _NotFoundError(text)
        return PermissionError(text) if self.status in _DENIED else OSError(text)


class GcsStore(ConditionalStore):
    """Objects of one server.

    :param system: of gcsfs; copies, and repeats unanswered requests by itself
    """

    failures = _FAILURES
    remedy = (
        "The server has to keep the condition ifGenerationMatch of inserts and deletes; `exactlyonce help homes` has "
        "the servers that were tested"
    )

    @override
    def read(self, place: Path) -> Stored | None:
        failure: OSError | None = None
        for pause in _LOOKS:
            time.sleep(pause)
            try:
                answer = self._ask("GET", place, self._url(place), alt="media")
            except _NotFoundError as error:  # in plain words, as the server says it of content, and a proxy of anything
                failure, answer = error, None
                if self._metadata(place) is not None:
                    continue  # it was made meanwhile, or it was a proxy
            if answer is None:
                return None
            return Stored(content=answer.body, version=answer.headers["X-Goog-Generation"])
        assert failure is not None
        raise failure

    @override
    def delete(self, place: Path) -> None:
        self._ask("DELETE", place, self._url(place))

    @override
    def _unchanged(self, version: str | None) -> Condition:
        return {"ifGenerationMatch": version or "0"}

    @override
    def _put(self, place: Path, content: bytes, mark: str, condition: Condition) -> str:
        bucket, key = self._split(place)
        headers, body = _multipart({"name": key, "metadata": {MARK: mark}}, content)
        url = f"{self.system._location}/upload/storage/v1/b/{bucket}/o"
        answer = self._send_write(place, "POST", url, {"uploadType": "multipart", **condition}, headers, body)
        return str(answer.json()["generation"])

    @override
    def _drop(self, place: Path, condition: Condition) -> None:
        self._send_write(place, "DELETE", self._url(place), condition)

    @override
    def _metadata(self, place: Path) -> ObjectMetadata | None:
        answer = self._ask("GET", place, self._url(place))
        if answer is None:
            return None
        metadata = answer.json()
        facts = FileFacts(size=int(metadata["size"]), modified=datetime.fromisoformat(metadata["updated"]).timestamp())
        return ObjectMetadata(
            facts=facts, version=str(metadata["generation"]), mark=metadata.get("metadata", {}).get(MARK)
        )

    @override
    def _listed(self, bucket: str, prefix: str, delimiter: str) -> Iterator[str]:
        page: dict[str, Any] = {"nextPageToken": None}
        while "nextPageToken" in page:
            continuation = {"pageToken": token} if (token := page["nextPageToken"]) else {}
            url, place = self._objects(bucket), f"gs://{bucket}/{prefix}"
            answer = self._ask("GET", place, url, prefix=prefix, delimiter=delimiter, **continuation)
            page = answer.json() if answer else {}
            yield from (item["name"] for item in page.get("items", ()))
            yield from page.get("prefixes", ())

    @override
    def remove(self, directory: Path) -> None:
        bucket, key = self._split(directory)
        names = list(self._listed(bucket, f"{key.strip('/')}/", delimiter=""))

        def delete(name: str) -> None:
            self._ask("DELETE", f"gs://{bucket}/{name}", f"{self._objects(bucket)}/{quote(name, safe='')}")

        with ThreadPoolExecutor(_DELETED_AT_ONCE) as pool:
            list(pool.map(delete, names))

    def _send_write(self, place: Path, method: str, *request: Any) -> _Answer:
        """Send a request that writes, once; raises an error by the outcome."""
        try:
            answer = self._send(method, *request)
        except _UNSENT as error:
            raise UnmadeError(str(_as_os_error(error))) from error
        except _FAILURES as error:
            raise OutcomeUnknownError(str(_as_os_error(error))) from error
        if answer.status < 300:
            return answer
        refusal = answer.error(place)
        is_gone = answer.is_missing and method == "DELETE"
        if answer.status == HTTPStatus.PRECONDITION_FAILED or is_gone:
            raise ChangedError(f"{place} is not what it was when it was read") from refusal
        if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise UnmadeError(str(refusal)) from refusal
        if answer.is_final:
            raise refusal
        raise OutcomeUnknownError(str(refusal)) from refusal

    def _ask(self, method: str, place: Path | str, url: str, **parameters: str) -> _Answer | None:
        """Send a request until it is answered; returns None when there is no such object."""
        failure: OSError | None = None
        for pause in _LOOKS:
            time.sleep(pause)
            try:
                answer = self._send(method, url, parameters)
            except _FAILURES as error:
                failure = _as_os_error(error)
                continue
            if answer.status < 300:
                return answer
            failure = answer.error(place)
            if answer.is_missing:
                return None
            if answer.is_final:
                break
        assert failure is not None
        raise failure

    def _send(
        self,
        method: str,
        url: str,
        parameters: Mapping[str, str],
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> _Answer:
        """Send a request once."""
        self.system.credentials.maybe_refresh()  # here, as it waits for an answer, and others use the loop

        async def send() -> _Answer:
            session = await self.system._set_session()
            # aiohttp would send a DELETE again when the connection is closed before the answer. Only a private switch
            # keeps it from that; tests/integration/storage/test_faults.py is its contract test.
            session._retry_connection = False
            async with session.request(
                method,
                url,
                params=self.system._get_params(parameters),
                headers=self.system._get_headers(headers),
                data=body,
                timeout=_PATIENCE,
            ) as answer:
                return _Answer(status=answer.status, headers=answer.headers, body=await answer.read())

        sent: _Answer = sync(self.system.loop, send)
        return sent

    def _objects(self, bucket: str) -> str:
        return f"{self.system.base}b/{bucket}/o"

    def _url(self, place: Path) -> str:
        bucket, key = self._split(place)
        return f"{self._objects(bucket)}/{quote(key, safe='')}"


def _multipart(metadata: Mapping[str, Any], content: bytes) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a request with an object and its metadata."""
    boundary = uuid.uuid4().hex
    parts = (
        (b"application/json; charset=UTF-8", json.dumps(metadata).encode()),
        (b"application/octet-stream", content),
    )
    line = f"--{boundary}".encode()
    pieces = [b"%s\r\nContent-Type: %s\r\n\r\n%s\r\n" % (line, kind, part) for kind, part in parts]
    return {"Content-Type": f"multipart/related; boundary={boundary}"}, b"".join([*pieces, line, b"--\r\n"])


def _as_os_error(error: BaseException) -> OSError:
    return error if isinstance(error, OSError) else OSError(f"Google Cloud Storage: {error!r}")
