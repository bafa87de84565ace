"""Whether the ledger is consistent, and its topic keeps its records."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_exactlyonce.doctor.facts import Facts
from airflow_provider_exactlyonce.doctor.findings import Finding, Remedy


def is_consistent(facts: Facts) -> Iterator[Finding]:
    """Check commits, claims and source ranges, as an audit does."""
    if facts.history is not None and facts.history.contradictions:
        yield Finding(
            "ledger-contradicts-itself",
            "; ".join(facts.history.contradictions),
            f"exactlyonce audit {facts.pipeline} tells what is readable in the sink; don't start the pipeline before",
        )


def keeps_its_records(facts: Facts) -> Iterator[Finding]:
    """Check the settings of the ledger's topic, as a start does."""
    for error in facts.history.settings.values() if facts.history else ():
        yield Finding(
            "ledger-settings", str(error), f"set it to {error.required}, as --fix does", Remedy.LEDGER_SETTINGS
        )


def leaves_out_late_rows(facts: Facts) -> Iterator[Finding]:
    """Tell of rows that were behind the watermark."""
    newest = facts.tail.commit if facts.tail else None
    if newest is None or not newest.late_total:
        return
    destination = "they are only counted" if newest.late_topic is None else f"they go to {newest.late_topic}"
    in_newest = "".join(
        f", {late.rows:,} in it by operator {late.operator} ({late.name})" for late in newest.late or ()
    )
    yield Finding(
        "late-rows",
        f"up to commit {newest.commit} operators have left out {newest.late_total:,} rows behind their watermark"
        f"{in_newest}; {destination}",
        "a watermark that waits longer (withWatermark) leaves out fewer",
    )
