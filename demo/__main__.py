"""``python -m demo``: the main job on real purchases, two kills, and the report. Exits non-zero if anything is off."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.devkit.jars import spark_connector_jars
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from demo import judge, main_job, page, processes, purchases, report, stock, topics
from demo.console import Console
from demo.history import SOURCE_TOPIC, Event, read_events
from demo.timed_kill import Aim

PARTITIONS: Final = 4
FAIL_POINTS: Final = {
    "during-send:run=1:batch=3": "SIGKILL in mid-write",
    "after-commit:run=2:batch=6": "SIGKILL after the commit",
}
STOCK_AIMS: Final = (Aim(batch=3, wholly_written=False), Aim(batch=6, wholly_written=True))
REPORT_FOLDER: Final = Path(__file__).parents[1] / "demo-report"
_LOG_LINES: Final = 40
_INTERRUPTED: Final = 130


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What the two jobs share.

    :param config: Kafka client configuration
    :param events: the source topic's records, as read back from it
    """

    console: Console
    folder: Path
    config: dict[str, Any]
    purchases: list[purchases.Purchase]
    events: list[Event]

    def progress(self, done: int, text: str) -> None:
        """Show how many of the records are through."""
        self.console.progress(done, len(self.events), text)


def main() -> int:
    """Run the demo; 0 when everything is right."""
    console = Console()
    console.plain("The shop's totals, exactly once: one Airflow DAG, one PySpark stream, two SIGKILLs.\n")
    processes.adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix="exactlyonce-demo-"))
    try:
        with processes.interruptible():
            return _run(console, folder)
    except processes.Interrupted as reason:
        console.plain(f"{reason}: everything that the demo started has ended.")
        return _INTERRUPTED
    except (main_job.JobFailedError, stock.StockFailedError, ExactlyOnceError) as error:
        console.plain(f"The demo could not be run to its end: {error}")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(console: Console, folder: Path) -> int:
    spark_connector_jars(console.say)
    job = main_job.MainJob(folder, fail_points=FAIL_POINTS)
    with _keeping_logs(folder), EmbeddedBroker(folder / "broker") as broker, _ending_the_rest():
        job.prepare()
        console.say(f"Kafka broker ready on {broker.bootstrap_servers}")
        bench = _feed(console, folder, {"bootstrap.servers": broker.bootstrap_servers})
        job.wait_until_prepared()
        console.say("Airflow's database is made; the DAG shop_totals starts: stream, gate, compare")
        ours, commits, gate_opened = _main_job(bench, job)
        console.say("now the same job with the same kills through Spark's own Kafka sink")
        theirs = _stock(bench)
    story = page.Story(ours=ours, stock=theirs, commits=commits, gate_opened=gate_opened)
    page.write(REPORT_FOLDER / "index.html", story)
    console.say("everything that was started has ended")
    console.plain(f"\n{report.text(ours, theirs)}\n")
    console.plain(f"The page: {REPORT_FOLDER / 'index.html'}")
    console.plain("Next: read dags/shop_totals.py and dags/jobs/shop_totals.py; `make test` runs the crash tests.")
    return 1 if ours.problems else 0


@contextlib.contextmanager
def _keeping_logs(folder: Path) -> Iterator[None]:
    """Keep the logs beside the report, and show the newest one's end when the demo fails."""
    try:
        yield
    except (main_job.JobFailedError, stock.StockFailedError):
        newest = max(folder.glob("*.log"), key=lambda log: log.stat().st_mtime)
        sys.stderr.write(f"\n{processes.tail(newest, _LOG_LINES)}\n\n")
        raise
    finally:
        REPORT_FOLDER.mkdir(parents=True, exist_ok=True)
        for log in folder.glob("*.log"):
            shutil.copy(log, REPORT_FOLDER)


@contextlib.contextmanager
def _ending_the_rest() -> Iterator[None]:
    """End what was started since, before the broker that is running already."""
    spared = frozenset(child.pid for child in psutil.Process().children(recursive=True))
    try:
        yield
    finally:
        processes.end_descendants(spared=spared)


def _feed(console: Console, folder: Path, config: dict[str, Any]) -> Bench:
    topics.create(config, [SOURCE_TOPIC, main_job.TOPIC, stock.TOPIC], PARTITIONS)
    bought = purchases.read()
    topics.feed(config, SOURCE_TOPIC, purchases.in_order_of_time(bought))
    events = read_events(topics.read(config, SOURCE_TOPIC))
    console.say(f"{len(events):,} purchases are in {SOURCE_TOPIC}, {PARTITIONS} partitions, keyed by customer")
    return Bench(console=console, folder=folder, config=config, purchases=bought, events=events)


def _main_job(bench: Bench, job: main_job.MainJob) -> tuple[report.Account, list[CommitRecord], float]:
    result = job.run(bench.config, progress=bench.progress, say=bench.console.say)
    bench.console.say("the gate has opened, and the task behind it found the totals equal to the file")
    history, records = main_job.history(bench.config, result)
    figures = judge.figures(history, bench.events, bench.purchases)
    ends = topics.Ends(bench.config, SOURCE_TOPIC).stable_and_high()
    source_ends = {partition: high for partition, (_, high) in ends.items()}
    problems = [
        *judge.problems(figures, kills=len(FAIL_POINTS)),
        *judge.source_problems(bench.events, bench.purchases),
        *judge.ledger_problems(records, source_ends, bench.events, history.updates, main_job.TOPIC),
    ]
    account = report.Account(name=report.OURS, history=history, figures=figures, problems=problems)
    return account, [record for record in records if isinstance(record, CommitRecord)], result.gate_opened


def _stock(bench: Bench) -> report.Account:
    run = stock.StockRun(bench.config, bench.folder, bench.events, bench.progress, bench.console.say)
    history = run.run(STOCK_AIMS)
    figures = judge.figures(history, bench.events, bench.purchases)
    problems = judge.problems(figures, kills=len(STOCK_AIMS))
    return report.Account(name=report.STOCK, history=history, figures=figures, problems=problems)


if __name__ == "__main__":
    sys.exit(main())
