"""Waits for a commit in the triggerer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.triggers.polling import PollingTrigger
from airflow_provider_exactlyonce.triggers.shared_poller import Checker, CheckResult, Subject

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.ledger.gate import Gate, GateAnswer, Gates

#: Names of the targets; one of them is not None.
TARGETS: Final = ("commit", "watermark", "offsets", "timestamp", "up_to_now")


class GateChecker(Checker):
    """Looks at ledgers: at all of a cluster in one request, and closer at those that have moved."""

    seconds = 0.5

    def __init__(self, conn_id: str) -> None:
        super().__init__(conn_id)
        self._gates: Gates | None = None
        self._read: dict[str, Gate] = {}  # so that hundreds are not read at each check

    def _check(self, subjects: Mapping[str, Subject], *, diagnose: bool) -> Mapping[str, CheckResult | Exception]:
        from airflow_provider_exactlyonce.hooks.kafka import client_config, source_config
        from airflow_provider_exactlyonce.ledger.gate import Gates

        gates: dict[str, Gate] = {}
        results: dict[str, CheckResult | Exception] = {}
        for name, subject in subjects.items():
            try:
                gates[name] = self._read.get(name) or gate_of(subject)
            except ValueError as error:  # a template has rendered to it
                results[name] = CheckResult(missing=str(error), refused=True)
        self._read = gates
        if self._gates is None:
            self._gates = Gates(client_config(self.conn_id), find=source_config)
        answers = self._gates.look(gates)
        return {**results, **{name: _result(gates[name], answer) for name, answer in answers.items()}}

    def _close(self) -> None:
        if self._gates is not None:
            self._gates.close()
            self._gates = None


class CommitGateTrigger(PollingTrigger):
    """Fire when everything up to a target is readable, or the deadline has passed.

    :param pipeline: name of the pipeline
    :param commit: number of a commit; exactly one of this and the next four is not None
    :param watermark: event time
    :param offsets: source offsets
    :param timestamp: time of source records
    :param up_to_now: everything that is in the source at the first check
    :param idle_after: seconds without anything to do after which it fires too, None for never
    :param kafka_conn_id: connection of type ``kafka``
    :param poll_interval: seconds between two checks, half a second at most
    :param deadline: seconds since the epoch
    """

    checker = GateChecker


def gate_of(subject: Subject) -> Gate:
    """Return the gate of a subject.

    :raises ValueError: when the target can't be read
    """
    from airflow_provider_exactlyonce.ledger.gate import Gate
    from airflow_provider_exactlyonce.ledger.gate_target import GateTarget

    target = GateTarget.parse(**{name: subject.get(name) for name in TARGETS})
    return Gate(pipeline=subject["pipeline"], target=target, idle_after=subject.get("idle_after"))


def _result(gate: Gate, answer: GateAnswer | Exception) -> CheckResult | Exception:
    if isinstance(answer, Exception):
        return answer
    if answer.open:
        facts = {"commit": answer.commit, "idle": answer.idle, "late_rows": answer.late_rows}
        return CheckResult(found={"pipeline": gate.pipeline, **facts})
    is_fixed = answer.target != gate.target
    fixed = {**dict.fromkeys(TARGETS), **answer.target.to_json()} if is_fixed else None
    return CheckResult(missing=f"{gate.pipeline}: {answer.missing}", fixed=fixed)
