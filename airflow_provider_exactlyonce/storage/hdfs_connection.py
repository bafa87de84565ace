"""Questions to HDFS, each for a limited time.

The client below waits for a name node that hangs, or whose host is gone, for ever, and would go on with the connection.
So each question has a thread of its own, which is left alone when no answer comes, and the next question goes over a
new connection. (hdfs-native has an asynchronous client, too: it panics when it repeats a question.)
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from itertools import islice
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from hdfs_native import Client, FileReader, FileWriter

T = TypeVar("T")

#: Seconds for an answer: what hangs holds up watchers for so long.
PATIENCE: Final = 20.0
_STEPS: Final = 20
_STEP_SECONDS: Final = PATIENCE / _STEPS
#: Of a directory's entries, which one question asks for.
_LISTED_AT_ONCE: Final = 1000
#: How often a name node that refuses is tried; the client's own number takes three minutes.
_ATTEMPTS: Final = {"dfs.client.failover.max.attempts": "3"}
#: Of several name nodes the first may be the one that is gone.
_ANY_FIRST: Final = "dfs.client.failover.random.order"
_BELOW_A_FILE: Final = "(is not a directory)"
_DENIED: Final = "AccessControlException"

#: Questions at a time, with those that hang until their connection is given up by the kernel.
_threads: Final = threading.BoundedSemaphore(64)


class HdfsConnection:
    """A connection to a name service, and to data nodes; may be asked by several threads.

    :param url: of the name service
    :param options: by the names in ``hdfs-site.xml``
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._url: Final = url
        self._options: Final = {**_ATTEMPTS, **options}
        self._client = Client(url, self._options)

    def ask(self, question: Callable[[Client], T]) -> T:
        """Return the answer to a request, or to some that belong together.

        :raises FileNotFoundError: also below a file, where the name node speaks of access
        :raises PermissionError: when it denies access
        :raises OSError: any other refusal, and no answer
        """
        client = self._client
        try:
            return self._answer(client, question)
        except TimeoutError as error:
            if self._client is client:
                any_first = {f"{_ANY_FIRST}.{urlsplit(self._url).hostname}": "true"}
                self._client = Client(self._url, {**self._options, **any_first})
            raise TimeoutError(errno.ETIMEDOUT, f"{self._url} has not answered for {PATIENCE:g} s") from error
        except RuntimeError as error:
            text = str(error).partition("\\n\\t")[0]
            kinds = {_BELOW_A_FILE: FileNotFoundError, _DENIED: PermissionError}
            raise next((kind for part, kind in kinds.items() if part in text), OSError)(text) from error

    def listed(self, directory: str, *, below: bool) -> Iterator[Any]:
        """Yield the entries of a directory, and perhaps those below it; raises as :meth:`ask` does."""
        entries = self.ask(lambda client: client.list_status(directory, below))
        while page := self.ask(lambda _: list(islice(entries, _LISTED_AT_ONCE))):
            yield from page

    def _answer(self, client: Client, question: Callable[[Client], T]) -> T:
        answer = Future[T]()

        def ask() -> None:
            try:
                answer.set_result(question(client))
            except Exception as error:
                answer.set_exception(error)
            except BaseException as panic:  # of the client's, which nobody who goes on after an error would catch
                failure = RuntimeError(str(panic))
                failure.__cause__ = panic
                answer.set_exception(failure)
            finally:
                _threads.release()

        if not _threads.acquire(timeout=PATIENCE):
            raise TimeoutError
        try:
            threading.Thread(target=ask, name="hdfs", daemon=True).start()
        except BaseException:  # as many are there as there may be
            _threads.release()
            raise
        # In steps: of a time in which this process is stopped, only one counts.
        if not any(wait([answer], _STEP_SECONDS).done for _ in range(_STEPS)):
            raise TimeoutError
        return answer.result()


class HdfsReader:
    """A file that is read from its first byte to its last."""

    def __init__(self, connection: HdfsConnection, path: str) -> None:
        self._connection: Final = connection
        self._file: Final[FileReader] = connection.ask(lambda client: client.read(path))

    def read(self, size: int = -1, /) -> bytes:
        """Return so many of the next bytes, as any open file does; raises as :meth:`HdfsConnection.ask` does."""
        return self._connection.ask(lambda _: self._file.read(size))


class HdfsWriter:
    """A file that is written; :meth:`close` makes it whole.

    :param create: makes it
    """

    def __init__(self, connection: HdfsConnection, create: Callable[[Client], FileWriter]) -> None:
        self._connection: Final = connection
        self._file: Final = connection.ask(create)

    def write(self, content: bytes, /) -> int:
        """Append all of these bytes; this and the others raise as :meth:`HdfsConnection.ask` does."""
        return self._connection.ask(lambda _: self._file.write(content))

    def sync(self) -> None:
        """Wait until all written bytes are on disks."""
        self._connection.ask(lambda _: self._file.hsync())

    def close(self) -> None:
        """End the file."""
        self._connection.ask(lambda _: self._file.close())
