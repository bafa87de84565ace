"""The entries of a sink's ledger against those of the pipeline's: what every audit of a sink begins with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry


def compare(
    entries: Mapping[int, SinkEntry],
    commits: Iterable[SinkEntry],
    place: str,
    *,
    oldest: int = 0,
    check: Callable[[SinkEntry], str | None] = lambda commit: None,
) -> Iterator[str]:
    """Yield what contradicts the pipeline's ledger.

    :param entries: the sink's, by their commits
    :param commits: what the pipeline's ledger has for the sink, in order
    :param place: what has the sink's entries, for messages
    :param oldest: the first commit of which the sink can tell; those before it may be missing
    :param check: returns what else is wrong with a commit that both have
    """
    judged = 0
    for expected in commits:
        judged, entry = expected.commit, entries.get(expected.commit)
        if entry is None:
            if expected.commit >= oldest:
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
