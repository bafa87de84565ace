"""The repairs of ``--fix``: they can neither lose nor repeat a record, work on copies, and are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce import codec, process_identity
from airflow_provider_exactlyonce.checkpoint import lineages, request
from airflow_provider_exactlyonce.checkpoint.rebuild import keep_copy, rebuild, set_aside
from airflow_provider_exactlyonce.checkpoint.restore import RestoreRequest, restore
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.lease import Liveness
from airflow_provider_exactlyonce.control.moving import HomeDocument
from airflow_provider_exactlyonce.doctor.facts import Facts
from airflow_provider_exactlyonce.doctor.findings import MAKING, WHILE_RUNNING, Finding, Remedy
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, ExactlyOnceError, RefusedError, required
from airflow_provider_exactlyonce.ledger import topic as ledger_topics
from airflow_provider_exactlyonce.ledger.records import transactional_id
from airflow_provider_exactlyonce.storage.opening import is_there
from airflow_provider_exactlyonce.transactions.liveness import why_taken_for_alive

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.kafka.cluster_transactions import Transactions

_NEED_KAFKA: Final = MAKING | {Remedy.LEDGER_SETTINGS, Remedy.ABORT, Remedy.ABORT_HANGING, Remedy.SAVE}


def repair(facts: Facts, finding: Finding) -> str:
    """Repair a finding; returns the repair in a sentence.

    :raises ExactlyOnceError: when it can't be repaired; nothing has become worse
    """
    remedy = finding.remedy
    if remedy is None or facts.home is None:
        raise RefusedError(f"{finding.name}: nothing is safe to do")
    if remedy not in WHILE_RUNNING:
        _check_stopped(facts, facts.home.home)
    if remedy in _NEED_KAFKA and not facts.reachable:
        raise ExactlyOnceError("Kafka does not answer, and what the ledger has decides what is safe")
    if remedy in MAKING:
        _check_belongs(facts)
        _check_decided(facts)
    return _REMEDIES[remedy](facts, facts.home.home, finding)


def _check_stopped(facts: Facts, home: Home) -> None:
    """Check that no driver holds the pipeline; one that has come since the look is seen too."""
    driver, held = facts.driver, leases.read(home.lease)
    if held is None:
        return
    unchanged = driver is not None and held == driver.lease
    life = driver.life if driver is not None and unchanged else leases.observe(home.lease)[1]
    if life is Liveness.ALIVE or (life is Liveness.STALE and held.machine == process_identity.this_machine()):
        raise AlreadyRunningError(f"pid {held.pid} on {held.host} holds the pipeline: stop it first, then --fix")


def _check_belongs(facts: Facts) -> None:
    lineage = facts.home.lineage if facts.home else None
    mismatch = facts.mismatch(lineage) if lineage is not None else None
    if mismatch is not None and not mismatch.is_of_lineage:
        raise RefusedError(f"home and ledger do not belong together: {mismatch.message}")


def _check_decided(facts: Facts) -> None:
    """Check that no commit of the pipeline is on its way: the ledger that was read is all there is."""
    with _transactions(facts) as transactions:
        transaction = transactions.describe(transactional_id(facts.pipeline))
    if transaction is not None and transaction.is_open:
        raise RefusedError(f"{transaction.transactional_id} is {transaction.state}: ask again once it is ended")


def _ledger_settings(facts: Facts, home: Home, finding: Finding) -> str:
    return f"set {', '.join(ledger_topics.repair(facts.config, facts.pipeline))} of the ledger's topic"


def _abort(facts: Facts, home: Home, finding: Finding) -> str:
    transaction = required(
        facts.transactions.own if facts.transactions else None, "the finding is of an open transaction"
    )
    with _transactions(facts) as transactions:
        alive = why_taken_for_alive(facts.config, facts.pipeline)
        if alive is not None:
            raise AlreadyRunningError(f"the transaction is not aborted: {alive}")
        transactions.abort(transaction)
    return f"aborted the open transaction of {transaction.transactional_id}"


def _abort_hanging(facts: Facts, home: Home, finding: Finding) -> str:
    with _transactions(facts) as transactions:
        for hanging in facts.transactions.hanging if facts.transactions else ():
            if f"{hanging.topic}-{hanging.partition} {hanging.first_offset}" == finding.subject:
                transactions.abort_hanging(hanging)
    return f"wrote the abort marker that was missing in {finding.subject.replace(' ', ' from offset ')} on"


@contextmanager
def _transactions(facts: Facts) -> Iterator[Transactions]:
    from airflow_provider_exactlyonce.kafka.cluster_transactions import Transactions
    from airflow_provider_exactlyonce.kafka.wire import WireClient

    with WireClient(dict(facts.config)) as client:
        yield Transactions(client)


def _release(facts: Facts, home: Home, finding: Finding) -> str:
    seen_lease = facts.driver.lease if facts.driver else None
    held, life = leases.observe(home.lease)
    if held is None or seen_lease is None or held.token != seen_lease.token or life is Liveness.ALIVE:
        raise AlreadyRunningError("another driver has taken the lease meanwhile, or its holder has come back")
    leases.release(home.lease, held)
    return f"removed the lease of run {held.run}, pid {held.pid} on {held.host}"


def _identity(facts: Facts, home: Home, finding: Finding) -> str:
    claim = facts.tail.claim if facts.tail else None
    if claim is None:
        raise RefusedError("the ledger has no claim that tells the home's identity")
    kept = keep_copy(home, home.path / "home.json")
    json_store.write(home.path / "home.json", codec.dump(HomeDocument(id=claim.home, pipeline=facts.pipeline)))
    torn = f"; the torn one is kept as {kept}" if kept else ""
    return f"wrote home.json again, with the identity that run {claim.run} claimed{torn}"


def _holding(facts: Facts, home: Home) -> AbstractContextManager[leases.Hold]:
    return leases.holding_stopped(home.lease, facts.pipeline, "doctor")


def _point(facts: Facts, home: Home, finding: Finding) -> str:
    target = facts.named_lineage()
    if target is None:
        raise RefusedError("the lineage that the ledger names is not in the home")
    previous = facts.home.lineage.id if facts.home and facts.home.lineage else "none that is whole"
    with _holding(facts, home) as hold, hold.sure():
        home.switch(target.id, hold.pointer)
    return f"pointed current to lineage {target.id}; before it was {previous}"


def _clean_up(facts: Facts, home: Home, finding: Finding) -> str:
    with _holding(facts, home) as hold:
        removed = [*Savepoints(home.savepoints).remove_leftovers(), *map(str, lineages.unfinished(home.lineages))]
        lineages.remove_unfinished(home.lineages, hold)
    return f"removed {', '.join(removed) or 'nothing: it is gone'}"


def _set_aside(facts: Facts, home: Home, finding: Finding) -> str:
    with _holding(facts, home):
        kept = set_aside(home, home.savepoints / finding.subject)
    return f"moved savepoint {finding.subject} to {kept}"


def _restore(facts: Facts, home: Home, finding: Finding) -> str:
    savepoints = facts.savepoints.whole if facts.savepoints else ()
    whole = [savepoint for savepoint in savepoints if savepoint.pipeline == facts.pipeline]
    if not whole:
        raise RefusedError("there is no whole savepoint")
    restored = restore(home, facts.pipeline, facts.config, RestoreRequest(savepoint=whole[-1].id))
    previous = _kept_lineage(facts, home)
    kept = f"; lineage {previous.name} stays in {previous}" if previous else ""
    return f"restored savepoint {whole[-1].id} of commit {whole[-1].commit}: lineage {restored.lineage.id}{kept}"


def _kept_lineage(facts: Facts, home: Home) -> Path | None:
    """Return where the lineage is that was current when the doctor looked, None when it is gone."""
    path = home.lineages / facts.home.lineage.id if facts.home and facts.home.lineage else None
    return path if path is not None and is_there(path) else None


def _rebuild(facts: Facts, home: Home, finding: Finding) -> str:
    cut = finding.remedy is Remedy.CUT
    made = rebuild(home, facts.pipeline, facts.config, cut=cut)
    previous = _kept_lineage(facts, home)
    return (
        f"made lineage {made.id} of batch {made.base_batch} (commit {made.base_commit}), which is whole; what it was "
        f"made of {f'stays in {previous}' if previous else 'was never started, and is removed'}"
        f"{'; its next batch has half of the records' if cut else ''}"
    )


def _save(facts: Facts, home: Home, finding: Finding) -> str:
    savepoint = request.take(home, facts.pipeline, facts.config, label="taken by the doctor")
    return f"took savepoint {savepoint.id} of commit {savepoint.commit}"


_REMEDIES: Final[Mapping[Remedy, Callable[[Facts, Home, Finding], str]]] = {
    Remedy.LEDGER_SETTINGS: _ledger_settings,
    Remedy.ABORT: _abort,
    Remedy.ABORT_HANGING: _abort_hanging,
    Remedy.RELEASE: _release,
    Remedy.IDENTITY: _identity,
    Remedy.POINT: _point,
    Remedy.CLEAN_UP: _clean_up,
    Remedy.SET_ASIDE: _set_aside,
    Remedy.RESTORE: _restore,
    Remedy.REBUILD: _rebuild,
    Remedy.CUT: _rebuild,
    Remedy.SAVE: _save,
}
