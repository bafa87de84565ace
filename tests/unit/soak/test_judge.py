"""The judge finds what is lost, doubled and altered, in a stream and in a table, and nothing where all is right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.soak.judge import ALTERED, DOUBLED, LOST, Finding, Judge
from tests.soak.script import Rows, Script

SCRIPT = Script(3, accounts=4)
SENT = 40


def rows(*ids: int) -> Rows:
    return SCRIPT.rows(np.array(ids or range(SENT)))


def without(booking: int) -> Rows:
    return np.delete(rows(), booking, axis=0)


def doubled(booking: int) -> Rows:
    return np.concatenate((rows(), rows(booking)))


def altered(booking: int) -> Rows:
    changed = rows()
    changed[booking, 4] += 1  # a cent
    return changed


def of_a_stream(given: Rows) -> list[Finding]:
    judge = Judge("stream", SCRIPT)
    found = [finding for part in np.array_split(given, 3) for finding in judge.read_on(part)]
    return [*found, *judge.complete(SENT)]


def of_a_table(given: Rows) -> list[Finding]:
    judge = Judge("table", SCRIPT)
    found = judge.look_again(given, 0)
    return [*found, *judge.complete(SENT)]


READERS = pytest.mark.parametrize("reader", [of_a_stream, of_a_table])
Reader = Callable[[Rows], list[Finding]]


@READERS
def test_all_is_right(reader: Reader) -> None:
    assert reader(rows()) == []


@READERS
@pytest.mark.parametrize("booking", [0, 17, SENT - 1])
def test_a_lost_record_is_found(reader: Reader, booking: int) -> None:
    assert {(finding.kind, finding.count) for finding in reader(without(booking))} == {(LOST, 1)}


@READERS
@pytest.mark.parametrize("booking", [0, 17, SENT - 1])
def test_a_doubled_record_is_found(reader: Reader, booking: int) -> None:
    [finding] = reader(doubled(booking))
    assert (finding.kind, finding.count, finding.note) == (DOUBLED, 1, f"bookings {booking}")


@READERS
@pytest.mark.parametrize("booking", [0, 17])
def test_a_record_that_is_a_cent_off_is_found(reader: Reader, booking: int) -> None:
    found = reader(altered(booking))
    assert (ALTERED, 1) in {(finding.kind, finding.count) for finding in found}
    assert str(SCRIPT.rows(np.array([booking]))[0].tolist()) in found[0].note


@READERS
def test_a_record_that_nobody_has_sent_is_found(reader: Reader) -> None:
    assert {(finding.kind, finding.count) for finding in reader(rows(*range(SENT + 1)))} == {(ALTERED, 1)}
    assert reader(np.array([[-5, 1, 1, 0, 0]]))[0].kind == ALTERED


def test_what_is_read_may_run_ahead_of_other_accounts_and_the_floor_is_what_is_certain() -> None:
    judge = Judge("stream", SCRIPT)
    assert judge.read_on(rows(0, 4, 8, 1, 2, 3)) == []
    assert (judge.floor, judge.rows) == (5, 6)
    assert judge.read_on(np.empty((0, 5), np.int64)) == []


def test_a_table_is_looked_at_from_the_floor_on() -> None:
    judge = Judge("table", SCRIPT)
    assert judge.look_again(rows(*range(10)), 0) == []
    since = judge.floor
    assert since == 10
    assert judge.look_again(rows(*range(since, 24)), since) == []
    assert (judge.floor, judge.rows) == (24, 24)


def test_what_a_table_has_shown_must_not_go_away_again() -> None:
    judge = Judge("table", SCRIPT)
    assert judge.look_again(rows(0, 1, 2, 4, 5), 0) == []
    since = judge.floor
    [finding] = judge.look_again(rows(3, 4), since)
    assert (finding.kind, finding.note) == (LOST, "bookings 5")


def test_a_gap_in_a_table_is_found_before_the_end() -> None:
    [finding] = Judge("table", SCRIPT).look_again(rows(0, 1, 2, 3, 8), 0)
    assert (finding.kind, finding.note) == (LOST, "bookings 4")
