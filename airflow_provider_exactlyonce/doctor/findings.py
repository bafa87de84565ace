"""The doctor's findings: every kind by name, and a single finding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class Severity(StrEnum):
    """A finding's effect on the guarantee."""

    ERROR = "error"  # the pipeline can't go on as it is, or would lose or repeat something
    WARNING = "warning"  # it goes on; a person should look
    INFO = "info"  # as it may be; told because people ask


class Remedy(StrEnum):
    """The repairs of ``--fix``, in the order in which they are made."""

    LEDGER_SETTINGS = "put the ledger topic's settings right"
    ABORT = "abort the pipeline's own transaction"
    ABORT_HANGING = "write the abort marker that a transaction of the pipeline lacks"
    RELEASE = "remove the lease"
    IDENTITY = "write home.json again from the ledger"
    POINT = "point current to the lineage that the ledger names"
    CLEAN_UP = "remove what interrupted saves, deletes and restores have left"
    SET_ASIDE = "move the savepoint out of the way"
    RESTORE = "restore the newest savepoint that is whole"
    REBUILD = "make a fresh lineage of the newest batch that is whole"
    CUT = "make a fresh lineage in which the batch is cut in half"
    SAVE = "take a savepoint"


#: Remedies that touch no file of the home, and those that ask a driver, if one lives, to do it.
WHILE_RUNNING: Final = frozenset({Remedy.LEDGER_SETTINGS, Remedy.SAVE})

#: Remedies that decide what the next start runs: one at a time.
MAKING: Final = frozenset({Remedy.POINT, Remedy.RESTORE, Remedy.REBUILD, Remedy.CUT})

_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

#: Every kind of finding: its name, which never changes, and how bad it is. docs/doctor.md explains each.
KINDS: Final[Mapping[str, Severity]] = {
    # what can't be looked at
    "kafka-unreachable": _ERROR,
    "home-unknown": _ERROR,
    "home-not-here": _ERROR,
    "ledger-missing": _ERROR,
    "ledger-unreadable": _ERROR,
    "not-looked-at": _ERROR,
    # home and lineage
    "home-moved": _ERROR,
    "home-torn": _ERROR,
    "home-of-another-pipeline": _ERROR,
    "home-empty": _ERROR,
    "foreign-home": _ERROR,
    "copied-home": _ERROR,
    "lineage-lost": _ERROR,
    "lineage-abandoned": _ERROR,
    "lineage-not-current": _ERROR,
    "unfinished-restore": _WARNING,
    # checkpoint
    "foreign-checkpoint": _ERROR,
    "query-id-lost": _WARNING,
    "torn-files": _ERROR,
    "checkpoint-gone": _WARNING,
    "state-lost": _ERROR,
    "checkpoint-ahead-of-ledger": _ERROR,
    "checkpoint-behind-ledger": _ERROR,
    "replay-impossible": _ERROR,
    "offsets-differ-from-ledger": _ERROR,
    "batch-not-recorded-by-spark": _INFO,
    "leftover-offsets": _WARNING,
    "unfinished-repartition": _ERROR,
    "batch-too-long": _ERROR,
    # savepoints
    "savepoint-damaged": _ERROR,
    "unfinished-savepoint": _WARNING,
    "savepoint-of-another-pipeline": _WARNING,
    "savepoint-ahead-of-ledger": _ERROR,
    "savepoint-history-gone": _ERROR,
    "savepoint-input-gone": _ERROR,
    "savepoint-input-expiring": _WARNING,
    "old-savepoint-useless": _INFO,
    # ledger
    "ledger-deleted": _ERROR,
    "ledger-recreated": _ERROR,
    "ledger-set-back": _ERROR,
    "another-cluster": _ERROR,
    "ledger-contradicts-itself": _ERROR,
    "ledger-settings": _ERROR,
    "late-rows": _INFO,
    # driver
    "two-drivers": _ERROR,
    "silent-driver": _ERROR,
    "stale-lease": _WARNING,
    "driver-failed": _WARNING,
    # topics
    "topic-missing": _ERROR,
    "topic-recreated": _ERROR,
    "topic-unavailable": _ERROR,
    "unsafe-setting": _ERROR,
    "cluster-refused": _ERROR,
    "unread-input-gone": _ERROR,
    "unread-input-expiring": _WARNING,
    "source-compacted": _WARNING,
    # transactions
    "open-transaction": _WARNING,
    "foreign-transaction": _WARNING,
    "hanging-transaction": _ERROR,
    "transactional-id-expired": _INFO,
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    :param name: one of :data:`KINDS`
    :param what: in plain words, with the path, offset or value
    :param do: what to do: the command, or the step
    :param remedy: what ``--fix`` does about it, None when it is not safe to do anything
    :param subject: what exactly the remedy is for, where there may be several
    """

    name: str
    what: str
    do: str
    remedy: Remedy | None = None
    subject: str = ""

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return KINDS[self.name]

    @property
    def fixable(self) -> bool:
        """Whether ``--fix`` does something about it."""
        return self.remedy is not None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "name": self.name,
            "severity": self.severity.value,
            "what": self.what,
            "do": self.do,
            "fixable": self.fixable,
        }
