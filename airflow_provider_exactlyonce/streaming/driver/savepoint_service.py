"""Takes savepoints in a running driver, beside its query: batches go on meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from airflow_provider_exactlyonce.checkpoint import job as jobs
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import BatchGoneError, SavepointRetention, Savepoints
from airflow_provider_exactlyonce.control import requests
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.requests import SavepointAnswer, SavepointRequest
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError

log = logging.getLogger("exactlyonce")

_POLL_SECONDS: Final = 0.25
_TRIES: Final = 3
_RECORDS_KEPT: Final = 5


class SavepointService:
    """Serves the requests for savepoints that are meant for one driver.

    What Spark has committed never changes while its query runs, so a savepoint is taken of the newest batch that both
    Spark and the ledger have, whatever the query does at that moment.

    :param home: the pipeline's home
    :param lineage: the lineage in use
    :param token: start token of the driver
    :param batch_of: returns the batch of this lineage that a record is of, None when it is of none
    :ivar owes_none: whether each savepoint that was asked for until the end is certainly taken; false before the end
    """

    def __init__(
        self,
        home: Home,
        lineage: str,
        token: str,
        *,
        retention: SavepointRetention,
        batch_of: Callable[[CommitRecord], int | None],
    ) -> None:
        self._home: Final = home
        self._lineage: Final = lineage
        self._token: Final = token
        self._retention: Final = retention
        self._batch_of: Final = batch_of
        self._checkpoint: Final = Checkpoint(home.checkpoint(lineage))
        self._savepoints: Final = Savepoints(home.savepoints)
        self.owes_none = False
        self._records: dict[int, CommitRecord] = {}
        self._stop_request: SavepointRequest | None = None
        self._ended: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._serve, name="savepoints", daemon=True)

    def start(self, newest: CommitRecord | None) -> None:
        """Begin to serve.

        :param newest: the newest record in the ledger
        """
        if newest is not None:
            self.committed(newest)
        self._thread.start()

    def committed(self, record: CommitRecord) -> None:
        """Note a commit."""
        batch = self._batch_of(record)
        if batch is not None:
            self._records = {**dict(sorted(self._records.items())[-_RECORDS_KEPT:]), batch: record}

    def stop_reason(self) -> str | None:
        """Return why the driver should begin no further batch: a savepoint with a stop was requested.

        The stop is noted as one that was asked for, so that a supervisor does not take it for a failure.
        """
        stop_request = self._stop_request
        if stop_request is None:
            return None
        reason = f"savepoint {stop_request.label or stop_request.request} was asked for, with a stop"
        requests.request_stop(self._home, self._token, reason=reason)
        return reason

    def close(self, *, serve: bool) -> None:
        """End; nothing is being taken after it.

        :param serve: take the savepoints that are still requested, because the driver ends in order
        """
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if serve:
            self.owes_none = self._answer_all(last=True)

    def _serve(self) -> None:
        try:
            self._clean_up()
            while not self._ended.wait(self._home.look_every(_POLL_SECONDS)):
                self._answer_all(last=False)
        except Exception:
            log.exception("no more savepoints are taken by this driver")

    def _answer_all(self, *, last: bool) -> bool:
        """Answer the possible requests; others are tried again, or served by the requester after the driver's end.

        Returns whether all requested savepoints are certainly taken.
        """
        all_taken = True
        try:
            for request in requests.savepoint_requests(self._home, self._token):
                answer = None
                if request.stop and not last:
                    self._stop_request = request  # it is answered when the query has ended
                elif (answer := self._outcome(request, last=last)) is not None:
                    requests.answer_savepoint(self._home, request.request, answer)
                all_taken = all_taken and answer is not None and answer.savepoint is not None
        except (OSError, ExactlyOnceError) as error:
            log.warning("the home does not say which savepoints are asked for, or what became of one: %s", error)
            return False
        return all_taken

    def _outcome(self, request: SavepointRequest, *, last: bool) -> SavepointAnswer | None:
        try:
            answer = self._answer(request)
        except OutcomeUnknownError:  # it may be taken, and is found under the request then
            raise
        except (ExactlyOnceError, OSError) as error:
            log.error("savepoint %s was not taken: %s", request.request, error)
            return SavepointAnswer(error=f"{type(error).__name__}: {error}")
        if answer is None and last:
            return SavepointAnswer(error="the driver has ended before its first commit")
        return answer

    def _answer(self, request: SavepointRequest) -> SavepointAnswer | None:
        """Take a savepoint; None when there is no batch yet that both Spark and the ledger have."""
        for _ in range(_TRIES):
            batch = self._checkpoint.newest_commit()
            record = self._records.get(-1 if batch is None else batch)
            if batch is None or record is None:
                return None
            job = jobs.read(self._home, self._lineage, record.version)
            try:
                savepoint = self._savepoints.take(
                    self._checkpoint, batch, record, job, label=request.label, request=request.request
                )
            except BatchGoneError as error:
                log.warning("savepoint %s: %s; a newer batch is taken", request.request, error)
                continue
            log.info("savepoint %s of commit %d, %s bytes", savepoint.id, savepoint.commit, f"{savepoint.size:,}")
            self._clean_up()
            return SavepointAnswer(savepoint=savepoint.id)
        raise BatchGoneError(f"Spark forgets batches faster than they can be saved, {_TRIES} times")

    def _clean_up(self) -> None:
        try:
            for savepoint in self._savepoints.clean_up(self._retention):
                log.info("savepoint %s is gone", savepoint)
        except (OSError, ExactlyOnceError) as error:
            log.warning("old savepoints were not cleaned up: %s", error)
