"""Azure's blobs: by conditions on a blob's ETag, which each of its contents gets anew."""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from azure.core import MatchConditions
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.storage.blob import BlobClient, BlobServiceClient, LinearRetry
from typing_extensions import override
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from airflow_provider_exactlyonce.storage import conditional
from airflow_provider_exactlyonce.storage.azure_environment import account_key, endpoint_of
from airflow_provider_exactlyonce.storage.conditional import Condition, ConditionalStore, ObjectMetadata, UnmadeError
from airflow_provider_exactlyonce.storage.remote import COPIED_BYTES
from airflow_provider_exactlyonce.storage.store import (
    ChangedError,
    FileFacts,
    OutcomeUnknownError,
    Readable,
    Store,
    Stored,
)

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")

# It would log each request and all its headers, unless somebody has said what it shall log.
_REQUESTS: Final = logging.getLogger("azure.core.pipeline.policies.http_logging_policy")
if _REQUESTS.level == logging.NOTSET:
    _REQUESTS.setLevel(logging.WARNING)

#: Names of metadata are names of a programming language's here.
_MARK: Final = conditional.MARK.replace("-", "_")
#: What Hadoop, and a storage account with directories, say of one.
_DIRECTORY: Final = "hdi_isfolder"
#: For a connection, and for an answer to a document: watchers wait for them. A request is sent once.
_PATIENCE: Final[Mapping[str, Any]] = {"connection_timeout": 5, "read_timeout": 15, "retry_total": 0}
#: Seconds before each try of a question; it changes nothing.
_LOOKS: Final = (0.0, 0.2, 0.5)
#: How many blobs are deleted at a time.
_DELETED_AT_ONCE: Final = 8
#: Between looks at a copy that Azure makes by itself; one within an account is made at once.
_COPY_SECONDS: Final = 0.5
#: A copy that gets no further for so long is given up.
_STALLED_SECONDS: Final = 300.0
_MISSING: Final = frozenset({"BlobNotFound", "CannotVerifyCopySource"})
#: The condition was not met.
_NOT_MET: Final = frozenset({"ConditionNotMet", "BlobAlreadyExists"})
#: HTTP status of a refusal after which the same request may succeed.
_TEMPORARY: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
_DENIED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_NO_CONNECTION: Final = (ConnectTimeoutError, NewConnectionError)
_FAILURES: Final = (OSError, AzureError)


def open_store(system: AbstractFileSystem) -> AzureStore:
    """Return the store of a file system, with its credentials.

    :param system: of adlfs
    :raises RefusedError: when no account was named
    """
    storage_options = system.storage_options
    url = endpoint_of(storage_options)
    key = account_key(storage_options)
    credential = (
        {"account_name": storage_options["account_name"], "account_key": key} if key else _identity(storage_options)
    )
    patient = {**_PATIENCE, "retry_policy": LinearRetry(backoff=1, retry_total=2)}
    return AzureStore(system, *(BlobServiceClient(url, credential, **words) for words in (_PATIENCE, patient)))


def _identity(storage_options: Mapping[str, Any]) -> Any:
    """Return what gets tokens: by a principal, or by what is found."""
    from azure.identity import ClientSecretCredential, DefaultAzureCredential  # with a key nobody needs it

    if "client_secret" not in storage_options:
        return DefaultAzureCredential(**_PATIENCE)
    return ClientSecretCredential(
        storage_options["tenant_id"], storage_options["client_id"], storage_options["client_secret"], **_PATIENCE
    )


