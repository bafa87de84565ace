"""Name a process so that a recycled process id is never taken for it."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from airflow_provider_exactlyonce import process_identity


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """A process id together with when that process started, in which boot of the machine."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Identify a process by its id, None if there is none or only its zombie is left."""
        started = process_identity.process_start(pid)
        return None if started is None else cls(pid=pid, start_ticks=started, boot_id=process_identity.boot_id())

    def is_alive(self) -> bool:
        """Tell whether this very process still runs."""
        return ProcessIdentity.of(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process is gone; another process with its id gets none."""
        with self._opened() as descriptor, suppress(ProcessLookupError):
            if descriptor is not None:
                signal.pidfd_send_signal(descriptor, number)

    def wait_until_gone(self, timeout_seconds: float) -> bool:
        """Wait for the process to end; False if it still runs after the time."""
        with self._opened() as descriptor:
            if descriptor is None:
                return True
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(timeout_seconds * 1000))

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """Open a descriptor of the process; compared after the opening, so that it can't be another's."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            yield descriptor if self.is_alive() else None
        finally:
            os.close(descriptor)
