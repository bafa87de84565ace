"""An audit's findings, and its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.ledger.records import SourceRanges

#: The invariants of docs/protocol.md, in an audit's words.
INVARIANTS: Final[Mapping[str, str]] = {
    "I1": "a committed batch's rows are readable exactly once",
    "I2": "no row is readable that isn't in a commit",
    "I3": "a batch's rows are readable together",
    "I4": "commits are gapless, their source ranges tile the source, and what they count fits them",
    "I5": "one run commits at any time",
    "I6": "no open transaction holds back readers",
    "I7": "the ledger and the sink's data agree",
}
#: So many violations are kept with their text; more are counted.
KEPT: Final = 100


@dataclass(frozen=True)
class Violation:
    """One fact that contradicts an invariant.

    :param invariant: ``I1`` to ``I7``
    :param commit: the commit, or the commit before the finding; 0 for none
    :param offset: of a record in topic and partition, -1 when it is about none
    """

    invariant: str
    message: str
    commit: int = 0
    topic: str = ""
    partition: int = -1
    offset: int = -1

    def __str__(self) -> str:
        location = [f"commit {self.commit}"] if self.commit else []
        if self.topic:
            location.append(self.topic if self.partition < 0 else f"{self.topic}-{self.partition}")
        if self.offset >= 0:
            location.append(f"offset {self.offset}")
        return f"{self.invariant}, {', '.join(location)}: {self.message}"


@dataclass
class Findings:
    """Violations as they come up; the first :data:`KEPT` with their text."""

    kept: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(
        self, invariant: str, commit: int, message: str, partition: TopicPartition = ("", -1), offset: int = -1
    ) -> None:
        """Note one more violation, with the parameters of :class:`Violation`."""
        self.counts[invariant] += 1
        if len(self.kept) < KEPT:
            self.kept.append(Violation(invariant, message, commit, *partition, offset))

    def take(self, others: Findings, where: str) -> None:
        """Add the findings of another audit.

        :param where: put in front of each message
        """
        self.counts.update(others.counts)
        room = KEPT - len(self.kept)
        self.kept += [
            replace(violation, message=f"{where}: {violation.message}") for violation in others.kept[: max(0, room)]
        ]

    def in_order(self) -> list[Violation]:
        """Return the kept ones, the earliest commit first."""
        return sorted(self.kept, key=attrgetter("commit", "topic", "partition", "offset", "invariant"))


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of an audit.

    :param first: the first commit that was judged, 0 for none
    :param last: the last one
    :param rows: committed rows that were read and agree
    :param ranges: sink ranges (commit and partition) that were read
    :param expired_ranges: ranges that the topic's retention has removed
    :param compacted_ranges: ranges of a compacted topic that have lost rows to newer ones
    :param foreign_rows: readable rows of other producers, which were allowed
    :param untold: commits that gave less than exactly once and do not tell where their rows are: not judged
    :param unjudged_sinks: sinks that are not Kafka; their rows were not looked at
    :param lost: {commit: its source ranges} whose rows may be lost, as the ledger says; only at most once
    :param records: source records that all commits of the ledger have read, None when some don't say
    :param late_rows: rows behind the watermark that operators have left out in them
    :param backfills: backfills of the pipeline whose output was judged, too
    :param backfilled_rows: rows of them that were read and agree, in whatever topic; none of them is in ``rows``
    :param violations: how many of each invariant
    :param found: the first of them
    """

    pipeline: str
    first: int
    last: int
    rows: int
    ranges: int
    expired_ranges: int
    compacted_ranges: int
    foreign_rows: int
    untold: int
    unjudged_sinks: Sequence[str]
    lost: Mapping[int, SourceRanges]
    backfills: int
    backfilled_rows: int
    violations: Mapping[str, int]
    found: tuple[Violation, ...]
    seconds: float
    records: int | None = None
    late_rows: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether every invariant holds."""
        return not self.violations

    @property
    def unjudged(self) -> str:
        """What was not looked at, in words; empty when that is nothing."""
        if not self.unjudged_sinks:
            return ""
        names = ", ".join(self.unjudged_sinks)
        return f"rows in other sinks ({names}) are not judged here: exactlyonce audit-sinks does that"

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "clean": self.is_clean}
