"""The table of sources and sinks, cell by cell: after a kill and a restart, lost and doubled records are counted.

One job writes the same rows to four sinks, one of each kind. What a cell promises holds, and what it does not promise
is seen to fail.
"""

from __future__ import annotations

import json
import signal
import socketserver
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import Queue

import pytest

from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
from tests.integration.streaming.harness import World, check_ledger
from tests.waiting import eventually

SINKS = ("appended", "logged", "upserted", "committed")


def written(database: Path) -> dict[str, Counter[int]]:
    """Return how often each record is in each sink."""
    with closing(sqlite3.connect(database, timeout=30)) as read:
        return {name: Counter(number for (number,) in read.execute(f"SELECT id FROM {name}")) for name in SINKS}


def doubled(counts: Counter[int]) -> set[int]:
    return {number for number, times in counts.items() if times > 1}


@pytest.mark.slow
def test_a_source_that_can_be_read_again_loses_nothing_and_only_two_kinds_of_sinks_double(
    world: World, tmp_path: Path
) -> None:
    world.job = "table.py"
    database = tmp_path / "table.db"
    world.send(400)
    environment = {"TEST_DATABASE": str(database)}
    dies = world.start(environment={**environment, "TEST_DIES_AT": "150"}, own_jvm=True)
    assert dies.wait() == -signal.SIGKILL, dies.output()[-3000:]
    last = world.start(environment=environment)
    assert last.wait() == 0, last.output()[-3000:]
    commits = check_ledger(world)
    tables = written(database)
    for name in SINKS:
        assert tables[name].keys() == set(range(400)), f"{name}: nothing is lost"
    batch = doubled(tables["appended"])
    assert 150 in batch, "any sink: the batch at hand is there twice"
    assert len(batch) in [commit.others["appended"].rows for commit in commits]
    assert doubled(tables["logged"]) == batch, "write-ahead log: the delivery at hand is there twice"
    assert not doubled(tables["upserted"]), "idempotent: exactly once"
    assert not doubled(tables["committed"]), "two-phase commit: exactly once"


@pytest.mark.slow
def test_a_source_that_can_not_be_read_again_loses_with_every_sink_and_only_the_log_doubles(
    world: World, tmp_path: Path
) -> None:
    world.job = "table.py"
    database, armed = tmp_path / "table.db", tmp_path / "armed"
    with lines() as (port, queue):
        environment = {"TEST_DATABASE": str(database), "TEST_SOCKET": str(port)}
        _put(queue, range(20))
        dies = world.start(environment=environment, until="forever", failpoints=f"@{armed}")
        eventually(lambda: _has(database, 19), "the first records are written")
        armed.write_text("after-sink-pre-commit")
        _put(queue, range(20, 40))
        assert dies.wait() == -signal.SIGKILL, dies.output()[-3000:]
        dies = world.start(environment={**environment, "TEST_DIES_AT": "199"}, until="forever", own_jvm=True)
        _put(queue, range(100, 200))  # Spark's socket source drops as many as it had given before
        assert dies.wait() == -signal.SIGKILL, dies.output()[-3000:]
        last = world.start(environment=environment, until="forever")
        _put(queue, range(200, 600))
        eventually(lambda: _has(database, 599), "the last records are written")
        assert world.stop(last) == 0, last.output()[-3000:]
    tables = written(database)
    for name, numbers in tables.items():
        assert set(range(20)) <= numbers.keys(), name
        assert not numbers.keys() & set(range(20, 40)), f"{name}: what the crash interrupted is lost"
    assert 199 in doubled(tables["logged"]), "write-ahead log: the delivery at hand is there twice"
    assert not any(doubled(tables[name]) for name in SINKS if name != "logged"), "nothing else is"
    last_status = status.read(Home(world.home).status)
    assert last_status is not None and last_status.guarantee == "none"
    assert (
        last_status.weaker is not None
        and "source socket: what a crash interrupts can't be read again" in last_status.weaker
    )
    assert "sink logged: a delivery that was cut off is repeated" in last_status.weaker
    assert "guarantee=exactly_once is declared, and what can be had is none" in last.output()
    assert json.loads(Home(world.home).status.read_text())["guarantee"] == "none"


def _has(database: Path, number: int) -> bool:
    try:
        return all(number in numbers for numbers in written(database).values())
    except sqlite3.OperationalError:  # no table yet
        return False


def _put(queue: Queue[int], numbers: range) -> None:
    for number in numbers:
        queue.put(number)


@contextmanager
def lines() -> Iterator[tuple[int, Queue[int]]]:
    """Serve what is put into a queue, a line each, to whoever is connected: it is gone then."""
    queue: Queue[int] = Queue()
    ended = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while not ended.is_set():
                if queue.empty():
                    ended.wait(0.05)
                    continue
                try:
                    self.wfile.write(f"{queue.queue[0]}\n".encode())
                except OSError:
                    return
                queue.get()

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_address[1], queue
        finally:
            ended.set()
            server.shutdown()
            thread.join()
