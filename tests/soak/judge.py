"""Judges what a reader sees of one sink, while it grows: nothing lost, nothing doubled, right to the cent.

At any time a sink must show a prefix of each account's bookings: 1, 2, 3 … up to some number, each once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.soak.script import ACCOUNT, COLUMNS, ID, NUMBER, Rows, Script

LOST, DOUBLED, ALTERED = "lost", "doubled", "altered"
_NAMED = 3  # how many of a kind a finding names


@dataclass(frozen=True)
class Finding:
    """Something that is off.

    :param where: the sink
    :param kind: lost, doubled, altered, or what else was promised and not kept
    :param count: of records
    """

    where: str
    kind: str
    count: int
    note: str

    def facts(self) -> dict[str, object]:
        """Return it as JSON."""
        return {"where": self.where, "finding": self.kind, "count": self.count, "note": self.note}


class Judge:
    """Knows what of a sink was seen.

    :param where: what findings call the sink
    :ivar rows: how many rows were judged, each once
    """

    def __init__(self, where: str, script: Script) -> None:
        self.where = where
        self.rows = 0
        self._script = script
        self._seen = np.zeros(script.accounts, np.int64)  # the number of each account's newest booking

    @property
    def floor(self) -> int:
        """All bookings before this one were seen."""
        accounts = np.arange(self._script.accounts)
        return int((self._seen * self._script.accounts + accounts).min())

    def read_on(self, rows: Rows) -> list[Finding]:
        """Judge what a reader that goes through the sink in its order gets next."""
        rows, findings = self._sound(rows)
        doubled: list[int] = []
        lost: list[int] = []
        for account in np.unique(rows[:, ACCOUNT]):
            numbers = rows[rows[:, ACCOUNT] == account, NUMBER]
            seen = int(self._seen[account])
            if not np.array_equal(numbers, seen + 1 + np.arange(len(numbers))):
                for number in numbers.tolist():
                    if number <= seen:
                        doubled.append(self._id(account, number))
                    lost += [self._id(account, missing) for missing in range(seen + 1, number)]
                    seen = max(seen, number)
            self._seen[account] = max(seen, int(numbers.max()))
        self.rows += len(rows)
        return [*findings, *self._found(DOUBLED, np.array(doubled)), *self._found(LOST, np.array(lost))]

    def look_again(self, rows: Rows, since: int) -> list[Finding]:
        """Judge what a table shows at one moment.

        :param rows: of all bookings from ``since`` on, in any order
        :param since: at most the :attr:`floor` before
        """
        rows, findings = self._sound(rows)
        ids, times = np.unique(rows[:, ID], return_counts=True)
        findings += self._found(DOUBLED, ids[times > 1])
        newest = self._seen.copy()
        np.maximum.at(newest, ids % self._script.accounts, ids // self._script.accounts + 1)
        owed = self._between(self._script.due(since), newest)
        findings += self._found(LOST, np.setdiff1d(owed, ids, assume_unique=True))
        self.rows += int((newest - self._seen).sum())
        self._seen = newest
        return findings

    def complete(self, sent: int) -> list[Finding]:
        """Judge the end: all bookings before ``sent`` must have been seen, and no others."""
        due = self._script.due(sent)
        lost, invented = self._between(self._seen, due), self._between(due, self._seen)
        return [*self._found(LOST, lost), *self._found(ALTERED, invented)]

    def _between(self, after: npt.NDArray[np.int64], up_to: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the bookings of all accounts, of each those behind one number and up to another."""
        accounts = self._script.accounts
        spans = [np.arange(after[account], up_to[account]) * accounts + account for account in range(accounts)]
        return np.sort(np.concatenate(spans))

    def _sound(self, rows: Rows) -> tuple[Rows, list[Finding]]:
        """Return the rows that are what the script says, and what is to be said of the others."""
        rows = rows.reshape(-1, len(COLUMNS))
        known = rows[:, ID] >= 0
        right = np.zeros(len(rows), bool)
        right[known] = (rows[known] == self._script.rows(rows[known, ID])).all(axis=1)
        wrong = rows[~right]
        notes = [
            f"{dict(zip(COLUMNS, row, strict=True))}, not {self._script.rows(np.array(row[:1]))[0].tolist()}"
            for row in wrong[:_NAMED].tolist()
        ]
        return rows[right], [Finding(self.where, ALTERED, len(wrong), "; ".join(notes))] if len(wrong) else []

    def _id(self, account: int, number: int) -> int:
        return (number - 1) * self._script.accounts + int(account)

    def _found(self, kind: str, ids: npt.NDArray[np.int64]) -> list[Finding]:
        if not len(ids):
            return []
        more = ", …" if len(ids) > _NAMED else ""
        return [Finding(self.where, kind, len(ids), f"bookings {', '.join(map(str, ids[:_NAMED].tolist()))}{more}")]
