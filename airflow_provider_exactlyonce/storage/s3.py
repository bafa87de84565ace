"""S3 and compatible servers: by conditional PUT and DELETE."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiobotocore.httpsession import AIOHTTPSession
from aiohttp import ClientError as BrokenAnswerError
from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, ConnectTimeoutError, HTTPClientError
from botocore.parsers import ResponseParserError
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
    from s3fs import S3FileSystem

T = TypeVar("T")

#: Seconds for a connection, and for an answer to a document: watchers wait for them.
_PATIENCE: Final = {"connect_timeout": 5, "read_timeout": 15}
#: All threads of a triggerer that look at homes share a client.
_CONNECTIONS: Final = {"max_pool_connections": 100}
#: How often a question is asked; it changes nothing.
_ATTEMPTS: Final = 3
#: The condition was not met.
_NOT_MET: Final = frozenset({"PreconditionFailed", "412"})
#: Two conditional requests met; neither this one was made, nor was its condition judged.
_AGAIN: Final = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})
#: There is no such object. A bare 404 is no answer of a store's, but to a HEAD: a proxy before it may say so, too.
_MISSING: Final = "NoSuchKey"
_BARE: Final = "404"
#: How many objects one request may delete.
_DELETED_AT_ONCE: Final = 1000
#: HTTP status of a refusal after which the same request may succeed.
_TEMPORARY: Final = frozenset({408, 409, 425, 429})
#: The library has no error of its own for credentials that it gets, and that have expired already.
_EXPIRED: Final = "credentials are still expired"
_FAILURES: Final = (OSError, BotoCoreError, ClientError, ResponseParserError, BrokenAnswerError, RuntimeError)


def open_store(system: S3FileSystem) -> S3Store:
    """Return the store of a file system, with its credentials."""

    def client(attempts: int, **more: Any) -> S3FileSystem:
        options = {**system.storage_options, "use_listings_cache": False, "skip_instance_cache": True}
        retries = {"total_max_attempts": attempts, "mode": "standard"}
        config = {**_PATIENCE, **_CONNECTIONS, **options.get("config_kwargs", {}), "retries": retries, **more}
        configured = type(system)(**{**options, "config_kwargs": config})
        configured.retries = 1  # of s3fs, around those
        return configured

    return S3Store(client(_ATTEMPTS), client(1, http_session_cls=_SendingOnce))


class _SendingOnce(AIOHTTPSession):  # type: ignore[misc]  # its package has no types
    """Keeps aiohttp from sending a request again when the connection is closed before the answer.

    It does so with each PUT and DELETE, which repeated change nothing; but one with a condition is refused the second
    time, because of the first. Only a private switch keeps it from that; ``tests/integration/storage/test_faults.py``
    is its contract test.
    """

    @override
    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        session._retry_connection = False
        return session


class S3Store(ConditionalStore):
    """Objects of one endpoint.

    :param system: lists, copies and removes; it repeats unanswered requests by itself
    :param once: the same, without repetition
    """

    failures = _FAILURES
    remedy = (
        "Conditional writes (If-None-Match, If-Match) have to be supported by the server and allowed by the bucket's "
        "policy; `exactlyonce help homes` has the servers that were tested"
    )

    def __init__(self, system: S3FileSystem, once: S3FileSystem) -> None:
        super().__init__(system)
        self._once: Final = once

    @override
    def read(self, place: Path) -> Stored | None:
        from fsspec.asyn import sync

        async def get() -> Stored:
            answer = await self.system._call_s3("get_object", **self._object_key(place))
            async with answer["Body"] as body:
                return Stored(content=await body.read(), version=answer["ETag"])

        return self._ask(place, lambda: sync(self.system.loop, get))

    def _object_key(self, place: Path) -> dict[str, str]:
        bucket, key = self._split(place)
        return {"Bucket": bucket, "Key": key}

    def _ask(self, place: Path | str, question: Callable[[], T]) -> T | None:
        """Return the answer to a question that changes nothing; None is: there is no such object."""
        try:
            return question()
        except _FAILURES as error:
            code = code_of(error)
            if code == _MISSING:
                return None
            raise _as_os_error(place, error) from error

    @override
    def delete(self, place: Path) -> None:
        self._ask(place, lambda: self.system.call_s3("delete_object", **self._object_key(place)))

    @override
    def _unchanged(self, version: str | None) -> Condition:
        return {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}

    @override
    def _put(self, place: Path, content: bytes, mark: str, condition: Condition) -> str:
        answer = self._send_write("put_object", place, condition, Body=content, Metadata={MARK: mark})
        return str(answer["ETag"])

    @override
    def _drop(self, place: Path, condition: Condition) -> None:
        self._send_write("delete_object", place, condition)

    @override
    def _metadata(self, place: Path) -> ObjectMetadata | None:
        try:
            answer = self._ask(place, lambda: self.system.call_s3("head_object", **self._object_key(place)))
        except OSError as error:
            if code_of(error.__cause__ or error) != _BARE or self.read(place) is not None:
                raise
            answer = None
        if answer is None:
            return None
        facts = FileFacts(size=answer["ContentLength"], modified=answer["LastModified"].timestamp())
        return ObjectMetadata(facts=facts, version=answer["ETag"], mark=answer["Metadata"].get(MARK))

    @override
    def _listed(self, bucket: str, prefix: str, delimiter: str) -> Iterator[str]:
        arguments = {"Bucket": bucket, "Prefix": prefix, "Delimiter": delimiter}
        page: dict[str, Any] = {"IsTruncated": True}
        while page["IsTruncated"]:  # s3fs lists the directory above as well when there is nothing in this one
            continuation = {"ContinuationToken": token} if (token := page.get("NextContinuationToken")) else {}
            ask = functools.partial(self.system.call_s3, "list_objects_v2", **arguments, **continuation)
            page = self._ask(f"s3://{bucket}/{prefix}", ask) or {"IsTruncated": False}
            yield from (entry["Key"] for entry in page.get("Contents", ()))
            yield from (entry["Prefix"] for entry in page.get("CommonPrefixes", ()))

    @override
    def remove(self, directory: Path) -> None:
        bucket, key = self._split(directory)
        names = list(self._listed(bucket, f"{key.strip('/')}/", delimiter=""))
        for first in range(0, len(names), _DELETED_AT_ONCE):
            objects = [{"Key": name} for name in names[first : first + _DELETED_AT_ONCE]]
            arguments = {"Bucket": bucket, "Delete": {"Objects": objects, "Quiet": True}}
            answer = self._ask(directory, functools.partial(self.system.call_s3, "delete_objects", **arguments)) or {}
            for error in answer.get("Errors", ()):  # which s3fs passes over
                raise OSError(f"s3://{bucket}/{error['Key']} was not deleted: {error['Code']}: {error['Message']}")

    def _send_write(self, method: str, place: Path, condition: Condition, **arguments: Any) -> Any:
        """Send a request that writes, once; raises an error by the outcome."""
        try:
            return self._once.call_s3(method, **self._object_key(place), **arguments, **condition)
        except _FAILURES as error:
            code = code_of(error)
            if code in _NOT_MET or (code == _MISSING and "IfMatch" in condition):
                raise ChangedError(f"{place} is not what it was when it was read") from error
            if code in _AGAIN or _is_unsent(error):
                raise UnmadeError(str(error)) from error
            if _is_final(error) and code != _BARE:
                raise _as_os_error(place, error) from error
            raise OutcomeUnknownError(str(error)) from error


def code_of(error: BaseException) -> str | None:
    """Return the error code of an answer, None when there was no answer."""
    answer = _answer(error)
    if answer is not None:
        return str(answer.get("Error", {}).get("Code"))
    return "404" if isinstance(error, FileNotFoundError) else None


def _answer(error: BaseException) -> dict[str, Any] | None:
    """Return the server's answer: s3fs keeps it as the cause of its own error."""
    answers = (getattr(raised, "response", None) for raised in (error, error.__cause__))
    return next((answer for answer in answers if isinstance(answer, dict)), None)


def _is_final(error: BaseException) -> bool:
    """Whether the same request would fail again, and has done nothing."""
    status = (_answer(error) or {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return 400 <= status < 500 and status not in _TEMPORARY


def _is_unsent(error: BaseException) -> bool:
    """Whether there was no connection, or there were no valid credentials: the server has not heard of the request."""
    if isinstance(error, BotoCoreError):
        is_of_connection = isinstance(error, HTTPClientError | ConnectionError)
        return isinstance(error, ConnectTimeoutError) or not is_of_connection
    return isinstance(error, RuntimeError) and _EXPIRED in str(error)


def _as_os_error(place: Path | str, error: BaseException) -> OSError:
    if not isinstance(error, OSError) or code_of(error) == _BARE:
        return OSError(f"{place}: {error}")
    kind = type(error) if type(error).__module__ == "builtins" else OSError  # others are made in their own way
    message = f"{place}: {error.strerror or error}"
    return kind(message) if error.errno is None else kind(error.errno, message)
