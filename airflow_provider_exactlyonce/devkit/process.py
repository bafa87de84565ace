"""Name a process so that a recycled process id is never taken for it."""

from __future__ import annotations

import os
import select
import signal
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

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False if the process is gone, whoever may have its id by now."""
        descriptor = self._open()
        if descriptor is None:
            return False
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def wait_until_gone(self, timeout_seconds: float) -> bool:
        """Wait for the process to end; False if it still runs after the time."""
        descriptor = self._open()
        if descriptor is None:
            return True
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(timeout_seconds * 1000))
        finally:
            os.close(descriptor)

    def _open(self) -> int | None:
        """Open a descriptor of the process; compared after the opening, so that it can't be another's."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if self.is_alive():
            return descriptor
        os.close(descriptor)
        return None
