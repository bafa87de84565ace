"""The subcommand ``exactlyonce audit``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Final

from airflow_provider_exactlyonce.audit.findings import INVARIANTS, Report
from airflow_provider_exactlyonce.cli.arguments import CLUSTER, declare
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer, tell
from airflow_provider_exactlyonce.exceptions import AuditFailedError
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.ledger.records import shown

_PROGRESS_SECONDS: Final = 5.0


def add_to(program: Command) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "audit",
        _audit,
        summary="check that a pipeline's output is what its ledger says, exactly once",
        details="It reads the ledger and the topics of the sink, and checks the invariants I1 to I7 record by record. "
        "It writes nothing, and the pipeline may run meanwhile.",
        example="shop-totals --from-commit 100",
        exit_codes={0: "every invariant holds", 69: "an invariant is violated"},
    )
    declare(command, "pipeline", *CLUSTER)
    command.add_argument(
        "--from-commit", type=int, default=0, metavar="N", help="the first commit (default: the oldest)"
    )
    command.add_argument("--to-commit", type=int, default=0, metavar="N", help="the last commit (default: the newest)")
    command.add_argument(
        "--allow-foreign", action="store_true", help="ignore records that others have written to the sink's topics"
    )
    command.add_argument(
        "--patience",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for a transaction that is open now (default: %(default)g)",
    )


def _audit(given: argparse.Namespace) -> None:
    from airflow_provider_exactlyonce.audit.check import AuditOptions, audit

    config = reach.reached(given.bootstrap_servers)
    options = AuditOptions(
        first=given.from_commit,
        last=given.to_commit,
        allow_foreign=given.allow_foreign,
        patience_seconds=given.patience,
        progress=_throttled(_PROGRESS_SECONDS, tell),
    )
    report = audit(config, given.pipeline, options)
    print_answer(given, report.to_json(), _text(report))
    if not report.is_clean:
        raise AuditFailedError(str(report.found[0]))


def _text(report: Report) -> str:
    lines = [
        f"{report.pipeline}: commits {report.first:,} to {report.last:,}, {report.rows:,} rows in {report.ranges:,} "
        f"ranges, {report.seconds:.1f} s"
    ]
    for count, note in (
        (report.expired_ranges, "ranges were removed by the topic's retention"),
        (report.compacted_ranges, "ranges have lost rows to compaction and are not compared"),
        (report.foreign_rows, "rows of other producers were passed over"),
        (report.records, "source records were read, each once"),
        (report.late_rows, "rows were behind the watermark and were left out"),
        (report.untold, "commits gave less than exactly once; where their rows are is unknown, and not checked"),
    ):
        if count:
            lines.append(f"{count:,} {note}")
    lines += filter(None, [report.unjudged])
    lines += [f"commit {commit}: rows of {shown(source)} may be lost" for commit, source in report.lost.items()]
    for invariant, meaning in INVARIANTS.items():
        count = report.violations.get(invariant, 0)
        lines.append(f"{invariant}  {f'{count:,} VIOLATED' if count else 'holds':12} {meaning}")
    lines += [str(violation) for violation in report.found]
    return "\n".join(lines)


def _throttled(seconds: float, tell: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that passes on at most one text in so many seconds."""
    told_at = time.monotonic()

    def pass_on(text: str) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= seconds:
            told_at = time.monotonic()
            tell(text)

    return pass_on
