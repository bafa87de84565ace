"""Hand-made histories for the judge: small enough to be checked by eye, whole enough to be right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord, Record, SinkRange
from demo.history import SOURCE_TOPIC, Event, History, Kill, Update, batches_of
from demo.purchases import Purchase
from tests.ledger_records import claim_record, commit_record

SINK = "shop.totals"
CUSTOMERS = ("ann", "bob", "cid")
BATCHES = 8  # of three events each: one of every customer
EPOCH = 1_800_000_000.0


def purchases() -> list[Purchase]:
    """Make the file: customers take turns, and the price is the line's number."""
    return [
        Purchase(line=2 + n, customer=CUSTOMERS[n % 3], day="19970101", disks=1, dollars=Decimal(2 + n))
        for n in range(3 * BATCHES)
    ]


def events() -> list[Event]:
    """Make the source topic, which has one partition."""
    return [
        Event(partition=0, offset=n, event_id=bought.line, customer=bought.customer, dollars=bought.dollars)
        for n, bought in enumerate(purchases())
    ]


def updates() -> list[Update]:
    """Make the sink: every batch shows all customers, then takes one offset for its commit marker."""
    shown = []
    for batch in range(BATCHES):
        for place, customer in enumerate(CUSTOMERS):
            bought = [p.dollars for p in purchases() if p.customer == customer][: batch + 1]
            offset = 4 * batch + place
            shown.append(
                Update(partition=0, offset=offset, customer=customer, purchases=batch + 1, paid=sum(bought, Decimal(0)))
            )
    return shown


def commit(number: int) -> CommitRecord:
    """Make the ledger's record of the batch with this commit number, 10 s after the one before."""
    batch = number - 1
    return commit_record(
        number,
        pipeline="shop-totals",
        lineage="lineage",
        batch=batch,
        source={SOURCE_TOPIC: {0: (3 * batch, 3 * number)}},
        sink={SINK: {0: SinkRange(first=4 * batch, last=4 * batch + 2, rows=3, digest=0)}},
        rows=3,
        epoch=batch,
        started=int(1000 * (EPOCH + 10 * number - 3)),
        committed=int(1000 * (EPOCH + 10 * number)),
    )


def claim(run: int) -> ClaimRecord:
    """Make the ledger's record of a run."""
    return claim_record(
        run,
        pipeline="shop-totals",
        host="host",
        token=str(run),
        lineage="lineage",
        home="home",
        claimed=int(1000 * EPOCH),
    )


def ledger() -> list[Record]:
    """Make the whole ledger: three runs, eight commits."""
    return [
        claim(1),
        *(commit(number) for number in range(1, 4)),
        claim(2),
        *(commit(number) for number in range(4, 7)),
        claim(3),
        *(commit(number) for number in range(7, BATCHES + 1)),
    ]


def history(shown: Sequence[Update] | None = None) -> History:
    """Make the history of a right run with two kills.

    :param shown: what the sink shows, the right updates by default
    """
    visible = updates() if shown is None else shown
    return History(
        batches=batches_of(record for record in ledger() if isinstance(record, CommitRecord)),
        updates=visible,
        rows_written=len(visible) + 2,
        sink_ends={SINK: {0: (32, 32)}},
        starts=[EPOCH, EPOCH + 35, EPOCH + 65],
        kills=[Kill(run=1, at=EPOCH + 32, label="in mid-write"), Kill(run=2, at=EPOCH + 61, label="after")],
    )


def changed(place: int, **changes: object) -> list[Update]:
    """Return the right updates with one of them changed."""
    shown = updates()
    shown[place] = replace(shown[place], **changes)  # type: ignore[arg-type]
    return shown
