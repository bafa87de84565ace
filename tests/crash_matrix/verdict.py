"""Compares what a pipeline's batches owe with what a reader sees, record by record, and names what is off."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_exactlyonce.ledger.records import CommitRecord
from tests.crash_matrix.shapes import canonical

#: Computes what the next batch owes from its source ranges.
Owed = Callable[[Mapping[int, tuple[int, int]]], Counter[str]]


@dataclass
class Findings:
    """What is off; empty when the promise was kept. Counts are rows, but for ``torn``, which are batches."""

    lost: int = 0
    doubled: int = 0
    torn: int = 0
    notes: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.lost or self.doubled or self.torn or self.notes)

    def compare(self, what: str, expected: Counter[str], actual: Counter[str]) -> None:
        """Compare one batch's rows."""
        missing, extra = expected - actual, actual - expected
        if missing and actual - extra:
            self.torn += 1
        self.lost += missing.total()
        self.doubled += extra.total()
        if missing or extra:
            self.notes.append(
                f"{what}: {missing.total()} of {expected.total()} rows missing, {extra.total()} too many"
                f" ({', '.join(list(missing + extra)[:3])} …)"
            )


def parsed(value: bytes) -> str:
    """Return a visible record's row in one spelling."""
    return canonical(json.loads(value))


@dataclass
class Judge:
    """Judges commits in their order; keeps where the last one ended.

    :param source: the source's topic
    :param sink: the sink's topic
    """

    source: str
    sink: str
    owed: Owed
    commit: int = 0
    ends: dict[int, int] = field(default_factory=dict)

    def judge(self, commits: Iterable[CommitRecord], rows: dict[tuple[int, int], bytes]) -> Findings:
        """Judge the commits that are new, and every row that is visible and was not judged yet; takes both out.

        A row in no commit's range is one of an aborted attempt, or written twice.
        """
        findings = Findings()
        for record in commits:
            if record.commit != self.commit + 1:
                findings.notes.append(f"commit {record.commit} follows commit {self.commit}")
            self.commit = record.commit
            ranges = record.source.get(self.source, {})
            self._tile(record.commit, ranges, findings)
            actual: Counter[str] = Counter()
            for partition, written in record.sink.get(self.sink, {}).items():
                for offset in range(written.first, written.last + 1):
                    value = rows.pop((partition, offset), None)
                    if value is not None:
                        actual[parsed(value)] += 1
            findings.compare(f"commit {record.commit}", self.owed(ranges), actual)
        if rows:
            findings.doubled += len(rows)
            findings.notes.append(f"{len(rows)} rows in no commit's range, first at {min(rows)} (partition, offset)")
            rows.clear()
        return findings

    def _tile(self, commit: int, ranges: Mapping[int, tuple[int, int]], findings: Findings) -> None:
        for partition, (start, end) in ranges.items():
            expected = self.ends.get(partition, 0)
            if start != expected:
                findings.lost += max(0, start - expected)
                findings.doubled += max(0, expected - start)
                findings.notes.append(f"commit {commit} takes partition {partition} from {start}, not from {expected}")
            self.ends[partition] = end
