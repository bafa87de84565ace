"""S3, and what speaks its language: by conditional PUT and DELETE.

Each conditional request is sent once by the client below, and repeated only here, where it is known that an earlier
one was not answered: a server that refuses the second because the first was made must not make us believe that somebody
else was faster. So each write carries a mark of its own in the object's metadata, which tells whose it was.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiobotocore.httpsession import AIOHTTPSession
from aiohttp import ClientError as BrokenAnswerError
from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, ConnectTimeoutError, HTTPClientError
from botocore.parsers import ResponseParserError
from typing_extensions import override

from airflow_provider_exactlyonce.storage.remote import RemoteStore, path_of
from airflow_provider_exactlyonce.storage.store import (
    ChangedError,
    Facts,
    OutcomeUnknownError,
    Stored,
)

if TYPE_CHECKING:
    from s3fs import S3FileSystem

T = TypeVar("T")

#: Name of the metadata that tells whose write it was.
_MARK: Final = "exactlyonce-write"
#: Seconds for a connection, and for an answer to a document: watchers wait for them.
_PATIENCE: Final = {"connect_timeout": 5, "read_timeout": 15}
#: How often a question is asked; it changes nothing.
_ATTEMPTS: Final = 3
#: Seconds before each try of a conditional request.
_PAUSES: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)
#: The condition was not met.
_NOT_MET: Final = frozenset({"PreconditionFailed", "412"})
#: Two conditional requests met; neither this one was made, nor was its condition judged.
_AGAIN: Final = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})
_MISSING: Final = frozenset({"NoSuchKey", "404"})
#: HTTP status of a refusal after which the same request may succeed.
_TEMPORARY: Final = frozenset({408, 409, 425, 429})
_FAILURES: Final = (OSError, BotoCoreError, ClientError, ResponseParserError, BrokenAnswerError)


def open_store(system: S3FileSystem) -> S3Store:
    """Return the store of a file system, with its credentials."""

    def client(attempts: int, **more: Any) -> S3FileSystem:
        options = {**system.storage_options, "use_listings_cache": False, "skip_instance_cache": True}
        retries = {"total_max_attempts": attempts, "mode": "standard"}
        config = {**_PATIENCE, **options.get("config_kwargs", {}), "retries": retries, **more}
        made = type(system)(**{**options, "config_kwargs": config})
        made.retries = 1  # of s3fs, around those
        return made

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


class S3Store(RemoteStore):
    """Objects of one endpoint.

    :param system: what lists, copies and removes; it repeats by itself what was not answered
    :param once: the same, without repetition
    """

    silence_seconds = 30.0  # a request that is not answered may take two thirds of it
    seconds_per_read = 5.0
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
            answer = await self.system._call_s3("get_object", **self._where(place))
            async with answer["Body"] as body:
                return Stored(content=await body.read(), version=answer["ETag"])

        return self._asked(lambda: sync(self.system.loop, get))

    @override
    def facts(self, place: Path) -> Facts | None:
        answer = self._asked(lambda: self.system.call_s3("head_object", **self._where(place)))
        if answer is None:
            return None
        return Facts(size=answer["ContentLength"], modified=answer["LastModified"].timestamp())

    @override
    def create(self, place: Path, content: bytes) -> str:
        try:
            return self._put(place, content, IfNoneMatch="*")
        except ChangedError:
            raise FileExistsError(str(place)) from None

    @override
    def replace(self, place: Path, content: bytes, *, durable: bool = True) -> str:
        return self._put(place, content)

    @override
    def replace_if(self, place: Path, content: bytes, version: str, *, durable: bool = True) -> str:
        return self._put(place, content, IfMatch=version)

    @override
    def delete_if(self, place: Path, version: str) -> None:
        refused: OSError | None = None
        for pause in _PAUSES:
            time.sleep(pause)
            try:
                self._once.call_s3("delete_object", **self._where(place), IfMatch=version)
            except _FAILURES as error:
                code = code_of(error)
                if code in _MISSING:
                    return
                if code in _NOT_MET:
                    if self.facts(place) is None:  # some servers say so of what is gone
                        return
                    raise ChangedError(f"{place} was changed since it was read") from error
                if _is_final(error):
                    raise
                refused = error if isinstance(error, OSError) else OSError(str(error))
            else:
                return
        if self.facts(place) is None:
            return
        raise OutcomeUnknownError(f"nobody knows whether {place} was deleted: {refused}") from refused

    @override
    def names(self, directory: Path) -> Sequence[str]:
        bucket, key, _ = self._once.split_path(path_of(directory))
        where = {"Bucket": bucket, "Prefix": f"{key.strip('/')}/", "Delimiter": "/"}
        names: set[str] = set()
        page: dict[str, Any] = {"IsTruncated": True}
        while page["IsTruncated"]:  # s3fs lists the directory above as well when there is nothing in this one
            more = {"ContinuationToken": token} if (token := page.get("NextContinuationToken")) else {}
            ask = functools.partial(self.system.call_s3, "list_objects_v2", **where, **more)
            page = self._asked(ask) or {"IsTruncated": False}
            keys = [entry["Key"] for entry in page.get("Contents", ())]
            keys += [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
            names |= {key.removeprefix(where["Prefix"]).rstrip("/") for key in keys}
        return sorted(names - {""})

    def _where(self, place: Path) -> dict[str, str]:
        bucket, key, _ = self._once.split_path(path_of(place))
        return {"Bucket": bucket, "Key": key}

    def _asked(self, question: Callable[[], T]) -> T | None:
        """Return the answer to a question that changes nothing; None is: there is no such object."""
        try:
            return question()
        except _FAILURES as error:
            if code_of(error) in _MISSING:
                return None
            raise error if isinstance(error, OSError) else OSError(str(error)) from error

    def _put(self, place: Path, content: bytes, **condition: str) -> str:
        """Write an object, if the condition is met.

        :raises ChangedError: it is not, and nothing was written
        """
        where, mark, failed, unanswered = self._where(place), uuid.uuid4().hex, None, None
        for pause in _PAUSES:
            time.sleep(pause)
            try:
                answer = self._once.call_s3("put_object", **where, Body=content, Metadata={_MARK: mark}, **condition)
            except _FAILURES as error:
                code = code_of(error)
                refused = code in _NOT_MET or (code in _MISSING and "IfMatch" in condition)
                if refused and unanswered is None:
                    raise ChangedError(f"{place} is not what it was when it was read") from error
                if refused:
                    break
                failed = error
                if code in _AGAIN or isinstance(error, ConnectTimeoutError):  # of a server that has not heard of it
                    continue
                if _is_final(error):
                    raise
                unanswered = error
            else:
                return str(answer["ETag"])
        if unanswered is None:
            raise OSError(f"{place} was not written: {failed}") from failed
        # One that was not answered may have been made, and be the reason why the next was refused.
        head = self._asked(lambda: self.system.call_s3("head_object", **where))
        if head is not None and head["Metadata"].get(_MARK) == mark:
            return str(head["ETag"])
        raise OutcomeUnknownError(f"nobody knows whether {place} was written: {unanswered}") from unanswered


def code_of(error: BaseException) -> str | None:
    """Return the error code of an answer, None when there was no answer."""
    answer = _answer(error)
    if answer is not None:
        return str(answer.get("Error", {}).get("Code"))
    return "404" if isinstance(error, FileNotFoundError) else None


def _answer(error: BaseException) -> dict[str, Any] | None:
    """Return what the server answered: s3fs keeps it as the cause of the error that it makes."""
    answers = (getattr(raised, "response", None) for raised in (error, error.__cause__))
    return next((answer for answer in answers if isinstance(answer, dict)), None)


def _is_final(error: BaseException) -> bool:
    """Whether the same request would fail again, and has done nothing."""
    answer = _answer(error)
    if answer is not None:
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return 400 <= status < 500 and status not in _TEMPORARY
    return isinstance(error, BotoCoreError) and not isinstance(error, HTTPClientError | ConnectionError)
