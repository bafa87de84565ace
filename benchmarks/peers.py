"""The same jobs on Flink, on Spark's own source and sink, and here: one broker, one run, the engines interleaved.

Each engine is started afresh for each run, with its own processes, and reads the same topic from its beginning. Rows a
second and CPU are those of the steady state, between two moments at which that much of the output can be read; start
and end are left out. What was written is read by an independent consumer and compared, record by record, with what has
to be there. In a run of its own each engine is killed once in mid-run.

Run: ``make bench-peers``, or ``python benchmarks/peers.py --help``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from benchmarks.engines.avro_values import AvroValues
from benchmarks.engines.engines import ENGINES, OURS, SPARK_TUNED, Engine
from benchmarks.engines.flink_jars import flink_jars
from benchmarks.engines.report import Results, draw, tables
from benchmarks.engines.runs import Runs
from benchmarks.engines.workloads import AVRO, PASSED, WORKLOADS
from tests import apicurio
from tests.java_archives import newest_java

KILLED, SMALL_BATCHES = "killed", "small batches"
#: Of the workloads that only pass values.
PASSING_ENGINES: Final = (SPARK_TUNED, OURS)
Run = Callable[[Engine], dict[str, Any]]


def kinds(
    runs: Runs, rows: int | None, batches: int, avro: AvroValues | None
) -> dict[str, tuple[tuple[Engine, ...], Run]]:
    """Return each kind of run with its engines.

    :param rows: of each workload's input, None for its own
    :param batches: small ones of a round that are counted
    :param avro: None where there is no registry
    """
    workloads = [
        replace(workload, rows=rows or workload.rows, avro=avro if workload.name == AVRO else None)
        for workload in WORKLOADS
        if avro or workload.name != AVRO
    ]
    engines_and_runs: dict[str, tuple[tuple[Engine, ...], Run]] = {}
    for workload in workloads:
        engines = PASSING_ENGINES if workload.query == PASSED else ENGINES
        engines_and_runs[workload.name] = engines, partial(runs.to_the_end, workload=workload)
    engines_and_runs[SMALL_BATCHES] = ENGINES, partial(runs.small_batches, batches=batches)
    engines_and_runs[KILLED] = ENGINES, partial(runs.killed, workload=workloads[0])
    return engines_and_runs


@contextmanager
def avro_values(folder: Path) -> Iterator[AvroValues | None]:
    """Give what writes and reads Avro with a registry of its own, None where there is no Java for one."""
    if newest_java(apicurio.JAVA) is None:
        print(f"{AVRO}: left out, the registry needs Java {apicurio.JAVA}")
        yield None
        return
    (folder / "registry").mkdir()
    server = apicurio.Apicurio(folder / "registry")
    server.start()
    try:
        yield AvroValues(server.url)
    finally:
        server.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = [workload.name for workload in WORKLOADS] + [SMALL_BATCHES, KILLED]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="kinds of runs (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="of each engine (default: 5)")
    parser.add_argument(
        "--rows", type=int, help="of each input, a multiple of 100,000; few end before the kill (default: its own)"
    )
    parser.add_argument("--add", action="store_true", help="keep the rounds that the output folder has")
    parser.add_argument("--batches", type=int, default=40, help="small batches of a round that count (default: 40)")
    parser.add_argument("--output", type=Path, default=Path("bench-report"), help="folder for the raw figures and plot")
    given = parser.parse_args()
    given.output.mkdir(exist_ok=True)
    raw = given.output / "peers.json"
    kept = json.loads(raw.read_text()) if raw.exists() else {}
    flink_jars()
    with (
        tempfile.TemporaryDirectory(prefix="bench-peers-") as work,
        EmbeddedBroker(Path(work) / "broker") as broker,
        avro_values(Path(work)) as avro,
    ):
        runs = Runs(broker, Path(work))
        chosen = {
            kind: engines_and_run
            for kind, engines_and_run in kinds(runs, given.rows, given.batches, avro).items()
            if kind in given.only
        }
        measured: Results = {kind: kept.get(kind, {}) if given.add else {} for kind in chosen}
        first_round = max((len(rounds) for engines in measured.values() for rounds in engines.values()), default=0)
        for number in range(first_round, first_round + given.rounds):
            for kind, (engines, run) in chosen.items():
                turn = number % len(engines)
                for engine in engines[turn:] + engines[:turn]:
                    try:
                        figures = run(engine)
                    except RuntimeError as error:  # which must not cost the figures of the others
                        print(kind, number, engine.name, "has failed:", error, flush=True)
                        continue
                    measured[kind].setdefault(engine.name, []).append(figures)
                    print(kind, number, engine.name, _short(figures), flush=True)
                    kept |= {kind: measured[kind], "machine": f"{os.cpu_count()} cores, {platform.system()}"}
                    raw.write_text(json.dumps(kept, indent=1) + "\n")
    results: Results = {name: kept[name] for name in names if name in kept}
    print(tables(results))
    draw(results, given.output / "peers.png")
    print(f"raw figures and plot: {raw}, {given.output}/peers.png")
    return 0


def _short(figures: dict[str, Any]) -> str:
    return " ".join(f"{name}={value:,.1f}" for name, value in figures.items() if isinstance(value, int | float))


if __name__ == "__main__":
    sys.exit(main())
