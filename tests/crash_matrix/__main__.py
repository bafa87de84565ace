"""Run the crash matrix: ``python -m tests.crash_matrix --runs 1000``."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.crash_matrix import report
from tests.crash_matrix.cases import Case, cases, worlds
from tests.crash_matrix.lane import Result, run_lanes

WORLD_CASES = 24


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is left to do; returns 1 when any run is not recovered."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash_matrix", description=__doc__)
    parser.add_argument("--runs", type=int, default=96, help="how many faults (default: the matrix once, 96)")
    parser.add_argument("--seed", type=int, default=1, help="decides order and details (default: 1)")
    parser.add_argument("--only", type=int, action="append", help="this run only, by its number; repeatable")
    parser.add_argument("--lanes", type=int, default=2, help="brokers, each with one driver at a time (default: 2)")
    parser.add_argument("--folder", type=Path, default=Path(".exactlyonce/crash-matrix"), help="results and logs")
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    results_file = given.folder / f"results-{given.seed}.jsonl"
    wanted = list(itertools.islice(cases(given.seed), max([given.runs, *(n + 1 for n in given.only or [])])))
    results = [] if given.only else [one for one in report.load(results_file) if one.index < given.runs]
    done = {one.index for one in results}
    left = [case for case in wanted if (case.index in given.only if given.only else case.index not in done)]
    print(f"{len(left)} runs, {len(done)} were done before; seed {given.seed}; results in {results_file}", flush=True)
    began = time.monotonic()

    def tell(result: Result) -> None:
        results.append(result)
        report.append(results_file, result)
        _say(result, results, len(done), len(left), time.monotonic() - began, given.seed)

    folder = given.folder / time.strftime("%Y%m%d-%H%M%S")
    size = min(WORLD_CASES, -(-len(left) // given.lanes)) if left else WORLD_CASES
    run_lanes([f"lane{n}" for n in range(given.lanes)], folder, worlds(left, size), tell)
    text = report.table(results)
    (given.folder / f"table-{given.seed}.md").write_text(text)
    print(text)
    return _status(results, wanted if not given.only else left)


def _say(result: Result, results: list[Result], before: int, left: int, seconds: float, seed: int) -> None:
    made = len(results) - before
    rest_minutes = seconds / made * (left - made) / 60
    print(
        f"{made}/{left} {result.verdict:9} {result.seconds:5.1f} s  {result.fault} at {result.point}, {result.shape}"
        f"  (run {result.index}; {seconds / made:.1f} s a run, {rest_minutes:.0f} min left)",
        flush=True,
    )
    if result.verdict != "recovered":
        print(f"   {result.detail}\n   again: python -m tests.crash_matrix --seed {seed} --only {result.index}")


def _status(results: Sequence[Result], wanted: Sequence[Case]) -> int:
    bad = [result for result in results if result.verdict != "recovered"]
    missing = len(wanted) - len({result.index for result in results})
    if bad or missing:
        print(f"{len(bad)} runs did not recover; {missing} are missing", file=sys.stderr)
    return 1 if bad or missing else 0


if __name__ == "__main__":
    sys.exit(main())
