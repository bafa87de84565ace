"""The examination: all checks over the facts, and the rounds of repairing and looking again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from airflow_provider_exactlyonce.checkpoint.state import Defect
from airflow_provider_exactlyonce.doctor.checks import (
    checkpoint,
    driver,
    home,
    ledger,
    savepoints,
    topics,
    transactions,
)
from airflow_provider_exactlyonce.doctor.facts import Facts
from airflow_provider_exactlyonce.doctor.findings import MAKING, Finding, Remedy, Severity
from airflow_provider_exactlyonce.doctor.gather import gather
from airflow_provider_exactlyonce.doctor.repairs import repair
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError

_CHECKS: Final[Sequence[Callable[[Facts], Iterator[Finding]]]] = (
    home.fits,
    ledger.is_consistent,
    ledger.keeps_its_records,
    ledger.leaves_out_late_rows,
    driver.is_alone,
    driver.holds_no_stale_lease,
    checkpoint.is_whole,
    checkpoint.fits_ledger,
    savepoints.are_whole,
    savepoints.can_be_restored,
    topics.are_accepted,
    topics.keep_unread_input,
    topics.are_not_compacted,
    transactions.own_is_ended,
    transactions.others_are_ended,
    driver.did_not_fail,
    home.unfinished,
)
#: What one remedy uncovers, the next round repairs.
_ROUNDS: Final = 3


@dataclass(kw_only=True)
class Examination:
    """The findings, and the repairs.

    :param home: path of the home, None when it isn't known
    :param findings: the problems, as they are now
    :param done: repairs: (name of the finding, the repair in a sentence)
    :param refused: repairs that failed: (name of the finding, why)
    """

    pipeline: str
    home: str | None
    findings: list[Finding]
    done: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong; findings for information only don't count."""
        return all(finding.severity is Severity.INFO for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "pipeline": self.pipeline,
            "home": self.home,
            "healthy": self.is_healthy,
            "findings": [finding.to_json() for finding in self.findings],
            "mended": [{"name": name, "done": done} for name, done in self.done],
            "not_mended": [{"name": name, "why": why} for name, why in self.refused],
        }


def judge(facts: Facts) -> list[Finding]:
    """Return the findings, the worst first."""
    findings = [*facts.unseen, *(finding for check in _CHECKS for finding in check(facts))]
    if any(finding.name == "batch-too-long" for finding in findings):  # says the same, and more
        findings = [finding for finding in findings if finding.name != "driver-failed"]
    order = list(Severity)
    return sorted(dict.fromkeys(findings), key=lambda finding: order.index(finding.severity))


def examine(pipeline: str, config: Mapping[str, Any], location: str | None, *, fix: bool = False) -> Examination:
    """Examine a pipeline, and make the safe repairs.

    :param config: client configuration in librdkafka's names
    :param location: its home, None for where its last run started
    :param fix: repair, then look again
    """
    from confluent_kafka import KafkaException

    from airflow_provider_exactlyonce.kafka.wire import UnansweredError

    verified: dict[str, Sequence[Defect]] = {}  # no remedy touches the bytes of a savepoint
    facts = gather(pipeline, config, location, verified)
    examination = Examination(
        pipeline=pipeline, home=str(facts.home.home) if facts.home else None, findings=judge(facts)
    )
    tried: set[tuple[str, str]] = set()
    for _ in range(_ROUNDS if fix else 0):
        chosen = _choose(examination.findings, tried)
        if not chosen:
            break
        for finding in chosen:
            tried.add((finding.name, finding.what))
            try:
                examination.done.append((finding.name, repair(facts, finding)))
            except (ExactlyOnceError, KafkaException, UnansweredError, OSError) as error:
                examination.refused.append((finding.name, str(error)))
        facts = gather(pipeline, config, location, verified)
        examination.findings = judge(facts)
    return examination


def _choose(findings: Sequence[Finding], tried: set[tuple[str, str]]) -> list[Finding]:
    """Return the findings to repair in this round: each remedy once, and at most one that makes a lineage."""
    chosen: dict[tuple[Remedy, str], Finding] = {}
    for finding in findings:
        if finding.remedy is not None and (finding.name, finding.what) not in tried:
            chosen.setdefault((finding.remedy, finding.subject), finding)
    order = list(Remedy)
    ordered = sorted(chosen.values(), key=lambda finding: order.index(finding.remedy or Remedy.SAVE))
    first = next((finding for finding in ordered if finding.remedy in MAKING), None)
    return [finding for finding in ordered if finding.remedy not in MAKING or finding is first]
