"""How long a pipeline stands still when its driver is killed: this project's supervisor beside a shell's loop.

The supervisor starts the next driver, or lets a standby go on that waits for it with Spark up (``standby="warm"``).

All run the same aggregation on one broker, fed all the time, in turns. The first start is measured to its first commit,
too. A driver is killed with all its processes
(SIGKILL) once it has committed; what counts is the time to the next driver's start and to its first commit, and the CPU
seconds of its processes from the death until then. The loop is ``until spark-submit job.py; do :; done`` with Spark's
own source and sink. Ours starts from the archive of Spark's classes if ``exactlyonce prepare`` has made it.

``--deferred`` measures what a deferrable task adds: a real API server, scheduler and triggerer, and a driver that is a
plain process, from its death to the start of the next. Run it with ``make bench-restart``; the goals are 2 s to the
next start under a worker's supervision, and 30 s to the first commit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_exactlyonce.cli.submission import submit_command
from airflow_provider_exactlyonce.control import processes, restarts, standbys, status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.supervision import Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.exceptions import StopRequestedError
from airflow_provider_exactlyonce.jars import class_archive
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import ClaimRecord
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy

JOB = Path(__file__).with_name("restart_job.py")
RESULTS = Path(__file__).parent / "results" / "restart.json"
CONF = {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false"}
SOURCE = "events"
PATIENCE_SECONDS = 180.0
SETTLED_SECONDS = 5.0  # a driver is hardly killed in the moment in which its standby is ready
LANES: dict[str, Callable[[Path, str], dict[str, float]]] = {
    "supervised": lambda folder, servers: supervised(folder, servers),
    "standby": lambda folder, servers: supervised(folder, servers, standby=True),
    "looped": lambda folder, servers: looped(folder, servers),
}


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # whoever watches a leader ends the rest as soon as it is gone
            os.kill(pid, signal.SIGKILL)


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU time of processes and of their children that have ended."""
    times = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            times.append(psutil.Process(pid).cpu_times())
    return float(
        sum(
            process_times.user + process_times.system + process_times.children_user + process_times.children_system
            for process_times in times
        )
    )


@contextmanager
def fed(servers: str) -> Iterator[None]:
    """Produce 200 records a second."""
    done, producer = threading.Event(), Producer({"bootstrap.servers": servers})

    def feed() -> None:
        number = 0
        while not done.wait(0.05):
            for _ in range(10):
                number += 1
                producer.produce(SOURCE, json.dumps({"id": number, "k": f"k{number % 50}"}))
            producer.poll(0)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        producer.flush(10)


