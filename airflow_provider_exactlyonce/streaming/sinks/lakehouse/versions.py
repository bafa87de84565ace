"""The versions of a table: each is written as the successor of the version that this run has read last.

So a run that was frozen anywhere can't write after a claim that it has not seen; and a run that reads again sees it.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    ExactlyOnceError,
    RefusedError,
)
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.contract import Table
from airflow_provider_exactlyonce.streaming.sinks.unanswered import answering

_LOGGER: Final = logging.getLogger(__name__)
#: After so many versions that others took first it is logged, and a stop is heeded.
_TRIES: Final = 100
#: The first pause between tries is at most so long, and each later one twice as long, until it was doubled so often.
_FIRST_PAUSE_SECONDS: Final = 0.008
_DOUBLINGS: Final = 6


class TableVersions:
    """Writes versions of a table.

    :param where: the table, for messages
    :param stop_requested: true when a version for which others are always faster should not be tried any longer
    """

    def __init__(self, table: Table, where: str, stop_requested: Callable[[], bool]) -> None:
        self._table: Final = table
        self._where: Final = where
        self._stop_requested: Final = stop_requested

    def write_next(
        self, write: Callable[[], None], *, prepare: Callable[[], None], landed: Callable[[], bool], what: str
    ) -> None:
        """Write a version after the newest one, whatever others write meanwhile, and however often they are faster.

        :param prepare: called when the table was looked at, before each try; raises when it must not be written then
        :param landed: returns, after the table was read again, whether the version was written though the write failed
        :raises BatchFailedError: when it was not written, and never will be
        :raises CommitUnknownError: when that is unknown
        """
        in_doubt = False
        for tries in itertools.count(1):
            try:
                with self._answering():
                    self._table.refresh()
                    prepare()
            except ExactlyOnceError as error:
                if not in_doubt:
                    raise
                # Also of a successor: it may have claimed after this version was written. The next claim tells.
                raise CommitUnknownError(f"{what} is in doubt, and can't be tried again: {error}") from error
            version = self._table.version
            try:
                write()
            except Exception as error:  # of the store, of what a library does after a version was written, or a race
                try:
                    with self._answering(CommitUnknownError):
                        self._table.refresh()
                        has_landed = landed()
                except RefusedError as unreadable:
                    raise CommitUnknownError(f"{what} may have been written or not: {unreadable}") from error
                if has_landed:
                    break
                # Refused is no "no" yet: of a request that was repeated on its way, the first may still be carried out.
                # But after one version one other follows, so a next try after the same one doubles nothing.
                in_doubt = not self._table.has_passed(version)
                if in_doubt and not isinstance(error, self._table.REFUSALS):
                    raise CommitUnknownError(
                        f"{what}: the {self._table.VERSION} of {self._where} after {version} may be written or not: "
                        f"{type(error).__name__}: {error}"
                    ) from error
                self._try_again(what, tries, in_doubt=in_doubt)
            else:
                break
        with self._answering(CommitUnknownError):
            self._table.keep_after(version)

    def _try_again(self, what: str, tries: int, *, in_doubt: bool) -> None:
        """Wait before the next try. Each version of others is one that they have finished: at some time none is next.

        :param tries: how many tries were
        :raises BatchFailedError: when a stop was requested and several tries have failed
        :raises CommitUnknownError: when it is not known, in addition, whether it was written
        """
        is_long = tries % _TRIES == 0
        if (is_long and in_doubt) or (tries >= _TRIES and self._stop_requested()):
            failed = CommitUnknownError if in_doubt else BatchFailedError
            raise failed(f"{what}: others were faster {tries} times in writing to {self._where}")
        if is_long:
            _LOGGER.warning(
                "%s: others were faster %d times in writing to %s; it is tried on", what, tries, self._where
            )
        time.sleep(random.uniform(0, _FIRST_PAUSE_SECONDS * 2 ** min(tries - 1, _DOUBLINGS)))

    def _answering(self, unanswered: type[ExactlyOnceError] = BatchFailedError) -> AbstractContextManager[None]:
        return answering(f"{self._where} does not answer", unanswered)
