"""What a run knows of its ledger and its lineage; it is made without Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.exceptions import ClaimFailedError, FencedError, RefusedError
from airflow_provider_exactlyonce.kafka import preflight
from airflow_provider_exactlyonce.kafka.range_reader import ReadTimedOutError
from airflow_provider_exactlyonce.kafka.transaction import SessionState
from airflow_provider_exactlyonce.ledger import topic
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, Record, decode
from airflow_provider_exactlyonce.streaming.commit import run as runs
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from tests.clocks import StandingClock
from tests.ledger_records import claim_record
from tests.unit.checkpoint import crafted


def reemitting(home: Home) -> Run:
    """Make run 1 of a pipeline that was restored in mode reemit."""
    run = Run.__new__(Run)
    options = RunOptions(config={}, token="a", version="v", transaction_timeout_milliseconds=1)
    vars(run).update(home=home, pipeline="p", options=options, number=1, _lineage=crafted.reemitting(home))
    return run


def test_a_batch_that_is_another_commit_now_is_none_that_a_reemit_has_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "LedgerReader", lambda config, pipeline: crafted.Ledger(claim=claim_record(1)))
    home = Home(tmp_path / "home")
    run = reemitting(home)
    run.rebase(2, 21)
    assert run.lineage.state_of(2) == 21
    assert home.current() == run.lineage


@pytest.mark.parametrize("is_seen", [True, False])
def test_which_commit_a_batch_is_by_a_run_that_was_frozen_replaces_nothing_that_its_successor_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_seen: bool
) -> None:
    home = Home(tmp_path / "home")
    frozen, successors = reemitting(home), crafted.Ledger(claim=claim_record(2))
    known = replace(frozen.lineage, base_batch=7, base_commit=25, reemits=None)
    ledgers = [crafted.Ledger(claim=claim_record(1)), successors]

    def looked(config: object, pipeline: str) -> crafted.Ledger:
        answer = successors if is_seen else ledgers.pop(0)
        home.remember(known)  # after the look at the document, and before or after the look at the ledger
        return answer

    monkeypatch.setattr(runs, "LedgerReader", looked)
    with pytest.raises(FencedError, match="run 1 of p is superseded by run 2"):
        frozen.rebase(2, 21)
    assert home.current() == known


class Claims(crafted.Ledger):
    """A ledger of claims, which fails at reads as the test says.

    :param tails: what the next looks at its end raise, None for an answer
    :param reads: what the next reads of its records raise
    """

    def __init__(self, *, tails: list[Exception | None], reads: list[Exception | None]) -> None:
        super().__init__()
        self.claims = [claim_record(1)]
        self.errors = {"tail": tails, "records": reads}
        # What the session of a run does to it:
        self.state = SessionState.IDLE

    def initialise(self, give_up: object) -> None:
        """Fence nobody."""

    begin = commit = lambda self: None

    def write(self, topic: str, partition: int, key: bytes, value: bytes) -> int:
        claim = decode(value)
        assert isinstance(claim, ClaimRecord)
        self.claims.append(claim)
        return len(self.claims) - 1

    def tail(self) -> LedgerTail | None:
        self._fail("tail")
        end = len(self.claims)
        return LedgerTail(cluster_id="c", topic_id="t", end_offset=end, claim=self.claims[-1], claim_offset=end - 1)

    def records(self, start_offset: int = 0, end_offset: int | None = None) -> Iterator[tuple[int, Record]]:
        self._fail("records")
        yield from list(enumerate(self.claims))[start_offset:end_offset]

    def _fail(self, call: str) -> None:
        error = self.errors[call].pop(0) if self.errors[call] else None
        if error is not None:
            raise error


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    home, run = Home(tmp_path / "home"), Run.__new__(Run)
    home.create("p")
    lineage = home.current()
    options = RunOptions(config={}, token="a", version="v", transaction_timeout_milliseconds=1)
    sources = SimpleNamespace(recorded={}, datasets={})
    client = SimpleNamespace(stable_offsets=lambda topic: [1_000_000])
    vars(run).update(home=home, pipeline="p", options=options, sources=sources, client=client, number=1, lost={})
    vars(run).update(_lineage=lineage, _lease=leases.acquire(home.lease, "p", "a", run=1), _tail=None, guarantee="x")
    monkeypatch.setattr(runs, "time", StandingClock())
    monkeypatch.setattr(run, "_check_ledger", lambda tail: None)
    return run


AWAY, SLOW = KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN)), ReadTimedOutError("nothing more can be read")


@pytest.mark.parametrize("error", [AWAY, SLOW])
@pytest.mark.parametrize("at", ["before the claim", "its records", "after the claim"])
def test_a_claim_whose_ledger_does_not_answer_a_read_is_tried_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, at: str
) -> None:
    looks = {"before the claim": [None, error], "its records": [], "after the claim": [None, None, error]}
    ledger = Claims(tails=list(looks[at]), reads=[error] if at == "its records" else [])
    use(ledger, run, monkeypatch)
    run.reclaim()
    assert run.tail.claim == ledger.claims[-1]
    assert len(ledger.claims) == (2 if at == "before the claim" else 3)


def test_a_ledger_that_stays_away_ends_a_claim_and_one_that_is_another_s_is_refused_at_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Claims(tails=[], reads=[AWAY] * 5), run, monkeypatch)
    with pytest.raises(ClaimFailedError, match="in 5 tries"):
        run.reclaim()
    ledger = Claims(tails=[], reads=[RefusedError("no record of a ledger")])
    use(ledger, run, monkeypatch)
    with pytest.raises(RefusedError, match="no record of a ledger"):
        run.reclaim()
    assert len(ledger.claims) == 2


def use(ledger: Claims, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a ledger that of a run."""
    vars(run).update(_reader=ledger, session=ledger)
    monkeypatch.setattr(runs, "LedgerReader", lambda config, pipeline: ledger)


