"""Every error of the project, by the caller's way to handle it.

An error carries a :class:`Decision`; nobody parses messages. The driver ends with :attr:`ExactlyOnceError.exit_code`,
so that a supervisor that sees nothing but the exit status decides the same.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

_Value = TypeVar("_Value")


class Decision(Enum):
    """The ways to handle a failed step."""

    RESTART = "restart"  # infrastructure failed; the retained checkpoint restarts
    REPLAY_BATCH = "replay_batch"  # the transaction is aborted for certain; run the batch again
    ASK_LEDGER = "ask_ledger"  # a commit was sent and its answer is missing
    EXIT = "exit"  # a higher run owns the pipeline; never restarted by itself
    REFUSE = "refuse"  # configuration or state can't give the guarantee; nothing was started
    FIX_DATA = "fix_data"  # deterministic: the same input fails again


class ExactlyOnceError(Exception):
    """Base of the project's errors; raised itself where no caller has to distinguish the error."""

    decision: Decision = Decision.RESTART
    exit_code: int = 1
    #: The last lines of the driver's output, with a heading; where a driver is judged from outside.
    log_tail: str = ""

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n{self.log_tail}" if self.log_tail else message

    @classmethod
    def page(cls) -> str:
        """Return the command that prints the error's meaning and remedy."""
        return f"exactlyonce help {cls.__name__}"


class RefusedError(ExactlyOnceError):
    """The pipeline can't start as it is; nothing was fenced, written or aborted."""

    decision = Decision.REFUSE
    exit_code = 64


class SettingRefusedError(RefusedError):
    """A setting has a value with which the protocol doesn't hold.

    :param name: the setting, as its owner spells it
    :param value: its value, None when it is not set
    :param required: the required value, None when it must not be set
    :param why: one clause on what would break
    """

    def __init__(self, name: str, value: object, required: object, why: str) -> None:
        actual = "not set" if value is None else f"{value!r}"
        demanded = "not be set" if required is None else f"be {required!r}"
        super().__init__(f"{name} is {actual}; it must {demanded}: {why}")
        self.name, self.value, self.required = name, value, required


class UnknownPipelineError(RefusedError):
    """No driver of the pipeline has ever started here."""


class HomeMovedError(RefusedError):
    """A home was moved to another place, or is a copy of one that is not finished."""


class DivergedError(RefusedError):
    """A batch that is committed gives other rows when it is run again."""


class VersionRefusedError(RefusedError):
    """A driver runs another version than the pipeline was upgraded to."""


class IncompatibleVersionError(RefusedError):
    """A new version can't go on from the old one's state; nothing was touched."""


class ShadowDiffersError(RefusedError):
    """The shadow run of a new version gave other rows than were delivered; nothing was touched."""


class UpgradeUnstableError(ExactlyOnceError):
    """A new version was started and did not become stable; the message says what runs now."""

    decision = Decision.REFUSE
    exit_code = 71


class AlreadyRunningError(RefusedError):
    """A living driver holds the pipeline's lease."""

    exit_code = 65


class FencedError(ExactlyOnceError):
    """A higher run has taken over. The process exits and is not restarted."""

    decision = Decision.EXIT
    exit_code = 66


class DataError(ExactlyOnceError):
    """The data can't be processed, and would fail again."""

    decision = Decision.FIX_DATA
    exit_code = 67


class BadRecordError(DataError):
    """A source record does not fit the declared schema."""


class TableChangedError(DataError):
    """A version of a source table removes rows, or its columns are not those that are declared."""


class StateValueError(DataError):
    """A value does not fit the type that a state, or a function's output, declares."""


class LateRowsError(DataError):
    """A batch has rows behind the watermark, and the pipeline is to stop at them."""


class RecordTooLargeError(DataError):
    """A record is larger than its topic accepts."""


class RecordRefusedError(DataError):
    """The sink's system refuses a record for its content."""


class DataLostError(ExactlyOnceError):
    """Source records that were not read yet are gone; going on would skip them unnoticed."""

    decision = Decision.REFUSE
    exit_code = 72


class AuditFailedError(ExactlyOnceError):
    """The readable rows contradict the ledger, or the ledger itself; or a range that is run again gives other rows."""

    decision = Decision.REFUSE
    exit_code = 69


class BatchFailedError(ExactlyOnceError):
    """A batch attempt failed and its transaction is aborted, or aborts by itself."""

    decision = Decision.REPLAY_BATCH


class AttemptTimedOutError(BatchFailedError):
    """A batch attempt was ended because it took longer than its transaction may."""


class BatchTimedOutError(ExactlyOnceError):
    """A batch took longer than its transaction may, in every attempt; it would again."""

    decision = Decision.REFUSE
    exit_code = 68


class CommitUnknownError(ExactlyOnceError):
    """A commit was sent and no definite answer came; the ledger decides."""

    decision = Decision.ASK_LEDGER


class ClaimFailedError(ExactlyOnceError):
    """A claim does not succeed, and nothing is attempted before one has. The next start claims again."""


class StopRequestedError(ExactlyOnceError):
    """A stop was requested; the next run goes on after the ledger's newest commit."""

    exit_code = 0


class NotAnsweredError(ExactlyOnceError):
    """A driver has not answered a request in time; it may still do so."""


class MissingRequirementError(ExactlyOnceError):
    """The machine lacks a jar, Java or PySpark; the message says which, and how to get it."""


class SequencerPortError(ExactlyOnceError):
    """The sequencer's port is in use, perhaps by a driver that is about to end; nothing was fenced or written."""


class DriverFailedError(ExactlyOnceError):
    """The driver process ended without success and restarts are used up."""


class UnhealthyError(ExactlyOnceError):
    """A health rule of the task was broken: too many restarts, or no commit for too long. The driver was stopped."""


class WorkerShutdownError(ExactlyOnceError):
    """The Airflow worker shuts down in the middle of the task; the next try goes on."""


class InvariantError(ExactlyOnceError):
    """The protocol's own bookkeeping contradicts itself; a defect, never a setting."""

    decision = Decision.REFUSE
    exit_code = 70


def invariant(holds: bool, message: str) -> None:
    """Raise unless the condition holds; unlike ``assert`` it is there under ``-O`` too.

    :raises InvariantError: when it does not hold
    """
    if not holds:
        raise InvariantError(message)


def required(value: _Value | None, message: str) -> _Value:
    """Return a value that has to be there.

    :raises InvariantError: when it is not
    """
    if value is None:
        raise InvariantError(message)
    return value
