"""Plain processes in place of Spark's Python workers.

They are born by a nursery, which is forked before the driver has any thread, and which puts another in the place of one
that dies. A worker serves one task after the other, on a socket of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import signal
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_exactlyonce.exceptions import BatchFailedError
from airflow_provider_exactlyonce.streaming.commit import write_stage
from tests.waiting import HANG_SECONDS

ROWS_A_FLUSH = 10
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def digest(value: bytes) -> int:
    return zlib.crc32(value)


def encoded(rows: Sequence[dict[str, object]]) -> list[tuple[bytes, bytes]]:
    """Return keys and values."""
    return [(str(row["k"]).encode(), json.dumps(row).encode()) for row in rows]


def arrow(records: Sequence[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(records), ROWS_A_FLUSH):
        part = records[start : start + ROWS_A_FLUSH]
        yield pa.record_batch(
            {
                "key": pa.array([key for key, _ in part], pa.binary()),
                "value": pa.array([value for _, value in part], pa.binary()),
                "digest": pa.array([digest(value) for _, value in part], pa.int64()),
            }
        )


def close_connections() -> None:
    """Close what tasks in this process have connected, as the end of Spark's worker does."""
    while write_stage._clients:
        write_stage._clients.popitem()[1].close()


def _name(owner: int, slot: int) -> str:
    return f"\0exactlyonce-test-task-{owner}-{slot}"


def raise_nursery(count: int) -> None:
    """Fork the nursery; called before the process has a thread. It dies with its parent, and its workers with it."""
    owner = os.getpid()
    if os.fork():
        return
    _die_with_parent()
    slots: dict[int, int] = {}
    for slot in range(count):
        slots[_fork_worker(owner, slot)] = slot
    while True:
        pid, _ = os.wait()
        slot = slots.pop(pid)
        slots[_fork_worker(owner, slot)] = slot


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _fork_worker(owner: int, slot: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            _die_with_parent()
            _work(owner, slot)
        finally:
            os._exit(1)
    return pid


def _work(owner: int, slot: int) -> None:
    write_stage.FLUSH_BYTES_MAXIMUM = 1  # type: ignore[misc]  # many small bodies: many turns
    if slot % 2:
        write_stage.REQUEST_BYTES = 1  # type: ignore[misc]  # one by one
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(_name(owner, slot))
        listener.listen(8)
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError, EOFError):
                _send(connection, os.getpid())
                task, number, records = _receive(connection)
                answer: tuple[str, object]
                try:
                    answer = "done", write_stage.write_rows(arrow(records), task, number, 0)
                except Exception as error:
                    answer = "failed", f"{type(error).__name__}: {error}"
                _send(connection, answer)


def _send(connection: socket.socket, thing: object) -> None:
    data = pickle.dumps(thing)
    connection.sendall(struct.pack("<i", len(data)) + data)


def _receive(connection: socket.socket) -> Any:
    return pickle.loads(_exactly(connection, struct.unpack("<i", _exactly(connection, 4))[0]))


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError("the worker has died")
        data += part
    return data


class Tasks:
    """The driver's side: runs a stage, and hurts one of its workers when it is told to.

    :param harm: (signal, slot, delay in seconds, seconds until SIGCONT), None for none; done once
    """

    def __init__(self, count: int, harm: tuple[int, int, float, float] | None) -> None:
        self._count, self._harm = count, harm
        self._pids: list[int] = []

    def run(self, task: write_stage.WriteTask, records: Sequence[tuple[bytes, bytes]]) -> list[Any]:
        """Run the stage that writes; returns each task's answer.

        :raises BatchFailedError: when one of them fails or dies; the others go on for a while, as Spark's do
        """
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(self._connect(slot)) for slot in range(self._count)]
            try:
                self._pids = [_receive(connection) for connection in connections]
                for number, connection in enumerate(connections):
                    _send(connection, (task, number, records[number :: self._count]))
                self._do_harm()
                answers = [_receive(connection) for connection in connections]
            except (EOFError, OSError) as error:
                raise BatchFailedError(f"a task failed: {error}") from error
        failed = [text for outcome, text in answers if outcome == "failed"]
        if failed:
            raise BatchFailedError(f"a task failed: {failed[0]}")
        return [answer for _, answer in answers]

    def cancel(self) -> None:
        """Kill the workers, as Spark does with those of cancelled tasks."""
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _connect(self, slot: int) -> socket.socket:
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(_name(os.getpid(), slot))
            except OSError:
                connection.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
            else:
                return connection

    def _do_harm(self) -> None:
        if self._harm is None:
            return
        number, slot, delay_seconds, thaw_seconds = self._harm
        self._harm = None
        pid = self._pids[slot]

        def hurt() -> None:
            time.sleep(delay_seconds)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                if number == signal.SIGSTOP:
                    time.sleep(thaw_seconds)
                    os.kill(pid, signal.SIGCONT)

        threading.Thread(target=hurt, daemon=True).start()