class AzureStore(ConditionalStore):
    """Blobs of one account.

    :param system: of adlfs; it is not asked, as it takes the environment's credentials before those that it is given
    :param account: sends each request once
    :param patient: repeats what was not answered; for files that take several requests
    """

    failures = _FAILURES
    remedy = (
        "The server has to keep the conditions If-None-Match and If-Match of writes and deletes; `exactlyonce help "
        "homes` has the servers that were tested"
    )

    def __init__(self, system: AbstractFileSystem, account: BlobServiceClient, patient: BlobServiceClient) -> None:
        super().__init__(system)
        self._account: Final = account
        self._patient: Final = patient

    @override
    def read(self, place: Path) -> Stored | None:
        def download() -> Stored | None:
            answer = self._blob(place).download_blob(max_concurrency=1)
            if _is_directory(answer.properties):
                return None
            return Stored(content=answer.readall(), version=str(answer.properties.etag))

        return _ask(place, download)

    @override
    def delete(self, place: Path) -> None:
        _ask(place, self._blob(place).delete_blob)

    @override
    def copy(self, source: Path, target: Path, *, of: Store | None = None, final: bool = False) -> None:
        if of is not None:
            self._upload(of, source, target)
            return
        blob = self._blob(target)
        copying = _ask(target, lambda: blob.start_copy_from_url(self._blob(source).url))
        if copying is None:
            raise FileNotFoundError(str(source))
        status: str | None = str(copying["copy_status"])
        copy_id, progress, since = str(copying["copy_id"]), "", time.monotonic()
        while status == "pending":  # one within an account is made at once
            time.sleep(_COPY_SECONDS)
            properties = _ask(target, blob.get_blob_properties)
            status = properties.copy.status if properties is not None and properties.copy.id == copy_id else "replaced"
            new_progress = str(properties.copy.progress) if properties is not None else progress
            if new_progress != progress:
                progress, since = new_progress, time.monotonic()
            if status == "pending" and time.monotonic() - since > _STALLED_SECONDS:
                with suppress(OSError):
                    _ask(target, functools.partial(blob.abort_copy, copy_id))
                status = (
                    f"given up: it got no further than {progress} (bytes of all) for {_STALLED_SECONDS:g} s. See the "
                    "storage account's state, and try again"
                )
        if status != "success":
            with suppress(OSError):
                self._remove_unfinished(target, copy_id)
            raise OSError(f"{target}: Azure's copy of {source} is {status}")

    def _remove_unfinished(self, target: Path, copy_id: str) -> None:
        """Delete the empty blob that a failed copy has left, and nothing that somebody else has put there."""
        properties = _ask(target, self._blob(target).get_blob_properties)
        if properties is not None and properties.copy.id == copy_id:
            self.delete_if(target, str(properties.etag))

    def _upload(self, store: Store, source: Path, target: Path) -> None:
        blob = self._patient.get_blob_client(*self._split(target))

        def upload() -> None:
            with store.reading(source) as reader:
                blob.upload_blob(iter(functools.partial(reader.read, COPIED_BYTES), b""), overwrite=True)

        _ask(target, upload)

    @override
    @contextmanager
    def reading(self, place: Path) -> Iterator[Readable]:
        blob = self._patient.get_blob_client(*self._split(place))
        answer = _ask(place, lambda: blob.download_blob(max_concurrency=1))
        if answer is None:
            raise FileNotFoundError(str(place))
        with self._os_errors(place):
            yield answer

    @override
    def remove(self, directory: Path) -> None:
        container, key = self._split(directory)
        names = [key, *(blob.name for blob in self._blobs(container, f"{key}/"))]

        def delete(name: str) -> None:
            _ask(f"{container}/{name}", self._account.get_blob_client(container, name).delete_blob)

        # An account with directories deletes empty ones only.
        by_depth = itertools.groupby(sorted(names, key=_depth, reverse=True), _depth)
        with ThreadPoolExecutor(_DELETED_AT_ONCE) as pool:
            for _, blob_names in by_depth:
                list(pool.map(delete, blob_names))

    @override
    def _unchanged(self, version: str | None) -> Condition:
        if version is None:
            return {"match_condition": MatchConditions.IfMissing}
        return {"match_condition": MatchConditions.IfNotModified, "etag": version}

    @override
    def _put(self, place: Path, content: bytes, mark: str, condition: Condition) -> str:
        upload = functools.partial(self._blob(place).upload_blob, content, overwrite=True, metadata={_MARK: mark})
        return str(_send_write(place, upload, condition)["etag"])

    @override
    def _drop(self, place: Path, condition: Condition) -> None:
        _send_write(place, self._blob(place).delete_blob, condition)

    @override
    def _metadata(self, place: Path) -> ObjectMetadata | None:
        properties = _ask(place, self._blob(place).get_blob_properties)
        if properties is None or _is_directory(properties):
            return None
        facts = FileFacts(size=properties.size, modified=properties.last_modified.timestamp())
        return ObjectMetadata(facts=facts, version=str(properties.etag), mark=properties.metadata.get(_MARK))

    @override
    def _listed(self, bucket: str, prefix: str, delimiter: str) -> Iterator[str]:
        return (blob.name for blob in self._blobs(bucket, prefix, delimiter) if not _is_directory(blob))

    def _blobs(self, container: str, prefix: str, delimiter: str = "") -> list[Any]:
        """Ask for the blobs, and directories, that begin so."""
        container_client = self._account.get_container_client(container)
        listing = (
            functools.partial(container_client.walk_blobs, delimiter=delimiter)
            if delimiter
            else container_client.list_blobs
        )

        def ask() -> list[Any]:
            return list(listing(name_starts_with=prefix, include=["metadata"]))

        return _ask(f"{container}/{prefix}", ask) or []

    def _blob(self, place: Path) -> BlobClient:
        return self._account.get_blob_client(*self._split(place))


