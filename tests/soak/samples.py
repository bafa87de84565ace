"""Measures every process that belongs to the soak, and everything that it keeps on disk."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from airflow_provider_exactlyonce.control.processes import TOKEN_VARIABLE
from airflow_provider_exactlyonce.devkit.configuration import log_directory
from airflow_provider_exactlyonce.ledger.records import ledger_topic
from tests.integration.brokers.cluster import NODES
from tests.soak.journal import Journal
from tests.soak.readers import AWAY, TableReader, TopicReader
from tests.soak.world import World

SAMPLE_SECONDS = 10.0
#: What is on disk is counted once in so many samples.
_SIZES_EVERY = 6
_MEGABYTE = 1024 * 1024

SOAK = "the soak itself"


@dataclass(frozen=True)
class Seen:
    """One process as the system shows it.

    :param above: its ancestors' ids, the nearest first
    :param token: the start token in its environment, of a driver's processes
    """

    pid: int
    above: Sequence[int]
    command: Sequence[str]
    token: str | None = None


def role(seen: Seen, parts: Mapping[int, str], pipelines: Mapping[str, str]) -> str:
    """Return what a process is.

    :param parts: what the processes are called that the soak has started itself
    :param pipelines: {start token: pipeline}
    """
    if seen.token is not None:
        pipeline = pipelines.get(seen.token, "a driver of before")
        program = os.path.basename(seen.command[0]) if seen.command else ""
        if program == "java":
            return f"{pipeline}: JVM"
        if any(word.startswith("pyspark.") for word in seen.command):
            return f"{pipeline}: Python workers"
        return f"{pipeline}: driver's Python" if program.startswith("python") else f"{pipeline}: launcher"
    if seen.pid in parts:
        return parts[seen.pid]
    below = next((parts[pid] for pid in seen.above if pid in parts), None)
    return f"{below}: children" if below else "others"


class Sampler:
    """A thread that measures.

    :param readers: of topics and ledgers
    :param tables: whose own sizes are noted
    """

    def __init__(
        self, world: World, readers: Sequence[TopicReader], tables: Sequence[TableReader], journal: Journal
    ) -> None:
        self._world, self._readers, self._tables, self._journal = world, readers, tables, journal
        self._rounds = 0
        self._dead: set[int] = set()

    def run(self, ended: threading.Event) -> None:
        """Measure until it is over."""
        while not ended.wait(SAMPLE_SECONDS):
            self.measure()

    def measure(self) -> None:
        """Measure once."""
        parts, pipelines = self._parts(), self._world.tokens()
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            with contextlib.suppress(psutil.Error, OSError):
                self._sample(process, parts, pipelines)
        self._reap()
        if self._rounds % _SIZES_EVERY == 0:
            self._sizes()
        self._rounds += 1

    def _sample(self, process: psutil.Process, parts: Mapping[int, str], pipelines: Mapping[str, str]) -> None:
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return
            above = [parent.pid for parent in process.parents()]
            token = process.environ().get(TOKEN_VARIABLE)
            times = process.cpu_times()
            self._journal.sample(
                "process",
                role=role(Seen(process.pid, above, process.cmdline(), token), parts, pipelines),
                pid=f"{process.pid}/{process.create_time():.0f}",
                rss=round(process.memory_info().rss / _MEGABYTE, 2),
                files=process.num_fds(),
                threads=process.num_threads(),
                cpu=round(times.user + times.system, 2),
            )

    def _parts(self) -> dict[int, str]:
        world = self._world
        parts = {process.pid: name for name, process in list(world.parts.running.items())}
        parts |= {pid: f"broker {node}" for node, pid in world.brokers.pids().items()}
        if world.store.process is not None:
            parts[world.store.process.pid] = "object store"
        with contextlib.suppress(psutil.Error, OSError, AttributeError):  # killed just now
            parts[world.postgres.processes()[0].pid] = "PostgreSQL"
        return {**parts, os.getpid(): SOAK}

    def _reap(self) -> None:
        """Ask the adopted for their exit codes: whoever waits for one of ours has done so within two samples."""
        children = psutil.Process().children()
        dead = {child.pid for child in children if _is_dead(child)}
        for pid in dead & self._dead:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._dead = dead

    def _sizes(self) -> None:
        for pipeline, home in self._world.homes.items():
            total, _ = usage(home.path)
            self._note(f"home of {pipeline}, bytes", total)
            _, files = usage(home.lineages)
            self._note(f"checkpoints of {pipeline}, files", files)
            self._note(f"savepoints of {pipeline}", len(list(home.savepoints.glob("*/manifest.json"))))
        for reader in self._readers:
            self._note(f"ledger of {reader.pipeline}, records", reader.records)
            ledger = log_directory(self._world.brokers.data(NODES[0])) / f"{ledger_topic(reader.pipeline)}-0"
            self._note(f"ledger of {reader.pipeline}, bytes", usage(ledger)[0])
        for node in NODES:
            self._note(f"broker {node}, bytes", usage(log_directory(self._world.brokers.data(node)))[0])
        self._note("object store, bytes", usage(self._world.folder / "store")[0])
        self._note("temporary files of drivers, bytes", usage(self._world.folder / "tmp")[0])
        self._note("Airflow's database, bytes", self._world.parts.airflow.database.stat().st_size)
        for table in self._tables:
            with contextlib.suppress(*AWAY):
                for name, value in table.facts().items():
                    self._note(name, value)
        self._note("bookings that are judged", min(table.judge.rows for table in self._tables))

    def _note(self, name: str, value: int) -> None:
        self._journal.sample("size", name=name, value=value)


def usage(folder: Path) -> tuple[int, int]:
    """Return the bytes and the number of the files below a folder; what vanishes meanwhile is not counted."""
    total = files = 0
    seen: set[int] = set()
    waiting = [folder]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                        continue
                    facts = entry.stat(follow_symlinks=False)
                    files += 1
                    if facts.st_ino not in seen:  # a savepoint's files are hard links
                        total += facts.st_blocks * 512
                        seen.add(facts.st_ino)
    return total, files


def _is_dead(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    return False
