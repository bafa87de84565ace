"""Takes a savepoint of a pipeline from outside: its driver is asked, or, when none runs, it is taken here."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.checkpoint import job as jobs
from airflow_provider_exactlyonce.checkpoint.integrity import newest_whole
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint, TornFileError
from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import drivers, requests
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.drivers import FailureDetector
from airflow_provider_exactlyonce.control.home import Home, Lineage, read_lineage
from airflow_provider_exactlyonce.control.requests import SavepointRequest, WaitCondition
from airflow_provider_exactlyonce.exceptions import (
    AlreadyRunningError,
    ExactlyOnceError,
    NotAnsweredError,
    RefusedError,
)
from airflow_provider_exactlyonce.kafka.reach import unanswered
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.polling import poll_until
from airflow_provider_exactlyonce.storage.opening import is_there, store_of

_POLL_SECONDS: Final = 0.2


class SavepointTaker:
    """One request for a savepoint; it is taken once, however often the request is repeated.

    :param config: returns client configuration in librdkafka's names, for the ledger of a pipeline that is stopped
    :param request: hexadecimal digits
    :param stops: whether a driver with this start token begins no further batch, takes it, and ends
    :param detector: kept by a caller that polls
    """

    def __init__(
        self,
        home: Home,
        pipeline: str,
        config: Callable[[], Mapping[str, Any]],
        *,
        request: str,
        label: str | None = None,
        stops: Callable[[str], bool] = lambda _: False,
        detector: FailureDetector | None = None,
    ) -> None:
        self._home: Final = home
        self._detector: Final = detector or FailureDetector(home)
        self._pipeline: Final = pipeline
        self._config: Final = config
        self._request: Final = request
        self._label: Final = label
        self._stops: Final = stops

    def advance(self) -> Savepoint | WaitCondition:
        """Ask a running driver, and return the savepoint that it has taken, or the condition to wait for.

        Never waits for an answer. If the pipeline is stopped, the savepoint is taken here.

        :raises RefusedError: when there is nothing to save
        :raises AlreadyRunningError: when a driver holds the pipeline that gives no sign of life
        :raises ExactlyOnceError: when the driver could not take it
        """
        answer = requests.savepoint_answer(self._home, self._request)
        if answer is not None:
            self.forget()
            if answer.savepoint is None:
                raise ExactlyOnceError(f"the driver of {self._pipeline} took no savepoint: {answer.error}")
            return Savepoints(self._home.savepoints).get(answer.savepoint)
        savepoint_request = requests.savepoint_request(self._home, self._request)
        if savepoint_request is not None and self._detector.is_there(savepoint_request.token):
            return WaitCondition(token=savepoint_request.token, request=self._request)
        savepoint = self._existing_savepoint()
        if savepoint is not None:
            self.forget()
            return savepoint
        driver = drivers.find_or_awaited(self._home)
        if isinstance(driver, drivers.Death) and drivers.is_restarted_soon(driver):
            holder = driver.token if drivers.is_there(self._home, driver.token) else None  # a lost one, until the next
            return WaitCondition(token=holder, request=self._request)  # the next one would fail if we held the pipeline
        if driver is None or isinstance(driver, drivers.Death) or driver.is_lost:
            return self._take_without_driver()
        if driver.stale and driver.token == _holder(self._request):  # an earlier try of ours, which is frozen
            return self._take_without_driver()
        if driver.stale:
            raise AlreadyRunningError(
                f"{drivers.describe(self._home, driver.token)} of {self._pipeline} gives no sign of life and holds the "
                "pipeline; end it, then ask again"
            )
        savepoint_request = SavepointRequest(
            request=self._request, token=driver.token, label=self._label, stop=self._stops(driver.token)
        )
        requests.request_savepoint(self._home, savepoint_request)
        return WaitCondition(token=driver.token, request=self._request)

    def forget(self) -> None:
        """Ask no longer."""
        requests.forget_savepoint(self._home, self._request)

    def _existing_savepoint(self) -> Savepoint | None:
        savepoints = Savepoints(self._home.savepoints).list()
        return next((savepoint for savepoint in savepoints if savepoint.id.endswith(f"-{self._request}")), None)

    def _take_without_driver(self) -> Savepoint:
        self.forget()
        savepoint = self._existing_savepoint()
        if savepoint is not None:
            return savepoint
        home, pipeline, lineage = self._home, self._pipeline, self._home.current()
        if lineage is None or home.pipeline() != pipeline:
            raise RefusedError(f"{home} is no home of pipeline {pipeline}: there is nothing to save")
        path = home.checkpoint(lineage.id)
        return _take_of(home, pipeline, self._config(), lineage, path, label=self._label, request=self._request)


def take(
    home: Home,
    pipeline: str,
    config: Mapping[str, Any],
    *,
    label: str | None = None,
    stop: bool = False,
    timeout_seconds: float = 300.0,
) -> Savepoint:
    """Take a savepoint of a pipeline, whether its driver runs or not, and wait for it.

    :param config: client configuration in librdkafka's names, for the ledger of a pipeline that is stopped
    :param stop: the driver begins no further batch, takes it, and ends
    :param timeout_seconds: how long the driver may take; with ``stop`` it ends its batch first
    :raises RefusedError: when there is nothing to save
    :raises NotAnsweredError: when the driver does not answer in time
    :raises ExactlyOnceError: when it could not take it
    """
    detector = FailureDetector(home)
    taker = SavepointTaker(
        home,
        pipeline,
        lambda: config,
        request=uuid.uuid4().hex[:8],
        label=label,
        stops=lambda _: stop,
        detector=detector,
    )
    deadline, poll_seconds = time.monotonic() + timeout_seconds, home.look_every(_POLL_SECONDS)
    asked_tokens: set[str] = set()

    def is_taken(answer: Savepoint | WaitCondition) -> bool:
        if isinstance(answer, WaitCondition) and answer.token is not None:
            asked_tokens.add(answer.token)
        return isinstance(answer, Savepoint)

    try:
        outcome = poll_until(taker.advance, done=is_taken, seconds=timeout_seconds, poll_seconds=poll_seconds)
        if isinstance(outcome, WaitCondition):
            raise not_answered(home, outcome.token)
        if stop:
            remaining_seconds = deadline - time.monotonic()
            poll_until(
                lambda: not any(map(detector.is_there, asked_tokens)),
                seconds=remaining_seconds,
                poll_seconds=poll_seconds,
            )
        return outcome
    finally:
        taker.forget()


def not_answered(home: Home, token: str | None) -> NotAnsweredError:
    """Return the error of a driver that has taken no savepoint in time."""
    return NotAnsweredError(
        f"{drivers.describe(home, token)} has not answered in time; its batch may be long, or it has not committed any "
        "yet. Ask again with a longer timeout"
    )


def take_retained(home: Home, pipeline: str, config: Mapping[str, Any], path: Path) -> Savepoint:
    """Take a savepoint of a checkpoint that was retained, wherever it lies, so that it can be restored.

    :param config: client configuration in librdkafka's names
    :param path: a lineage's directory, or the ``checkpoint`` in it
    :raises RefusedError: when it is none of this pipeline's
    :raises AlreadyRunningError: when a driver holds the pipeline
    """
    checkpoint = path / "checkpoint" if is_there(path / "checkpoint") else path
    try:
        query = Checkpoint(checkpoint).query_id()
    except TornFileError as error:
        raise RefusedError(f"{checkpoint} can't be read: {error}") from error
    known_lineage = home.lineage(query) if query is not None else None
    lineage = known_lineage or read_lineage(checkpoint.parent)
    if query is None or lineage is None or lineage.id != query:
        names = [name for name in store_of(home.lineages).names(home.lineages) if not name.startswith(".")]
        checkpoints = ", ".join(str(home.checkpoint(name)) for name in names) or "none"
        raise RefusedError(
            f"{checkpoint} is no checkpoint of a lineage of {home}, nor has it that lineage's lineage.json beside "
            f"it; in the home there are: {checkpoints}"
        )
    label = f"retained checkpoint {checkpoint}"
    return _take_of(home, pipeline, config, lineage, checkpoint, label=label, request=uuid.uuid4().hex[:8])


def _take_of(
    home: Home,
    pipeline: str,
    config: Mapping[str, Any],
    lineage: Lineage,
    path: Path,
    *,
    label: str | None,
    request: str,
) -> Savepoint:
    from confluent_kafka import KafkaException

    old_lease = leases.check_stopped(home.lease, pipeline)
    with leases.holding(home.lease, pipeline, _holder(request), old_lease):
        checkpoint = Checkpoint(path)
        batch, defects = newest_whole(checkpoint)
        if batch is None:
            reasons = f": {'; '.join(map(str, defects[:3]))}" if defects else ""
            raise RefusedError(f"{checkpoint.path} has no whole batch, so there is nothing to save{reasons}")
        commit = lineage.commit_of(batch)
        try:
            with LedgerReader(config, pipeline) as reader:
                record = record_of(reader, commit) if lineage.state_of(batch) == commit else None
        except KafkaException as error:
            raise unanswered(config, error) from error
        if record is None:
            raise RefusedError(
                f"the ledger of {pipeline} has no commit of batch {batch} of lineage {lineage.id}: start the pipeline, "
                "and take a savepoint after its first commit"
            )
        job = jobs.read(home, lineage.id, record.version)
        return Savepoints(home.savepoints).take(checkpoint, batch, record, job, label=label, request=request)


def _holder(request: str) -> str:
    """Return the start token under which a savepoint is taken here."""
    return f"savepoint-{request}"


def record_of(reader: LedgerReader, commit: int) -> CommitRecord | None:
    """Look for a commit from the ledger's end on; it is the last one or the one before, unless files were lost."""
    tail = reader.tail()
    record = tail.commit if tail else None
    while record is not None and record.commit > commit:
        record = _commit_at(reader, record.before.commit_offset)
    return record if record is not None and record.commit == commit else None


def _commit_at(reader: LedgerReader, offset: int) -> CommitRecord | None:
    if offset < 0:
        return None
    record_offset, record = next(reader.records(offset), (-1, None))
    return record if record_offset == offset and isinstance(record, CommitRecord) else None