def _depth(name: str) -> int:
    return name.count("/")


def _is_directory(blob: Any) -> bool:
    """Whether a blob stands for a directory; what is listed up to a delimiter is none, and has no metadata."""
    return (blob.get("metadata") or {}).get(_DIRECTORY) == "true"


def _ask(place: Path | str, question: Callable[[], T]) -> T | None:
    """Return the answer to what may be repeated; None is: there is no such blob."""
    failure: Exception | None = None
    for pause in _LOOKS:
        time.sleep(pause)
        try:
            return question()
        except _FAILURES as error:
            if isinstance(error, FileNotFoundError):
                raise
            if _is_missing(error):
                return None
            failure = error
            if _is_final(error):
                break
    assert failure is not None
    raise _as_os_error(place, failure) from failure


def _send_write(place: Path, request: Callable[..., T], condition: Condition) -> T:
    """Send a request that writes, once; raises what became of it."""
    try:
        return request(**condition)
    except _FAILURES as error:
        if _code(error) in _NOT_MET or ("etag" in condition and _is_missing(error)):
            raise ChangedError(f"{place} is not what it was when it was read") from error
        if _is_unsent(error):
            raise UnmadeError(str(_as_os_error(place, error))) from error
        if _is_final(error):
            raise _as_os_error(place, error) from error
        raise OutcomeUnknownError(str(_as_os_error(place, error))) from error


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an answer, None when there was none."""
    return error.status_code if isinstance(error, HttpResponseError) else None


def _code(error: BaseException) -> str | None:
    """Return Azure's code of an answer; it is in a header, as the answer to a look has nothing else."""
    code = getattr(error, "error_code", None)
    return None if code is None else str(getattr(code, "value", code))


def _is_missing(error: BaseException) -> bool:
    """Whether there is certainly no such blob."""
    return _status(error) == HTTPStatus.NOT_FOUND and _code(error) in _MISSING


def _is_final(error: BaseException) -> bool:
    """Whether the same request would fail again, and has done nothing."""
    status = _status(error)
    return status is not None and 400 <= status < 500 and status not in _TEMPORARY


def _is_unsent(error: BaseException) -> bool:
    """Whether there was no connection, or no token: the server has not heard of the request."""
    if isinstance(error, ClientAuthenticationError):
        return _status(error) is None
    reason = getattr(error, "inner_exception", None)
    return any(isinstance(cause, _NO_CONNECTION) for cause in (reason, *getattr(reason, "args", ())))


def _as_os_error(place: Path | str, error: BaseException) -> OSError:
    if isinstance(error, OSError):
        return error
    status, message = _status(error), " ".join(str(error).split())
    if status is None:
        return OSError(f"{place}: Azure: {message}")
    kind = PermissionError if status in _DENIED else OSError
    return kind(f"{place}: Azure answers {status}: {_code(error) or message}")
