"""Checks a job against a savepoint: plans it in a local Spark session, without a broker and without data."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_exactlyonce.checkpoint import compatibility
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
from airflow_provider_exactlyonce.checkpoint.plan import QueryPlan
from airflow_provider_exactlyonce.checkpoint.state import SHUFFLE_PARTITIONS, StatefulOperator
from airflow_provider_exactlyonce.checkpoint.versions import BUILD_ANEW, CompatibilityReport, Version
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.analysis.plan_description import describe
from airflow_provider_exactlyonce.streaming.analysis.planned_state import PlanRefusedError, stateful_operators
from airflow_provider_exactlyonce.streaming.job import loader
from airflow_provider_exactlyonce.streaming.job.definition import PipelineDefinition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def check_compatibility(
    job: PipelineDefinition,
    savepoint: Savepoint,
    checkpoint: Path,
    spark: SparkSession,
    asked: Mapping[str, str] | None = None,
) -> CompatibilityReport:
    """Tell whether a job can go on from a savepoint.

    :param checkpoint: where the savepoint's checkpoint lies; only read
    :param spark: a session to plan in; it gets the settings that the checkpoint fixes
    :param asked: Spark settings that the job would be submitted with
    :raises RefusedError: when the job's function fails, with its line; when its plan can't be described
    """
    conf = Checkpoint(checkpoint).conf()
    file = inspect.getsourcefile(job.function) or "the job"
    with loader.running(file, f"the function of pipeline {job.name}"):
        result = job.planned(spark)
    operators, refused = _planned(job, result, {**conf, SHUFFLE_PARTITIONS: "1"}, file)
    plan, shuffle_partitions = _described(job, result, file), (asked or {}).get(SHUFFLE_PARTITIONS)
    new = Version(
        pipeline=job.name,
        spark_version=spark.version,
        job_hash=job.job_hash,
        output_mode=job.output_mode,
        topics=tuple(source.topic for source in plan.sources),
        plan=plan,
        operators=operators,
        state_backend=job.state_backend.name if job.state_backend else None,
        encoding=job.state_backend.encoding if job.state_backend else None,
        partitions=int(shuffle_partitions) if shuffle_partitions else None,
        result_schema=result.schema.json(),
        refused=refused,
    )
    return compatibility.compare(compatibility.of_savepoint(savepoint, conf), new)


def _described(job: PipelineDefinition, result: DataFrame, file: str) -> QueryPlan:
    try:
        return describe(result, job.routes.facts)
    except Exception as error:
        _, line = inspect.getsourcelines(job.function)
        cause = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise RefusedError(
            f"what pipeline {job.name} computes ({file}:{line}) can't be described, so it is not known whether it can "
            f"go on from the savepoint: {cause}. Write the query otherwise; or {BUILD_ANEW}"
        ) from error


def _planned(
    job: PipelineDefinition, result: DataFrame, conf: Mapping[str, str], file: str
) -> tuple[tuple[StatefulOperator, ...] | None, str | None]:
    """Return the operators with state, or why Spark would not plan them."""
    try:
        return stateful_operators(result, job.output_mode, conf), None
    except PlanRefusedError as error:
        _, line = inspect.getsourcelines(job.function)
        return None, f"{error} ({file}:{line})"
