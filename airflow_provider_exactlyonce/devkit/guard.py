"""Start a server either for as long as its owner lives, or for good.

Run as a script of its own, with nothing but the standard library: ``guard.py MODE OWNER_PID REPORT_FD COMMAND …``. It
writes the server's process id to REPORT_FD. A supervising process rather than the kernel's parent-death signal alone,
because that signal comes when the *thread* that started the child ends, and because setting it between fork and exec is
not safe in an owner that has threads.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from typing import Final

SUPERVISE: Final = "supervise"
DETACH: Final = "detach"
GRACE_SECONDS: Final = 10.0
OWNER_IS_GONE: Final = 3
_PR_SET_PDEATHSIG: Final = 1


def supervise(command: list[str], owner_pid: int, report: int) -> int:
    """Run the command until it ends or the owner does; then end it too.

    If this process is killed, the kernel ends the command.
    """
    try:
        owner = os.pidfd_open(owner_pid)
    except ProcessLookupError:
        return OWNER_IS_GONE
    if os.getppid() != owner_pid:  # it died before the descriptor was open, and the id may be another's
        return OWNER_IS_GONE
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)
    _report(report, process.pid)
    server = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(owner, select.POLLIN)
    poll.register(server, select.POLLIN)
    if all(descriptor != server for descriptor, _ in poll.poll()):
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def detach(command: list[str], report: int) -> int:
    """Start the command in a session of its own and leave it to itself."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    _report(report, process.pid)
    return 0


def _end_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _report(descriptor: int, pid: int) -> None:
    os.write(descriptor, b"%d\n" % pid)
    os.close(descriptor)


def main(arguments: list[str]) -> int:
    """Run as described at the top."""
    mode, owner_pid, report, *command = arguments
    os.set_inheritable(int(report), False)
    if mode == DETACH:
        return detach(command, int(report))
    return supervise(command, int(owner_pid), int(report))


if __name__ == "__main__":
    sys.exit(abs(main(sys.argv[1:])))
