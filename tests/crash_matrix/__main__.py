"""Run the crash matrix: ``python -m tests.crash_matrix --runs 1000``."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from airflow_provider_exactlyonce.failpoints import NAMES
from airflow_provider_exactlyonce.jars import class_archive
from tests.crash_matrix import report, stock
from tests.crash_matrix.cases import POINTS_WITH_TABLE, Case, cases, worlds
from tests.crash_matrix.lane import Result, run_lanes
from tests.crash_matrix.pipeline import Pipeline
from tests.crash_matrix.table import TABLES

WORLD_CASES = 24
WORTH_AN_ARCHIVE = 20
#: After a restart's claim nothing of the run before may hide records any longer; this is for the markers' way.
HELD_SECONDS_MAXIMUM = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is left; returns 1 if a run is not recovered or holds others up, or the control has no duplicates."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash_matrix", description=__doc__)
    parser.add_argument("--runs", type=int, default=96, help="how many faults (default: the matrix once, 96)")
    parser.add_argument("--seed", type=int, default=1, help="decides order and details (default: 1)")
    parser.add_argument("--only", type=int, action="append", help="this run only, by its number; repeatable")
    parser.add_argument("--stock", action="store_true", help="the negative control: Spark's own sink instead")
    parser.add_argument("--beside", choices=TABLES, help="write to a table of this kind too, in the same query")
    parser.add_argument("--lanes", type=int, default=2, help="brokers, each with one driver at a time (default: 2)")
    parser.add_argument("--folder", type=Path, default=Path(".exactlyonce/crash-matrix"), help="results and logs")
    given = parser.parse_args(arguments)
    given.folder = given.folder.absolute()
    given.folder.mkdir(parents=True, exist_ok=True)
    name = f"{'stock' if given.stock else given.beside or 'results'}-{given.seed}"
    results_file = given.folder / f"{name}.jsonl"
    endless = cases(given.seed, stock.POINTS if given.stock else POINTS_WITH_TABLE if given.beside else NAMES)
    wanted = list(itertools.islice(endless, max([given.runs, *(n + 1 for n in given.only or [])])))
    if given.only:
        wanted = [case for case in wanted if case.index in given.only]
    known = {case.index for case in wanted}
    results = [] if given.only else [result for result in report.load(results_file) if result.index in known]
    _run(given, wanted, results, results_file)
    text = report.table(results)
    (given.folder / f"{name}.md").write_text(text)
    print(text)
    return _status(results, wanted, is_control=given.stock)


def _run(given: argparse.Namespace, wanted: Sequence[Case], results: list[Result], results_file: Path) -> None:
    done = {result.index for result in results}
    left = [case for case in wanted if case.index not in done]
    print(f"{len(left)} runs, {len(done)} were done before; seed {given.seed}; results in {results_file}", flush=True)
    if not left:
        return
    folder = given.folder / time.strftime("%Y%m%d-%H%M%S")
    if len(left) >= WORTH_AN_ARCHIVE:
        class_archive.make(lambda line: print(line, flush=True))
    began = time.monotonic()

    def tell(result: Result) -> None:
        results.append(result)
        report.append(results_file, result)
        _say(result, len(results) - len(done), len(left), time.monotonic() - began)
        if result.verdict != "recovered":
            of = " --stock" if given.stock else f" --beside {given.beside}" if given.beside else ""
            again = f"python -m tests.crash_matrix{of} --seed {given.seed} --only {result.index}"
            print(f"   {result.detail}\n   again: {again}", flush=True)

    run_lanes(
        [f"lane{number}" for number in range(given.lanes)],
        folder,
        worlds(left, min(WORLD_CASES, -(-len(left) // given.lanes))),
        tell,
        make=stock.StockPipeline if given.stock else partial(Pipeline, beside=given.beside),
        goes_on=given.stock,
    )


def _say(result: Result, made: int, left: int, seconds: float) -> None:
    rest_minutes = seconds / made * (left - made) / 60
    print(
        f"{made}/{left} {result.verdict:9} {result.seconds:5.1f} s  {result.fault} at {result.point}, {result.shape}"
        f"  (run {result.index}; {seconds / made:.1f} s a run, {rest_minutes:.0f} min left)",
        flush=True,
    )


def _status(results: Sequence[Result], wanted: Sequence[Case], *, is_control: bool) -> int:
    missing = len(wanted) - len({result.index for result in results})
    bad = [result for result in results if result.verdict != "recovered"]
    if is_control:
        doubled = sum(result.verdict in ("doubled", "torn") for result in bad)
        print(f"Spark's own sink: {doubled} of {len(results)} runs with duplicates; {missing} are missing")
        return 0 if doubled and not missing else 1
    held_up = [result.index for result in results if (result.held_seconds or 0) > HELD_SECONDS_MAXIMUM]
    if bad or missing:
        print(f"{len(bad)} runs did not recover; {missing} are missing", file=sys.stderr)
    if held_up:
        print(f"other readers were held up for more than {HELD_SECONDS_MAXIMUM:g} s in runs {held_up}", file=sys.stderr)
    return 1 if bad or missing or held_up else 0


if __name__ == "__main__":
    sys.exit(main())
