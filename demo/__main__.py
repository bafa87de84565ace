"""``python -m demo``: the main job on real purchases, two kills, and the report. Exits non-zero if anything is off."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.jars.cache import spark_connector_jars
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from demo import judge, main_job, page, processes, report, stock
from demo.bench import Bench, feed
from demo.console import Console
from demo.stage import REPORT_FOLDER, perform
from demo.timed_kill import Aim

FAIL_POINTS: Final = {
    "during-send:run=1:batch=3": "SIGKILL in mid-write",
    "after-commit:run=2:batch=6": "SIGKILL after the commit",
}
STOCK_AIMS: Final = (Aim(batch=3, wholly_written=False), Aim(batch=6, wholly_written=True))


def main() -> int:
    """Run the demo; 0 when everything is right."""
    return perform("The shop's totals, exactly once: one Airflow DAG, one PySpark stream, two SIGKILLs.", _play)


def _play(console: Console, folder: Path) -> int:
    spark_connector_jars(console.say)
    job = main_job.MainJob(folder, fail_points=FAIL_POINTS)
    with EmbeddedBroker(folder / "broker") as broker, _ending_the_rest():
        job.prepare()
        console.say(f"Kafka broker ready on {broker.bootstrap_servers}")
        config = {"bootstrap.servers": broker.bootstrap_servers}
        bench = feed(console, folder, config, [main_job.TOPIC, stock.TOPIC])
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
def _ending_the_rest() -> Iterator[None]:
    """End what was started since, before the broker that is running already."""
    spared = frozenset(child.pid for child in psutil.Process().children(recursive=True))
    try:
        yield
    finally:
        processes.end_descendants(spared=spared)


def _main_job(bench: Bench, job: main_job.MainJob) -> tuple[report.Account, list[CommitRecord], float]:
    result = job.run(bench.config, progress=bench.progress, say=bench.console.say)
    bench.console.say("the gate has opened, and the task behind it found the totals equal to the file")
    history, records = main_job.history(bench.config, launches=result.launches, kills=result.kills)
    kills = len(FAIL_POINTS)
    account = bench.account(history, records, kills=kills, restarts=kills)
    return account, [record for record in records if isinstance(record, CommitRecord)], result.gate_opened


def _stock(bench: Bench) -> report.Account:
    run = stock.StockRun(bench.config, bench.folder, bench.events, bench.progress, bench.console.say)
    history = run.run(STOCK_AIMS)
    figures = judge.figures(history, bench.events, bench.purchases)
    kills = len(STOCK_AIMS)
    problems = judge.problems(figures, kills=kills, restarts=kills)
    return report.Account(name=report.STOCK, history=history, figures=figures, problems=problems)


if __name__ == "__main__":
    sys.exit(main())