def restored(home: Home) -> None:
    """Do what a restore does that has found a driver silent."""
    lineage = Lineage(id="restored")
    with leases.holding(home.lease, "p", "restore-x", leases.read(home.lease)) as hold:
        home.remember(lineage)
        home.switch(lineage.id, hold.pointer)


def killed_in_a_restore(home: Home) -> None:
    lease = leases.read(home.lease)
    restored(home)
    assert lease is not None
    json_store.write(home.lease, asdict(replace(lease, token="restore-x", run=0, process_started=1)))


def moved(home: Home) -> None:
    home.lease.unlink()
    json_store.write(home.path / "current", {"schema": 2, "move": {"source": "/a", "target": "/b"}, "change": "x"})


@pytest.mark.parametrize("meanwhile", [restored, killed_in_a_restore, moved])
def test_a_run_that_was_silent_while_its_home_went_on_in_another_lineage_is_superseded(
    run: Run, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Home], None]
) -> None:
    use(Claims(tails=[], reads=[]), run, monkeypatch)
    meanwhile(run.home)
    before = leases.read(run.home.lease)
    assert not run.renew_lease()
    assert leases.read(run.home.lease) == before
    with pytest.raises(FencedError, match="restored, rescaled or moved"):
        run.check_superseded()
    with pytest.raises(FencedError, match="restored, rescaled or moved"):
        run.reclaim()


def nothing_else(home: Home) -> None:
    """Leave the rest of the home as it is."""


def pointer_gone(home: Home) -> None:
    (home.path / "current").unlink()


def pointer_torn(home: Home) -> None:
    (home.path / "current").write_bytes(b"torn")


@pytest.mark.parametrize("also", [nothing_else, pointer_gone, pointer_torn])
def test_a_run_whose_lease_alone_is_gone_takes_it_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, also: Callable[[Home], None]
) -> None:
    use(Claims(tails=[], reads=[]), run, monkeypatch)
    run.home.lease.unlink()
    also(run.home)
    assert run.renew_lease()
    held = leases.read(run.home.lease)
    assert held is not None
    assert (held.token, held.run) == ("a", 1)
    run.check_superseded()


def test_a_home_that_does_not_tell_its_lineage_tells_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Claims(tails=[], reads=[]), run, monkeypatch)
    run.home.lease.unlink()
    current = run.home.path / "current"
    pointer = current.read_bytes()
    current.unlink()
    current.symlink_to(current)  # as unreadable for everybody, root too
    with pytest.raises(OSError, match="symbolic links"):
        run.renew_lease()
    assert leases.read(run.home.lease) is None
    current.unlink()
    current.write_bytes(pointer)
    assert run.renew_lease()


def test_a_start_that_has_claimed_nothing_renews_its_lease_in_whatever_lineage(run: Run) -> None:
    vars(run).update(number=0, _lineage=None)
    run.home.lease.unlink()
    assert run.renew_lease()


@pytest.mark.parametrize(
    ("tail", "is_new"),
    [
        (LedgerTail(cluster_id="c", topic_id="t", end_offset=0), True),
        (LedgerTail(cluster_id="c", topic_id="t", end_offset=1, claim=claim_record(1), claim_offset=0), False),
    ],
)
def test_a_ledger_without_a_record_is_a_new_one_whoever_has_created_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: LedgerTail, *, is_new: bool
) -> None:
    checked = list[bool]()
    monkeypatch.setattr(runs, "_tail_of", lambda reader: tail)
    monkeypatch.setattr(preflight, "check_cluster", lambda *_, **__: None)
    monkeypatch.setattr(topic, "check", lambda config, pipeline, *, is_new: checked.append(is_new))
    monkeypatch.setattr(Run, "_check_ledger", lambda run, tail: None)
    run = Run.__new__(Run)
    options = RunOptions(config={}, token="a", version="v", transaction_timeout_milliseconds=1)
    session = SimpleNamespace(transactional_id="p")
    vars(run).update(
        home=Home(tmp_path), pipeline="p", options=options, client=None, session=session, _reader=None, _left=None
    )
    assert run.check() is tail
    assert checked == [is_new]
