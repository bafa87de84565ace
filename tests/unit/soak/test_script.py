"""The sequence follows from its seed, and a balance is the sum of the amounts before it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tests.soak.script import Script


def test_numbers_and_balances_are_those_of_a_plain_sum() -> None:
    script = Script(7, accounts=5)
    numbers: dict[int, int] = defaultdict(int)
    balances: dict[int, int] = defaultdict(int)
    for booking, account, number, amount, balance in script.rows(np.arange(12_000)).tolist():  # over 997 an account
        assert account == booking % 5
        numbers[account] += 1
        balances[account] += amount
        assert (number, balance) == (numbers[account], balances[account])
    for sent in (0, 3, 5, 11_998):
        due = np.bincount(np.arange(sent) % 5, minlength=5)
        assert script.due(sent).tolist() == due.tolist()


def test_a_seed_gives_the_same_bookings_again_and_another_others() -> None:
    ids = np.arange(100)
    assert (Script(1).rows(ids) == Script(1).rows(ids)).all()
    assert (Script(1).rows(ids) != Script(2).rows(ids)).any()
