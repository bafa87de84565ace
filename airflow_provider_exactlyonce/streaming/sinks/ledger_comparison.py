"""Compares a sink's ledger with the pipeline's, as every audit of a sink begins, and with a driver's knowledge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import CommitUnknownError
from airflow_provider_exactlyonce.ledger.home import never_started
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import LedgerPointer
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry


class LedgerEntries(Iterable[SinkEntry]):
    """A sink's entries in the ledger of a pipeline that may run; made before the sink is read.

    The ledger is read when this is iterated. A driver commits to a sink before it does to the ledger, and the ledger
    forgets a commit before the sink does. So of the entries read from the sink before, only the commit under way can
    be missing here, and no entry is here that the sink had forgotten.

    :param reader: of the pipeline's ledger
    :param sink: the sink's name
    """

    def __init__(self, reader: LedgerReader, sink: str) -> None:
        self._reader: Final = reader
        self._sink: Final = sink
        #: The newest commit before the sink is read; the sink's read may lack later ones.
        self.newest: Final = self._pointer().commit

    @override
    def __iter__(self) -> Iterator[SinkEntry]:
        for commit in self._reader.commits(self._pointer().oldest):
            if self._sink in commit.others:
                yield SinkEntry.of(commit, self._sink)

    def _pointer(self) -> LedgerPointer:
        tail = self._reader.tail()
        if tail is None:
            raise never_started(self._reader.pipeline)
        return tail.place


def compare(
    entries: Mapping[int, SinkEntry],
    commits: Iterable[SinkEntry],
    place: str,
    *,
    oldest: int = 0,
    check: Callable[[SinkEntry], str | None] = lambda commit: None,
) -> Iterator[str]:
    """Yield the contradictions to the pipeline's ledger.

    :param entries: the sink's, by their commits
    :param commits: the sink's entries in the pipeline's ledger, in order; of a pipeline that may run as
        :class:`LedgerEntries`
    :param place: where the sink's entries are, for messages
    :param oldest: the first commit that the sink's entries cover; earlier ones may be missing
    :param check: returns another defect of a commit that both have, None for none
    """
    judged, newest = 0, max([commits.newest, *entries]) if isinstance(commits, LedgerEntries) else math.inf
    for expected in commits:
        judged, entry = expected.commit, entries.get(expected.commit)
        if entry is None:
            if oldest <= expected.commit <= newest:
                yield f"commit {expected.commit}: {place} has no entry of it"
        elif not entry.is_same_output(expected):
            yield f"commit {expected.commit}: {place} has {entry}, the pipeline's ledger {expected}"
        elif (finding := check(expected)) is not None:
            yield f"commit {expected.commit}: {finding}"
    yield from (
        f"commit {number}: {place} has it, the pipeline's ledger not"
        for number in sorted(entries)
        if judged and number > judged + 1  # the next one may be under way
    )


def not_as_known(sink: str, newest: int, known: int, entry: SinkEntry) -> CommitUnknownError:
    """Return the error for a sink with a ledger that ends at another commit than was claimed or made last.

    :param newest: the commit that it ends at, 0 for none
    :param known: the commit that this driver knows of, 0 for none
    :param entry: of the commit that was to follow
    """
    cause = "another driver has the same run number" if newest > known else "it was set back"
    return CommitUnknownError(
        f"sink {sink} has commit {newest} where this driver knows of commit {known}, and would write commit "
        f"{entry.commit}: {cause}"
    )
