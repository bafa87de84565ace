"""Whether home and ledger belong together, and the home is whole."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_exactlyonce.doctor.facts import Facts, HomeFacts
from airflow_provider_exactlyonce.doctor.findings import Finding, Remedy

_FROM_A_COPY = "put the home back from a copy, or find the cluster that it belongs to; never start it like this"

#: What to do about a mismatch; those that a start names, and that nothing here can repair.
_DO = {
    "home-of-another-pipeline": "pass the pipeline's own home with --home",
    "home-empty": "pass the home that the ledger names, or put it back from a copy",
    "foreign-home": "pass the home that the ledger names, or give the new pipeline another name",
    "copied-home": "start from the home that the ledger names; if it was moved for good, start once with --accept-home",
    "ledger-deleted": _FROM_A_COPY,
    "ledger-recreated": _FROM_A_COPY,
    "ledger-set-back": _FROM_A_COPY,
    "another-cluster": "check bootstrap.servers",
}


def fits(facts: Facts) -> Iterator[Finding]:
    """Check, as a start does, that home and ledger belong together."""
    home = facts.home
    if home is None:
        return
    if not home.exists:
        yield _not_here(facts, home)
    elif home.moved is not None:
        yield Finding("home-moved", home.moved, "pass the home that it names with --home")
    elif home.torn is not None or (home.identity is None and home.lineage is not None):
        yield _torn(facts, home)
    elif home.lost is not None or (home.lineage is None and home.identity is not None and _is_ours(facts, home)):
        what = home.lost or f"{home.home}/current is missing, and the home has lineages"
        yield _pointing(facts, home, "lineage-lost", what)
    elif facts.reachable and not any(finding.name == "ledger-unreadable" for finding in facts.unseen):
        mismatch = facts.mismatch(home.lineage)
        if mismatch is not None and mismatch.is_of_lineage:
            yield _pointing(facts, home, mismatch.name, mismatch.message)
        elif mismatch is not None:
            yield Finding(mismatch.name, mismatch.message, _DO[mismatch.name])
        elif (facts.tail is None or facts.tail.claim is None) and not facts.runs:
            yield Finding(
                "ledger-missing",
                f"pipeline {facts.pipeline} has no claim on this cluster: no start of it has come so far",
                "start it; if it has run before, check bootstrap.servers",
            )


def unfinished(facts: Facts) -> Iterator[Finding]:
    """Check for remains of killed restores."""
    for path in facts.home.unfinished if facts.home else ():
        yield Finding(
            "unfinished-restore",
            f"{path} is of a restore or rescale that was killed; nothing takes it for a lineage, and it takes space",
            "nothing: the next restore removes it, and so does --fix",
            Remedy.CLEAN_UP,
        )


def _not_here(facts: Facts, home: HomeFacts) -> Finding:
    claim, path, known = facts.tail.claim if facts.tail else None, str(home.home), ""
    if claim is not None:
        known = f"; run {claim.run} of {facts.pipeline} started from {claim.home_path} on host {claim.host}"
    if claim is not None and claim.home_path != path:
        return Finding("home-not-here", f"{path} is not on this machine{known}", f"pass --home {claim.home_path}")
    return Finding(
        "home-not-here",
        f"{path} is not on this machine{known}",
        "if it is on another machine, ask there; if its file system is not mounted here, mount it; if it was moved, "
        "pass its new path with --home, and start once with --accept-home. If it was deleted, put the whole home back "
        f"from a copy, an old one too, to the same path, and run `exactlyonce doctor {facts.pipeline} --fix`: what was "
        "committed since is replayed. Without a copy this name can't be used: start a new pipeline under another one, "
        "with other sinks",
    )


def _torn(facts: Facts, home: HomeFacts) -> Finding:
    claim = facts.tail.claim if facts.tail else None
    mendable = claim is not None and claim.home_path == str(home.home) and bool(home.successors)
    return Finding(
        "home-torn",
        home.torn or f"{home.home}/home.json is missing, and the home has lineages",
        "put home.json back from a copy of the home" + ("; or let --fix write it from the ledger" if mendable else ""),
        Remedy.IDENTITY if mendable else None,
    )


def _is_ours(facts: Facts, home: HomeFacts) -> bool:
    claim = facts.tail.claim if facts.tail else None
    return claim is not None and (claim.home, claim.home_path) == (home.identity, str(home.home))


def _pointing(facts: Facts, home: HomeFacts, name: str, what: str) -> Finding:
    """Return a finding on ``current``: it is pointed elsewhere, or a savepoint is restored where nothing is left."""
    if not _is_ours(facts, home):
        return Finding(name, what, "put the home back from a copy")
    named = facts.named_lineage()
    if named is not None:
        return Finding(name, what, f"point current to lineage {named.id}, which the ledger names", Remedy.POINT)
    if facts.savepoints and facts.savepoints.whole:
        return Finding(name, what, f"exactlyonce restore {facts.pipeline}: the lineage itself is lost", Remedy.RESTORE)
    return Finding(name, what, "put the lineage back from a copy of the home: there is no savepoint to restore")
