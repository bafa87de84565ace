"""Determines the batches that a backfill's driver still has to run: from the ledger first, then from its home.

The ledger has the written batches and the range as it was resolved then; a home may be lost, copied, older than the
ledger, or belong to a request in other words for the same range.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_provider_exactlyonce.backfill import progress, results, workspace
from airflow_provider_exactlyonce.backfill.progress import BackfillProgress
from airflow_provider_exactlyonce.backfill.resolve import Resolver
from airflow_provider_exactlyonce.backfill.workspace import SavedRequest, StartedBackfill
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import moving
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.lease import Sure
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.reader import LedgerReader, tail_of
from airflow_provider_exactlyonce.ledger.records import backfill_pipeline
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.tables.positions import is_table

log = logging.getLogger("exactlyonce")


def begin(
    home: Home,
    config: Mapping[str, Any],
    version: str,
    clusters: SourceClusters,
    sources: Sequence[SourceTopics],
    sure: Sure,
) -> tuple[StartedBackfill, BackfillProgress | None] | Mapping[str, Any]:
    """Resolve the request and store the range; or return the result, when nothing is left to run.

    Call it only while holding the turn.

    :param home: the request's
    :param config: client configuration in librdkafka's names
    :param version: of the job
    :param clusters: those that the pipeline's sources are read from
    :param sources: the topics of each source
    :param sure: of the turn, see :func:`~airflow_provider_exactlyonce.backfill.workspace.turn`
    :returns: what the request means, and how far its lineage is, None when it has to be made; or the result
    :raises RefusedError: when it can't be run, or it can't be told what is written
    :raises HomeMovedError: when the pipeline's home was moved
    """
    saved_request, begun = workspace.asked_of(home), workspace.begun(home)
    if tables := [str(topics) for topics in sources if is_table(str(topics))]:
        raise RefusedError(
            f"pipeline {saved_request.pipeline} reads table {tables[0]}, and a backfill runs ranges of topics: start a "
            "second pipeline, with a name and a home of its own, at the table's version with starting_version"
        )
    moving.check_here(Home(saved_request.home).path)
    _check_ledger(home, saved_request, config)

    @contextmanager
    def resolving() -> Iterator[Resolver]:
        with LedgerReader(config, saved_request.pipeline) as reader:
            yield Resolver(reader, clusters, sources, Savepoints(Home(saved_request.home).savepoints))

    if begun is not None and begun.version == version:
        name, commits = begun.name, begun.resolved.commits
    else:
        begun = span = None
        if saved_request.request.time is None:
            with resolving() as resolver:
                span = resolver.span(saved_request.request)
        name = results.name_of(saved_request.pipeline, version, saved_request.request, span)
        commits = span.commits if span is not None else None
    written = results.written_of(config, saved_request.pipeline, name)
    written.check_asked(name, commits)
    if written.result is not None:
        return written.result
    done = _settled(home)
    is_same = begun is not None and (written.begun is None or begun.resolved.writes_the_same(written.begun))
    if begun is None or done is None or not is_same:
        with resolving() as resolver:
            begun = StartedBackfill(
                version=version, name=name, resolved=resolver.resolve(saved_request.request, written.begun)
            )
        workspace.begin(home, begun, sure)
        done = None
    return begun, done


def _check_ledger(home: Home, saved_request: SavedRequest, config: Mapping[str, Any]) -> None:
    """Check that the ledger of backfills is the one that this home belongs to.

    :raises RefusedError: when it is another one, or has lost records
    """
    tail = tail_of(config, backfill_pipeline(saved_request.pipeline))
    workspace.check_ledger(home, tail)
    claim = tail.claim if tail is not None else None
    if claim is None or claim.home == home.identity():
        return
    own_tail = tail_of(config, saved_request.pipeline)
    if (
        own_tail is not None
        and own_tail.claim is not None
        and own_tail.claim.home == Home(saved_request.home).identity()
    ):
        workspace.adopt(home, claim.home)  # it is the pipeline's: earlier offsets were lost


def _settled(home: Home) -> BackfillProgress | None:
    """Return how far the lineage is; None when there is none that can be gone on with: it is made anew then."""
    try:
        lineage = home.current()
    except RefusedError as error:
        log.warning("%s; what is written already is not written again", error)
        return None
    if lineage is None:
        return None
    checkpoint = Checkpoint(home.checkpoint(lineage.id))
    done = progress.settle(checkpoint)
    if done is None:
        log.warning("%s can't be gone on with; what is written already is not written again", checkpoint.path)
    return done
