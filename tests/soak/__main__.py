"""Run the soak: ``python -m tests.soak --hours 8``. Ends by itself; 0 when nothing was off."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from airflow_provider_exactlyonce.audit.check import AuditOptions, audit
from airflow_provider_exactlyonce.ledger.records import ledger_topic
from demo import processes
from demo.console import Console
from tests.integration.brokers.hold_ups import HoldUps
from tests.soak import faults, names, report
from tests.soak.feeder import Feeder
from tests.soak.gates import Gates
from tests.soak.journal import Journal
from tests.soak.judge import Finding, Judge
from tests.soak.plan import plan
from tests.soak.readers import (
    AWAY,
    DeltaReader,
    PostgresReader,
    TableReader,
    TopicReader,
    follow,
    rows_of,
    source_rows_of,
)
from tests.soak.samples import Sampler
from tests.soak.script import Script
from tests.soak.world import World
from tests.waiting import eventually

FOLDER = Path("build/soak")
#: The table's readers look so often.
LOOK_SECONDS = 15.0
#: In which both pipelines must have started, and in which all must have come out at the end.
PATIENCE_SECONDS = 900.0
_HELD_PAUSE_SECONDS = 0.25
_SAY_SECONDS = 60.0
_END_SECONDS = 30.0
_RESTART_SECONDS = 2.0
_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Run it; the report is written in any case, of what there is."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=8.0, help="how long, also less than one (default: 8)")
    parser.add_argument("--seed", type=int, help="of an earlier run, to plan the same again (default: a new one)")
    parser.add_argument("--rate", type=int, default=200, help="bookings a second (default: 200)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"for the report (default: {FOLDER})")
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else secrets.randbelow(10**6)
    console = Console()
    console.plain(f"Soak: {given.hours} h, seed {seed} (repeat the plan with SEED={seed}), report in {given.folder}\n")
    processes.adopt_orphans()
    journal = Journal(given.folder)
    folder = Path(tempfile.mkdtemp(prefix="exactlyonce-soak-"))
    status = 1
    try:
        with processes.interruptible(), contextlib.ExitStack() as at_last:
            at_last.callback(processes.end_descendants)
            at_last.callback(_keep_logs, folder, given.folder)
            Soak(console, journal, World(folder, console.say), seed=seed, rate=given.rate).run(given.hours * 3600)
    except processes.Interrupted as reason:
        console.plain(f"{reason}: everything that the soak started has ended.")
        status = _INTERRUPTED
    except Exception as error:  # whatever it is, the report is of what there is
        traceback.print_exc()
        note = f"{type(error).__name__}: {error}"
        journal.note("finding", **Finding("the soak", "could not go on", 1, note).facts())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    story = report.write(given.folder)
    console.plain(f"\n{report.markdown(story)}\nThe page: {given.folder / 'index.html'}")
    return 0 if story.is_right else status


class Soak:
    """One run.

    :param seed: of the bookings and of the plan
    :param rate: bookings a second
    """

    def __init__(self, console: Console, journal: Journal, world: World, *, seed: int, rate: int) -> None:
        self._console, self._journal, self._world = console, journal, world
        self._seed, self._rate = seed, rate
        self._script = Script(seed)
        self._ended = threading.Event()
        self._failures: list[BaseException] = []
        self._said = 0.0

    def run(self, seconds: float) -> None:
        """Run for so long, and then until all has come out."""
        self._journal.note("began", seed=self._seed, rate=self._rate, seconds=seconds)
        with self._world as world, contextlib.ExitStack() as stack:
            self._make(stack)
            self._feeder.start()
            self._start("service manager", self._keep_running, stack)
            self._start("topics", lambda ended: follow(self._topics, ended), stack)
            self._start("tables", self._look, stack)
            self._start("samples", self._sampler.run, stack)
            self._wait_for_first_commits()
            self._journal.note("running", limits=world.limits)
            self._start("gates", self._gates.run, stack)
            stack.enter_context(self._held)
            events = plan(self._seed, seconds)
            self._console.say(f"both pipelines run; {len(events)} events are planned")
            over = time.monotonic() + seconds
            faults.run(events, self._faults, over - seconds, self._ended, self._tick)
            while time.monotonic() < over:
                self._tick()
                time.sleep(1.0)
            self._drain()

    def _make(self, stack: contextlib.ExitStack) -> None:
        world, script, tell = self._world, self._script, self._tell
        self._feeder = Feeder(world.config, script, self._rate)
        posted = PostgresReader(world.database, Judge("PostgreSQL", script), script, tell)
        checked = DeltaReader(world.store_options, Judge("Delta", script), script, tell)
        self._tables: dict[str, TableReader] = {names.POSTED: posted, names.CHECKED: checked}
        self._between = TopicReader(
            world.config,
            names.POSTED_TOPIC,
            names.POSTED,
            names.BOOKINGS_TOPIC,
            rows_of,
            Judge("Kafka", script),
            self._journal,
            tell,
        )
        source = TopicReader(
            world.config,
            names.BOOKINGS_TOPIC,
            names.CHECKED,
            names.POSTED_TOPIC,
            lambda values: source_rows_of(values, script),
            Judge("the source", script),
            self._journal,
            tell,
        )
        self._topics = [self._between, source]
        for reader in self._topics:
            stack.callback(reader.close)
        # A gate promises what was there when it was started: in the source, and between the pipelines.
        promised = {
            names.POSTED: lambda: self._feeder.acknowledged,
            names.CHECKED: lambda: self._between.judge.floor,
        }
        self._gates = Gates(world, promised, self._tables, self._journal, tell)
        readers = {reader.pipeline: reader for reader in self._topics}
        self._faults = faults.Faults(world, readers, self._gates, self._journal, tell)
        self._sampler = Sampler(world, self._topics, list(self._tables.values()), self._journal)
        places = [(names.POSTED_TOPIC, partition) for partition in range(names.PARTITIONS)]
        places += [(ledger_topic(pipeline), 0) for pipeline in names.PIPELINES]
        self._held = HoldUps(world.config["bootstrap.servers"], places, pause_seconds=_HELD_PAUSE_SECONDS)

    def _start(self, what: str, work: Callable[[threading.Event], None], stack: contextlib.ExitStack) -> None:
        """Start a thread that works until the soak ends, and ends the soak when it fails."""

        def guarded() -> None:
            try:
                work(self._ended)
            except BaseException as error:
                self._failures.append(error)
                self._ended.set()

        thread = threading.Thread(target=guarded, name=what, daemon=True)
        thread.start()
        stack.callback(thread.join, _END_SECONDS)
        stack.callback(self._ended.set)

    def _look(self, ended: threading.Event) -> None:
        while not ended.wait(LOOK_SECONDS):
            self._look_at_tables()

    def _look_at_tables(self) -> None:
        for table in self._tables.values():
            with contextlib.suppress(*AWAY):  # what is missing then is seen by the next look, or at the end
                table.look()

    def _keep_running(self, ended: threading.Event) -> None:
        while not ended.wait(_RESTART_SECONDS):
            for part in self._world.restart_what_has_ended():
                self._journal.note("ended by itself", part=part)
            self._note_held()

    def _wait_for_first_commits(self) -> None:
        def committed() -> bool:
            self._check()
            return all(reader.commits for reader in self._topics)

        eventually(committed, self._world.parts.output, poll_seconds=0.5, hang_seconds=PATIENCE_SECONDS)

    def _tick(self) -> None:
        """See that all works, and say now and then how far it is."""
        self._check()
        if time.monotonic() - self._said > _SAY_SECONDS:
            self._said = time.monotonic()
            judged = ", ".join(f"{table.judge.rows:,} in {table.judge.where}" for table in self._tables.values())
            self._console.say(f"{self._feeder.sent:,} bookings sent, {judged}")

    def _check(self) -> None:
        """See that no thread has failed.

        :raises AssertionError: when one has
        """
        self._feeder.check()
        assert not self._failures, f"a thread has failed: {self._failures[0]!r}"

    def _drain(self) -> None:
        """Send no more, wait until all has come out, and judge everything once more."""
        self._world.heal()
        sent = self._feeder.end()
        self._console.say(f"{sent:,} bookings are sent; waiting until all of them are in every sink")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(judge.floor < sent for judge in self._judges()) and time.monotonic() < deadline:
            self._tick()
            self._look_at_tables()
            time.sleep(1.0)
        self._journal.note("drained")
        self._gates.finish()
        self._ended.set()
        judged = {}
        for judge in self._judges():
            self._tell(judge.complete(sent))
            judged[judge.where] = judge.rows
        for table in self._tables.values():
            table.read_all(sent)
        found = audit(self._world.config, names.POSTED, AuditOptions(patience_seconds=60)).found
        self._tell(Finding("audit", "violation", 1, str(violation)) for violation in found)
        self._note_held()
        self._journal.note("end", sent=sent, judged=judged)

    def _note_held(self) -> None:
        with contextlib.suppress(IndexError):  # no more of them
            while True:
                self._journal.note("held", seconds=round(self._held.stretches.pop(0), 2))

    def _judges(self) -> list[Judge]:
        return [*(reader.judge for reader in self._topics), *(table.judge for table in self._tables.values())]

    def _tell(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._journal.note("finding", **finding.facts())
            self._console.say(f"OFF: {finding.where}: {finding.kind}: {finding.note[:300]}")


def _keep_logs(folder: Path, report_folder: Path) -> None:
    """Keep what explains a failure beside the report."""
    kept = report_folder / "logs"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    for pattern in (
        "parts/*.log",
        "homes/*/control/logs/*.log",
        "brokers/*/logs/*.log",
        "airflow/logs/dag_id=*/**/*.log",
    ):
        for log in folder.glob(pattern):
            with contextlib.suppress(OSError):
                shutil.copy(log, kept / str(log.relative_to(folder)).replace("/", "-"))


if __name__ == "__main__":
    sys.exit(main())
