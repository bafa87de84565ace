"""What is sent, and what must come out of it: each record follows from its number and the seed alone.

Records are bookings of cents on accounts. What both pipelines owe for a booking is which one of its account it is, and
the account's balance after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

#: One line a row.
Rows = npt.NDArray[np.int64]
#: The columns of :data:`Rows`; ``amount`` and ``balance`` in cents.
COLUMNS = ("id", "account", "number", "amount", "balance")
ID, ACCOUNT, NUMBER = range(3)

ACCOUNTS = 60
_AMOUNTS = 997  # after so many bookings an account's amounts begin again
_LEAST, _MOST = -20_000, 50_000


@dataclass(frozen=True)
class Script:
    """All bookings that a seed gives.

    :param accounts: they take turns: booking ``id`` is of account ``id % accounts``
    """

    seed: int
    accounts: int = ACCOUNTS
    _amounts: npt.NDArray[np.int64] = field(init=False, repr=False, compare=False)
    _sums: npt.NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        amounts = np.random.default_rng(self.seed).integers(_LEAST, _MOST, _AMOUNTS, dtype=np.int64)
        object.__setattr__(self, "_amounts", amounts)
        object.__setattr__(self, "_sums", np.concatenate(([0], np.cumsum(np.tile(amounts, 2)))))

    def rows(self, ids: npt.NDArray[np.int64]) -> Rows:
        """Return the rows that are owed for these bookings."""
        account, before = ids % self.accounts, ids // self.accounts
        start = account * 31 % _AMOUNTS
        turns, rest = np.divmod(before + 1, _AMOUNTS)
        balance = turns * self._sums[_AMOUNTS] + self._sums[start + rest] - self._sums[start]
        amount = self._amounts[(start + before) % _AMOUNTS]
        return np.stack((ids, account, before + 1, amount, balance), axis=1)

    def due(self, sent: int) -> npt.NDArray[np.int64]:
        """Return how many bookings each account has once the first ``sent`` are there."""
        accounts = np.arange(self.accounts)
        return np.maximum(0, (sent - accounts + self.accounts - 1) // self.accounts)
