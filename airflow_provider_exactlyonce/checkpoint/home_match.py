"""Whether a home and a ledger belong together."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_exactlyonce.control import moving
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger import home as ledger_home
from airflow_provider_exactlyonce.ledger.reader import LedgerTail


@dataclass(frozen=True)
class HomeMismatch:
    """Why a home and a ledger do not belong together.

    :param name: a stable name for it
    :param message: the reason, and what to do
    """

    name: str
    message: str

    @property
    def is_of_lineage(self) -> bool:
        """Whether only ``current`` points to the wrong lineage."""
        return self.name in ("lineage-abandoned", "lineage-not-current")


def find_home(config: Mapping[str, Any], pipeline: str) -> Home:
    """Return the home that a pipeline's newest run started from.

    :param config: client configuration in librdkafka's names
    :raises UnknownPipelineError: when the pipeline was never started on this cluster
    :raises RefusedError: when that home is not where the ledger says, as this machine sees it
    :raises HomeMovedError: when it was moved
    :raises ExactlyOnceError: when the cluster does not answer
    """
    claim = ledger_home.newest_claim(config, pipeline)
    home = Home(claim.home_path)
    identity = home.identity()
    if identity != claim.home:  # an empty mount point has no lease, and its pipeline would be taken for stopped
        actual = "nothing is there" if identity is None else f"home {identity} of pipeline {home.pipeline()} is there"
        raise RefusedError(
            f"{home} is not the home of pipeline {pipeline} on this machine, {socket.gethostname()}: {actual}, and run "
            f"{claim.run} started from home {claim.home} at that path on {claim.host}. Mount its file system here, do "
            "this on a machine that sees it, or, if it is elsewhere, name it: checkpoint= of a task, --home of a "
            "command"
        )
    return home


def check_start(home: Home, pipeline: str, tail: LedgerTail | None, *, accept_home: bool = False) -> None:
    """Check that this home and this ledger belong together; see :func:`mismatch_of`.

    :raises RefusedError: with the reason and what to do
    :raises HomeMovedError: when the home was moved
    """
    mismatch = mismatch_of(
        pipeline=pipeline,
        home_path=str(home),
        home_id=home.identity(),
        home_pipeline=home.pipeline(),
        lineage=home.current(),
        tail=tail,
        accept_home=accept_home or is_moved(home, tail),
    )
    if mismatch is not None:
        raise RefusedError(mismatch.message)


def is_moved(home: Home, tail: LedgerTail | None) -> bool:
    """Whether a home was moved to where it is, and its pipeline has not gone on since, here or anywhere else."""
    claim = tail.claim if tail else None
    if claim is None or claim.home_path == str(home):
        return False
    document = moving.document(home.path)
    move = document.move if document is not None else None
    return move is not None and (move.target, move.run) == (str(home), claim.run)


def mismatch_of(
    *,
    pipeline: str,
    home_path: str,
    home_id: str | None,
    home_pipeline: str | None,
    lineage: Lineage | None,
    tail: LedgerTail | None,
    accept_home: bool,
) -> HomeMismatch | None:
    """Return why this home and this ledger do not belong together, None when they do.

    :param home_id: identity of the home, None when the directory is no home yet
    :param home_pipeline: the pipeline whose home it is
    :param lineage: the home's current lineage
    :param tail: the ledger's end, None when there is no ledger topic
    :param accept_home: the home was moved on purpose, or :func:`is_moved`
    """
    if home_pipeline is not None and home_pipeline != pipeline:
        return HomeMismatch(
            "home-of-another-pipeline",
            f"{home_path} is the home of pipeline {home_pipeline}, not of {pipeline}; give each its own",
        )
    foreign = _foreign_ledger(pipeline, home_path, lineage, tail)
    claim = tail.claim if tail else None
    if foreign is not None or tail is None or claim is None:
        return foreign
    if home_id is None or lineage is None:
        return HomeMismatch(
            "home-empty",
            f"{home_path} is empty, but pipeline {pipeline} has a home: {claim.home_path} (run {claim.run}, "
            f"commit {tail.place.commit}). Start it from there, or give the new pipeline another name",
        )
    if home_id != claim.home:
        return HomeMismatch(
            "foreign-home",
            f"{home_path} is not the home of pipeline {pipeline}: its last run {claim.run} started from "
            f"{claim.home_path}. Start it from there, or give the new pipeline another name",
        )
    if home_path != claim.home_path and not accept_home:
        return HomeMismatch(
            "copied-home",
            f"{home_path} is a copy: run {claim.run} of pipeline {pipeline} started from {claim.home_path}. "
            "Start it from there; if the home was moved for good, pass --accept-home once",
        )
    if lineage.abandoned_for is not None:
        return HomeMismatch(
            "lineage-abandoned",
            f"{home_path}/current points to lineage {lineage.id}, which was abandoned for {lineage.abandoned_for} by a "
            f"restore or a rescale. Point current to {lineage.abandoned_for} again, or restore a savepoint: "
            f"exactlyonce restore {pipeline}",
        )
    restored_since = (lineage.parent_run, lineage.parent_commit) == (claim.run, tail.place.commit)
    if lineage.id != claim.lineage and not restored_since:
        return HomeMismatch(
            "lineage-not-current",
            f"{home_path}/current points to lineage {lineage.id}; run {claim.run} of pipeline {pipeline} went on in "
            f"lineage {claim.lineage}. A lineage that isn't current would repeat what is committed; point current to "
            f"{claim.lineage} again",
        )
    return None


def _foreign_ledger(
    pipeline: str, home_path: str, lineage: Lineage | None, tail: LedgerTail | None
) -> HomeMismatch | None:
    if lineage is None or lineage.ledger_topic_id is None:
        return None
    if tail is None:
        return HomeMismatch(
            "ledger-deleted",
            f"the ledger of pipeline {pipeline} was deleted: {home_path} knows it up to commit {lineage.last_commit}, "
            "and its topic does not exist on this cluster. Without it committed batches would be written again",
        )
    if tail.cluster_id != lineage.cluster_id:
        return HomeMismatch(
            "another-cluster",
            f"this is Kafka cluster {tail.cluster_id}; the ledger of {home_path} is on cluster {lineage.cluster_id}. "
            "Check bootstrap.servers",
        )
    if tail.topic_id != lineage.ledger_topic_id:
        return HomeMismatch(
            "ledger-recreated",
            f"the ledger of pipeline {pipeline} was recreated: its topic has id {tail.topic_id}, {home_path} knows "
            f"{lineage.ledger_topic_id} up to commit {lineage.last_commit}. Committed batches would be written again",
        )
    if tail.place.commit < lineage.last_commit:
        return HomeMismatch(
            "ledger-set-back",
            f"the ledger of pipeline {pipeline} ends at commit {tail.place.commit}; {home_path} has seen commit "
            f"{lineage.last_commit}. The ledger was set back; committed batches would be written again",
        )
    return None
