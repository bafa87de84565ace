"""The interfaces that :class:`~.committer.TableCommitter` needs: of a kind of table, and of the sink's ledger in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from airflow_provider_exactlyonce.streaming.sinks.lakehouse.attempts import Committed


class Table(Protocol):
    """One table, as of the last read.

    :cvar VERSION: what a version is called there
    :cvar REFUSALS: errors of a write that say that this time it was not carried out
    """

    VERSION: ClassVar[str]
    REFUSALS: ClassVar[tuple[type[Exception], ...]]

    @property
    def version(self) -> Any:
        """The id of its newest version."""

    def open(self) -> bool:
        """Look at the newest version; returns whether there is a table."""

    def refresh(self) -> None:
        """Look at the newest version of the table, which has to be there."""

    def has_passed(self, version: Any) -> bool:
        """Tell whether another version was written after one, which then is not the newest any more."""

    def keep_after(self, version: Any) -> None:
        """Make the writes after a version outlive a loss of power."""


@dataclass(frozen=True, kw_only=True)
class SinkClaim:
    """A claim of the sink, as a table has it.

    :param run: which has claimed, 0 when none has
    :param number: what tells the claim from others of its run, None when there is none, or an older release made it
    """

    run: int
    number: int | None


class Ledger(Protocol):
    """The ledger of one sink of one pipeline in a table, as of the last read."""

    @property
    def claim(self) -> SinkClaim:
        """The newest claim of the highest run that has claimed."""

    @property
    def commit(self) -> int:
        """The number of the newest commit, 0 when there is none."""

    @property
    def highest(self) -> int:
        """The highest number that was ever committed."""

    def has(self, attempt: str) -> bool:
        """Tell whether the newest commit was made by an attempt."""

    def knows(self, attempt: str) -> bool:
        """Tell whether the table still says that an attempt has committed, be it that it was set back since."""

    def may_have(self, attempt: str) -> bool:
        """Tell whether an attempt at the newest commit's number may have made another one, which was set back since."""

    def newest(self) -> Committed | None:
        """Return the newest commit, None when there is none.

        :raises RefusedError: when that is unknown
        """