def environment(servers: str, sink: str) -> dict[str, str]:
    return {
        "BENCH_SERVERS": servers,
        "BENCH_SOURCE": SOURCE,
        "BENCH_SINK": sink,
        "EXACTLYONCE_KAFKA": json.dumps({"bootstrap.servers": servers}),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(JOB.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }


def megabytes(pids: list[int]) -> float:
    """Return the memory of processes, of what they share their part."""
    total = 0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            total += psutil.Process(pid).memory_full_info().pss
    return total / 2**20


def supervised(folder: Path, servers: str, *, standby: bool = False) -> dict[str, float]:
    home = Home(folder / "home")
    command = submit_command(str(JOB), ["--home", str(home.path), "--until", "forever"], master="local[2]", conf=CONF)
    supervisor = Supervisor(
        home,
        Launch(
            command=command,
            printable="",
            environment={**environment(servers, "supervised"), **class_archive.environment(os.environ, CONF)},
        ),
        Supervision(
            owner="bench", until="forever", strategy=RestartStrategy.fixed_delay(1, timedelta(0)), standby=standby
        ),
    )

    def supervise() -> None:
        try:
            for _ in supervisor.run():
                pass
        except StopRequestedError:
            pass

    def committed() -> int:
        driver_status = status.read(home.status)
        return driver_status.commits_of_run if driver_status else 0

    thread = threading.Thread(target=supervise, daemon=True)
    began = time.time()
    thread.start()
    eventually(lambda: committed() >= 1, "a commit")
    first_commit = time.time() - began
    eventually(lambda: committed() >= 3, "three commits")
    driver_status = status.read(home.status)
    assert driver_status is not None
    standby_cpu, memory = 0.0, 0.0
    if standby:
        eventually(lambda: standbys.waiting(home), "the standby is ready")
        ready = standbys.waiting(home)
        assert ready is not None
        time.sleep(SETTLED_SECONDS)
        standby_cpu, memory = cpu_seconds(processes.members(ready.token)), megabytes(processes.members(ready.token))
    killed = time.time()
    kill(processes.members(driver_status.token))

    def came_back() -> bool:
        next_status = status.read(home.status)
        return next_status is not None and next_status.token != driver_status.token and next_status.commits_of_run > 0

    eventually(came_back, "a commit of the next driver")
    commit = time.time()
    next_status = status.read(home.status)
    assert next_status is not None
    cpu = cpu_seconds(processes.members(next_status.token)) - standby_cpu
    claimed = claim_of(servers, next_status.run) - killed
    [restart] = restarts.read(home.restarts)
    assert restart.relaunched is not None
    supervisor.stop("measured")
    thread.join()
    figures = {
        "first_commit": first_commit,
        "to_start": restart.relaunched - killed,
        "to_claim": claimed,
        "to_commit": commit - killed,
        "cpu": cpu,
    }
    return {**figures, "standby_megabytes": memory} if standby else figures


def claim_of(servers: str, run: int) -> float:
    """Return when a run has claimed the pipeline, seconds since the epoch."""
    with LedgerReader({"bootstrap.servers": servers}, "bench-restart") as reader:
        claims = [record for _, record in reader.records() if isinstance(record, ClaimRecord)]
    return next(claim.claimed for claim in claims if claim.run == run) / 1000


def looped(folder: Path, servers: str) -> dict[str, float]:
    checkpoint = folder / "checkpoint"
    command = submit_command(str(JOB), ["--plain", str(checkpoint)], master="local[2]", conf=CONF)
    starts = folder / "starts"
    began = time.time()
    script = f'until date +%s.%N >> {starts}; "$@"; do :; done'
    process = subprocess.Popen(
        ["bash", "-c", script, "loop", *command],
        env={**os.environ, **environment(servers, "looped"), "BENCH_LOOP": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def newest() -> int:
        return max((int(file.name) for file in checkpoint.glob("commits/[0-9]*")), default=-1)

    def drivers() -> list[int]:
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in (os.getpid(), process.pid):
                try:
                    is_member = f"BENCH_LOOP={folder}".encode() in (entry / "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                pids += [int(entry.name)] if is_member else []
        return pids

    eventually(lambda: newest() >= 0, "a batch")
    first_commit = time.time() - began
    eventually(lambda: newest() >= 2, "three batches")
    killed = time.time()
    kill(drivers())
    eventually(lambda: len(starts.read_text().splitlines()) >= 2, "the next start")
    newest_before = newest()
    eventually(lambda: newest() > newest_before, "a batch of the next driver")
    commit = time.time()
    cpu = cpu_seconds(drivers())
    os.kill(process.pid, signal.SIGKILL)
    kill(drivers())
    process.wait()
    to_start = float(starts.read_text().splitlines()[1]) - killed
    return {"first_commit": first_commit, "to_start": to_start, "to_commit": commit - killed, "cpu": cpu}


def deferred(folder: Path, rounds: int) -> list[float]:
    """Return the seconds from a driver's death to the next start, under a deferrable task."""
    from tests.integration.airflow.conftest import make_airflow
    from tests.integration.airflow.parts import Parts, Stream

    parts = Parts(make_airflow(folder / "airflow", {"bootstrap.servers": "nowhere:9092"}), folder)
    seconds = []
    try:
        parts.start_all()
        plan = "take-lease commit until-stop"
        stream = Stream(parts, "deferred", folder / "home", first=plan, then=plan, until="forever")
        for number in range(rounds):
            eventually(lambda number=number: len(stream.notes("started")) == number + 1, "a start")  # type: ignore[misc]
            stream.wait_for("deferred")
            os.kill(int(stream.notes("started")[-1]["pid"]), signal.SIGKILL)
            killed = time.time()
            eventually(lambda number=number: len(stream.notes("started")) == number + 2, "a restart")  # type: ignore[misc]
            seconds.append(restarts.read(stream.home.restarts)[-1].relaunched - killed)  # type: ignore[operator]
        stream.wait_for("deferred")
        stream.stop()
        stream.wait_for("success")
    finally:
        parts.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="kills of each lane (default: %(default)s)")
    parser.add_argument("--deferred", action="store_true", help="measure what a deferrable task adds, instead")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-restart-"))
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    try:
        if given.deferred:
            measured: dict[str, object] = {"deferred": deferred(folder, given.rounds)}
        else:
            measured = {"lanes": in_turns(folder, given.rounds)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    machine = f"{os.cpu_count()} cores, {platform.system()}, load {os.getloadavg()[0]:.1f}"
    RESULTS.write_text(json.dumps({**kept, **measured, "machine": machine}, indent=1) + "\n")
    report(json.loads(RESULTS.read_text()))


def in_turns(folder: Path, rounds: int) -> dict[str, list[dict[str, float]]]:
    lanes: dict[str, list[dict[str, float]]] = {name: [] for name in LANES}
    with EmbeddedBroker(folder / "broker") as broker:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        futures = admin.create_topics([NewTopic(name, 4, 1) for name in (SOURCE, "looped")])
        for future in futures.values():
            future.result(30)
        with fed(servers):
            for number in range(rounds):
                for name, lane in LANES.items():
                    lane_folder = folder / f"{name}-{number}"
                    lane_folder.mkdir()
                    if name != "looped":  # a pipeline's ledger belongs to one home
                        fresh(admin)
                    lanes[name].append(lane(lane_folder, servers))
                    print(name, {key: round(value, 2) for key, value in lanes[name][-1].items()}, flush=True)
    return lanes


def fresh(admin: AdminClient) -> None:
    ledger, existing_topics = "exactlyonce.ledger.bench-restart", admin.list_topics(timeout=10).topics
    old_topics = [topic for topic in (ledger, "supervised") if topic in existing_topics]
    for future in admin.delete_topics(old_topics).values() if old_topics else ():
        future.result(30)
    eventually(lambda: not {ledger, "supervised"} & set(admin.list_topics(timeout=10).topics), "the topics are gone")
    admin.create_topics([NewTopic("supervised", 4, 1)])["supervised"].result(30)


def report(kept: dict[str, object]) -> None:
    lanes = kept.get("lanes", {})
    assert isinstance(lanes, dict)
    heads = {
        "first_commit": "first start to commit",
        "to_start": "to the next start",
        "to_claim": "to its claim",
        "to_commit": "to its first commit",
        "cpu": "its CPU until then",
        "standby_megabytes": "standby's MB",
    }
    print(f"{'':12}", *(f"{head:>22}" for head in heads.values()))
    for name, runs in lanes.items():
        cells = [
            f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})" if values else ""
            for values in ([run[key] for run in runs if key in run] for key in heads)
        ]
        print(f"{name:12}", *(f"{cell:>22}" for cell in cells))
    waits = kept.get("deferred", [])
    assert isinstance(waits, list)
    if waits:
        print(f"{'deferred':12} {f'{statistics.median(waits):.2f} ({min(waits):.2f}..{max(waits):.2f})':>22}")


if __name__ == "__main__":
    main()
