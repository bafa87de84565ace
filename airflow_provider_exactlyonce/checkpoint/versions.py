"""Versions of a pipeline, and the differences between two of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from airflow_provider_exactlyonce.checkpoint.plan import QueryPlan
from airflow_provider_exactlyonce.checkpoint.state import StatefulOperator

BUILD_ANEW: Final = (
    "run the new version as a pipeline of its own, with a new name, home and sink topic: it builds its state from the "
    "sources again"
)


class Verdict(Enum):
    """The verdicts on a change, best first."""

    COMPATIBLE = "compatible"
    NOTE = "note"
    INCOMPATIBLE = "incompatible"


ORDER: Final = tuple(Verdict)


@dataclass(frozen=True, kw_only=True)
class VersionChange:
    """One thing that differs.

    :param aspect: what, such as ``output mode``
    :param old: how it is in the savepoint, None when nothing is there or it is not known
    :param new: how the new version has it, as above
    :param reason: what follows from it
    :param way_out: what to do about it, None when nothing needs to be done
    """

    aspect: str
    old: str | None
    new: str | None
    verdict: Verdict
    reason: str
    way_out: str | None = None


@dataclass(frozen=True, kw_only=True)
class Version:
    """The known facts of one version.

    :param spark_version: None when it is not known
    :param job_hash: SHA-256 of the job's file, None when it is not known
    :param output_mode: None when it is not known
    :param topics: of each source, as one text, in Spark's order
    :param plan: None when it is not known
    :param operators: None when Spark would not plan it
    :param state_backend: ``hashmap`` or ``rocksdb``; None when it does not say
    :param encoding: how state of transformWithState is encoded, ``unsaferow`` or ``avro``; None when it does not say
    :param partitions: of state that were set by the user, None when they were not set
    :param result_schema: Spark's JSON, None when it is not known
    :param refused: why Spark would not plan it
    :param read: the topics that it has read, when it has run
    """

    pipeline: str
    spark_version: str | None
    job_hash: str | None
    output_mode: str | None
    topics: tuple[str, ...]
    plan: QueryPlan | None
    operators: tuple[StatefulOperator, ...] | None
    state_backend: str | None = None
    encoding: str | None = None
    partitions: int | None = None
    result_schema: str | None = None
    refused: str | None = None
    read: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CompatibilityReport:
    """The answer.

    :param findings: worst first
    :param unchanged: aspects that were compared and are equal
    """

    findings: tuple[VersionChange, ...]
    unchanged: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of the findings."""
        return self.findings[0].verdict if self.findings else Verdict.COMPATIBLE

    def document(self) -> dict[str, Any]:
        """Return the answer's JSON form."""
        findings = [{**asdict(finding), "verdict": finding.verdict.value} for finding in self.findings]
        return {"verdict": self.verdict.value, "findings": findings, "unchanged": list(self.unchanged)}


def note(aspect: str, old: object, new: object, reason: str, way_out: str | None = None) -> VersionChange:
    """Return a change that is taken, and has a consequence."""
    return VersionChange(
        aspect=aspect, old=_text(old), new=_text(new), verdict=Verdict.NOTE, reason=reason, way_out=way_out
    )


def compatible(aspect: str, old: object, new: object, reason: str) -> VersionChange:
    """Return a change without any."""
    return VersionChange(aspect=aspect, old=_text(old), new=_text(new), verdict=Verdict.COMPATIBLE, reason=reason)


def incompatible(aspect: str, old: object, new: object, reason: str, way_out: str = BUILD_ANEW) -> VersionChange:
    """Return a change with which the state can't be used."""
    return VersionChange(
        aspect=aspect, old=_text(old), new=_text(new), verdict=Verdict.INCOMPATIBLE, reason=reason, way_out=way_out
    )


def _text(value: object) -> str | None:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or None
    return None if value is None else str(value)
