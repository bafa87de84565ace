"""Whether the ledger agrees with itself, and its topic keeps what is in it."""

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
