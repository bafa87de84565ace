"""A driver that speaks the control contract and runs no Spark: a real process for the supervisor's tests.

``contract_driver.py --home HOME --until UNTIL [--goal NAME] [--backfill] PLAN [PLAN ...] [--standby warm]``: the n-th
start for a home follows the n-th plan, the last plan again when there are more starts. A plan is a list of steps,
separated by spaces, each ``name`` or ``name=argument``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import lease, requests, standbys, status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.status import DriverError, DriverState, Status
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError


class Driver:
    def __init__(self, home: Home, run: int) -> None:
        self.home = home
        self.run = run
        self.token = os.environ["EXACTLYONCE_TOKEN"]
        self.lease: lease.Lease | None = None
        commits = status.read(home.status)
        self.status = Status(
            pipeline="shop",
            token=self.token,
            state=DriverState.STARTING,
            run=run,
            commit=commits.commit if commits else 0,
        )

    def write(self, **changes: object) -> None:
        self.status = replace(self.status, updated=time.time(), **changes)  # type: ignore[arg-type]
        status.write(self.home.status, self.status)

    def step(self, name: str, argument: str) -> None:
        getattr(self, name.replace("-", "_"))(*([argument] if argument else []))

    def take_lease(self) -> None:
        self.lease = lease.acquire(self.home.lease, "shop", self.token)
        self.write()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while self.lease is not None:
            with contextlib.suppress(OSError, OutcomeUnknownError):
                lease.renew(self.home.lease, self.lease)
            time.sleep(0.2)

    def stand_by(self) -> None:
        turn = standbys.turn_of(self.home, self.token, os.environ.get(standbys.SUPERVISOR_VARIABLE))
        if not standbys.keeps_waiting(turn):
            return
        with lease.holding(self.home.standby, "shop", self.token, standbys.check_only(self.home, "shop")):
            self.note("stands by")
            while standbys.keeps_waiting(turn):
                time.sleep(0.02)
        self.note("takes over")

    def take_lease_elsewhere(self, clock: str) -> None:
        """Take the lease as a driver of another host does, whose clock differs by so many seconds."""
        process_identity.this_machine = lambda: "another boot of another host"  # type: ignore[assignment]
        real = time.time
        time.time = lambda: real() + float(clock)
        self.take_lease()

    def commit(self) -> None:
        self.write(
            state=DriverState.RUNNING,
            commit=self.status.commit + 1,
            batch=self.status.batch + 1,
            commits_of_run=self.status.commits_of_run + 1,
            rows=self.status.rows + 100,
            rows_by_sink={"Kafka": self.status.rows + 100},
            records=self.status.records + 130,
            late_rows=self.status.late_rows + 2,
            application_id="local-1",
            ui_url="http://127.0.0.1:4040",
            progressed=time.time(),
        )

    def sleep(self, seconds: str) -> None:
        time.sleep(float(seconds))

    def wait_for(self, file: str) -> None:
        while not os.path.exists(file):
            time.sleep(0.05)

    def go(self) -> None:
        """Wait until the test lets this start of it go on, see :func:`let_go`."""
        self.wait_for(str(go_file(self.home, self.run)))

    def freeze(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def ignore_sigterm(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def until_stop(self) -> None:
        while requests.stop_requested(self.home, self.token) is None:
            time.sleep(0.05)
        self.end("stopped")

    def print(self, text: str) -> None:
        print(text.replace("_", " "), flush=True)

    def die(self) -> None:
        self.note("died")
        os.killpg(0, signal.SIGKILL)

    def exit(self, code: str) -> None:
        os._exit(int(code))

    def fail(self, text: str) -> None:
        kind, decision, code, message = text.split(":")
        error = DriverError(kind=kind, decision=decision, exit_code=int(code), message=message.replace("_", " "))
        self.write(state=DriverState.FAILED, error=error)
        self.release()
        os._exit(int(code))

    def end(self, state: str) -> None:
        self.write(state=DriverState(state))
        self.release()
        os._exit(0)

    def release(self) -> None:
        status.write(self.home.final_status_path(self.token), self.status)
        held, self.lease = self.lease, None
        if held is not None:
            lease.release(self.home.lease, held)

    def note(self, event: str) -> None:
        line = {"run": self.run, "event": event, "at": time.time(), "token": self.token, "pid": os.getpid()}
        with (self.home.here / "notes.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def go_file(home: Home, run: int) -> Path:
    return home.here / f"go-{run}"


def let_go(home: Home, run: int = 1) -> None:
    """Let the n-th start go on that does the step ``go``."""
    go_file(home, run).touch()


def main() -> None:
    home = Home(sys.argv[sys.argv.index("--home") + 1])
    plans = sys.argv[sys.argv.index("--until") + 2 :]
    plans = plans[2:] if plans[:1] == ["--goal"] else plans
    plans = plans[1:] if plans[:1] == ["--backfill"] else plans
    stands_by = plans[-2:] == ["--standby", standbys.WARM]
    plans = plans[:-2] if stands_by else plans
    notes = home.here / "notes.jsonl"
    starts = notes.read_text().count('"started"') if notes.exists() else 0
    driver = Driver(home, run=starts + 1)
    driver.note("started")
    if stands_by:
        driver.stand_by()
    for step in plans[min(starts, len(plans) - 1)].split():
        name, _, argument = step.partition("=")
        driver.step(name, argument)


if __name__ == "__main__":
    main()
