"""A driver without Spark: the real run, coordinator, session, sequencer and sink, around a loop that plans batches.

``python -m tests.integration.protocol.driver SOCKET`` imports everything once and forks a server for each lane that
connects, which forks a driver for each line of JSON: ``{"pid": …}`` comes back at once and ``{"code": …}`` at its end.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
import uuid
from pathlib import Path
from typing import Any

import confluent_kafka  # noqa: F401  # imported once, for all drivers
import pyarrow as pa

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.start_checks import reconcile
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import BatchFailedError, ExactlyOnceError
from airflow_provider_exactlyonce.kafka import preflight
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.streaming import settings
from airflow_provider_exactlyonce.streaming.commit.batch import planned_batch
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt, TransactionOptions
from airflow_provider_exactlyonce.streaming.commit.batch_transaction import BatchTransaction
from airflow_provider_exactlyonce.streaming.commit.coordinator import Callbacks, CommitCoordinator
from airflow_provider_exactlyonce.streaming.commit.exactly_once import TransactionalWriter
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink
from tests.integration.protocol import source
from tests.integration.protocol.tasks import Tasks, digest, encoded, raise_nursery

_HEARTBEAT_SECONDS = 0.5


class PlainWriter(TransactionalWriter):
    """The writer with plain processes in place of a Spark stage; a frame is a batch's records."""

    tasks: Tasks

    def recompute(self, frame: Any) -> tuple[int, int]:
        return len(frame), sum(digest(value) for _, value in frame) % 2**64

    def _cancel_tasks(self, frame: Any, tag: str) -> None:
        self.tasks.cancel()

    def _run_tasks(self, frame: Any, server: Any, tag: str) -> Any:
        try:
            return self.tasks.run(self._write_task(server.address), frame)
        except BatchFailedError as error:
            raise BatchFailedError(server.failure or str(error)) from error


class WithoutReplayCheck(BatchTransaction):
    """A wrong protocol: a batch that is committed already is written again."""

    def committed(self, batch: Any) -> CommitRecord | None:
        return None


class CommitsWhatFailed(BatchTransaction):
    """A wrong protocol: a failed attempt is committed."""

    def abort(self) -> None:
        self._run.session.commit()


SINKS = {sink.__name__: sink for sink in (BatchTransaction, WithoutReplayCheck, CommitsWhatFailed)}


def drive(spec: dict[str, Any]) -> None:
    """Run a pipeline until its last batch is committed."""
    options = RunOptions(
        config=spec["config"],
        token=str(uuid.uuid4()),
        version="v",
        transaction_timeout_milliseconds=spec["timeout_seconds"] * 1000,
    )
    run = Run(Home(spec["home"]), spec["pipeline"], options)
    endpoint = settings.sequencer_endpoint(lambda name: None, "local[2]")
    with SequencerListener(endpoint) as listener:
        definition = KafkaSink(spec["sink"], transaction_timeout_seconds=spec["timeout_seconds"])
        targets = preflight.check_topics(run.client, sinks=[spec["sink"]])
        attempt = BatchAttempt(run, TransactionOptions(definition=definition), targets, listener)
        writer = PlainWriter(attempt)
        writer.tasks = Tasks(spec["tasks"], spec["harm"])
        sink = SINKS[spec["protocol"]](attempt, writer, lambda: False)
        run.start()
        threading.Thread(target=_beat, args=(run,), daemon=True).start()
        checkpoint = Checkpoint(run.home.checkpoint(run.lineage.id))
        reconcile(checkpoint, run.lineage, run.tail)
        callbacks = Callbacks(
            plan=lambda number: planned_batch(checkpoint, run.sources, run.lineage.id, number),
            stop_reason=lambda: None,
            committed=lambda record, seconds, before: None,
        )
        coordinator = CommitCoordinator(sink, callbacks, max_batch_attempts=6)
        _process(spec, checkpoint, coordinator)
    run.close()


def _process(spec: dict[str, Any], checkpoint: Checkpoint, coordinator: CommitCoordinator) -> None:
    """Do what Spark does: plan a batch, call back, note that it is done."""
    topic, seed = spec["source"], spec["seed"]
    initial = checkpoint.path / "sources" / "0" / "0"
    if not initial.exists():
        initial.parent.mkdir(parents=True, exist_ok=True)
        _write(initial, "v1\n" + json.dumps({topic: dict.fromkeys(map(str, range(source.PARTITIONS)), 0)}))
    (checkpoint.path / "commits").mkdir(exist_ok=True)
    newest = checkpoint.newest_commit()
    for number in range(0 if newest is None else newest + 1, spec["batches"]):
        if checkpoint.offsets(number) is None:
            checkpoint.write_offsets(number, source.offsets_text(topic, seed, number))
        before = source.ends(seed, number - 1) if number else dict.fromkeys(range(source.PARTITIONS), 0)
        ranges = {partition: (before[partition], end) for partition, end in source.ends(seed, number).items()}
        coordinator.process(encoded(source.rows(ranges)), number)  # type: ignore[arg-type]
        _write(checkpoint.path / "commits" / str(number), 'v1\n{"nextBatchWatermarkMs":0}')


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text)
    beside.replace(path)


def _beat(run: Run) -> None:
    while run.renew_lease():
        time.sleep(_HEARTBEAT_SECONDS)


def _child(spec: dict[str, Any]) -> int:
    os.setsid()
    log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    raise_nursery(spec["tasks"])
    try:
        drive(spec)
    except ExactlyOnceError as error:
        traceback.print_exc()
        return error.exit_code
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _serve(connection: socket.socket) -> None:
    """Fork a driver for each line of one lane; the first line names the lane's file of fail points."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    lines = connection.makefile("r")
    os.environ[failpoints.VARIABLE] = f"@{json.loads(next(lines))}"
    importlib.reload(failpoints)
    for line in lines:
        pid = os.fork()
        if pid == 0:
            code = _child(json.loads(line))
            sys.stdout.flush()
            os._exit(code)
        connection.sendall(json.dumps({"pid": pid}).encode() + b"\n")
        _, status = os.waitpid(pid, 0)
        connection.sendall(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode() + b"\n")


def main() -> None:
    """Fork a server for each lane that connects, until standard input ends."""
    pa.array([b""])  # imports what Arrow imports with its first array
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    _serve(connection)
                    os._exit(0)


if __name__ == "__main__":
    main()
