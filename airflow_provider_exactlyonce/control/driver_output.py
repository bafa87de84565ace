"""A driver's output: a file on the host that started it. Its last lines are kept in a home that is elsewhere."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO, Final

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.processes import OUTPUT_VARIABLE
from airflow_provider_exactlyonce.storage.opening import store_of

#: So much of it is kept: some thousand lines.
KEPT_BYTES: Final = 1 << 20
_READ_BYTES: Final = 64 * 1024


class DriverOutput:
    """The output of one driver.

    :param token: start token of the driver
    :param log: the file, on the host that started it
    """

    def __init__(self, home: Home, token: str, log: Path) -> None:
        self.log: Final = log
        self._kept_log: Final = home.kept_logs / f"driver-{token}.log" if home.kept_logs is not None else None
        self._kept_size = -1  # of the file when its end was kept last

    def keep(self) -> None:
        """Copy the end into the home, if the home is not where the file is, and if there is more than at the last time.

        Only to be called on the host that started the driver. A file that was deleted meanwhile is no error.

        :raises OSError: when the file can't be read or the home can't be written
        :raises OutcomeUnknownError: when the home did not say whether it is written
        """
        if self._kept_log is None:
            return
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as file:
            if (size := os.fstat(file.fileno()).st_size) != self._kept_size:
                store_of(self._kept_log).replace(self._kept_log, _end_of(file, KEPT_BYTES), durable=False)
                self._kept_size = size

    def last_lines(self) -> list[str]:
        """Return the last lines, of a driver of another host as they were kept; none when they can't be read."""
        try:
            if self._kept_log is not None and (stored := store_of(self._kept_log).read(self._kept_log)) is not None:
                content = stored.content[-_READ_BYTES:]
            else:
                with self.log.open("rb") as file:
                    content = _end_of(file, _READ_BYTES)
        except OSError:
            return []
        return content.decode(errors="replace").splitlines()


def of_this_driver(home: Home, token: str) -> DriverOutput | None:
    """Return the output of this process, a driver's; None when it needs not be kept, or its place is unknown.

    The place is unknown for a driver that was started by hand, or by a cluster.
    """
    log = os.environ.get(OUTPUT_VARIABLE)
    return DriverOutput(home, token, Path(log)) if log and home.kept_logs is not None else None


def _end_of(file: BinaryIO, most_bytes: int) -> bytes:
    file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
    return file.read(most_bytes)
