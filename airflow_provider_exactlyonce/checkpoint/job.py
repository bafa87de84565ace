"""A job's description, kept beside the lineage that it runs in: for savepoints of a pipeline that is stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.checkpoint import plan as plans
from airflow_provider_exactlyonce.checkpoint.plan import QueryPlan
from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.commit_range import CommitSpan
from airflow_provider_exactlyonce.storage.opening import store_of


@dataclass(frozen=True, kw_only=True)
class JobDescription:
    """One version of a job.

    :param version: content hash of the job, as in the ledger's records
    :param job_hash: SHA-256 of the job's file, None when it has none
    :param spark_version: of the session that it runs in
    :param output_mode: ``append``, ``update`` or ``complete``
    :param sources: {topic: the schema that the job declares for its values, None for Kafka's own columns}
    :param sinks: the topics that are known before the first row
    :param result_schema: of the rows that go to the sink, as Spark's JSON
    :param nondeterministic: what may give other rows when a batch is run again
    :param plan: its plan, None when it could not be described
    """

    version: str
    job_hash: str | None
    spark_version: str
    output_mode: str
    sources: Mapping[str, str | None]
    sinks: tuple[str, ...]
    result_schema: str
    nondeterministic: tuple[str, ...] = ()
    plan: QueryPlan | None = None


def write(home: Home, lineage: str, job: JobDescription) -> None:
    """Keep the description of a job that is about to run in a lineage."""
    body = {**asdict(job), "plan": plans.encode(job.plan) if job.plan else None}
    json_store.write(_path(home, lineage, job.version), body)


def read(home: Home, lineage: str, version: str) -> JobDescription | None:
    """Return the description of a version that ran in a lineage, None when there is none."""
    path = _path(home, lineage, version)
    body = json_store.read(path)
    if body is None:
        return None
    return codec.load(JobDescription, {**body, "plan": plans.decode(body.get("plan"))}, str(path))


def check_deterministic(home: Home, span: CommitSpan, *, following: str | None = None) -> None:
    """Check that the jobs of the commits to replay are deterministic, as far as their descriptions tell.

    :param following: the version that replays them: other versions' commits are not compared; None when that isn't
        known
    :raises RefusedError: naming the parts that may give other rows
    """
    for version, first, last in span.versions:
        reasons = unsure(home, version) if following in (None, version) else ()
        if reasons:
            raise RefusedError(
                f"commits {first} to {last} have to be replayed, and the job that made them (version {version}) may "
                f"give other rows each time: {'; '.join(reasons)}. Make it deterministic and take a "
                "newer savepoint, or accept that state and output may differ: --accept-nondeterminism"
            )


def unsure(home: Home, version: str) -> tuple[str, ...]:
    """Return the nondeterministic parts of a version, as its description names them."""
    lineages = store_of(home.lineages).names(home.lineages)
    job_of_version = next((job for lineage in lineages if (job := read(home, lineage, version))), None)
    return job_of_version.nondeterministic if job_of_version is not None else ()


def copy(home: Home, lineage: str, to: str) -> None:
    """Copy the job descriptions of a lineage to another lineage that continues with its state."""
    source, target, store = _path(home, lineage, "").parent, _path(home, to, "").parent, store_of(home.path)
    for name in store.names(source):
        store.copy(source / name, target / name)


def _path(home: Home, lineage: str, version: str) -> Path:
    return home.checkpoint(lineage).parent / "jobs" / f"{version}.json"
