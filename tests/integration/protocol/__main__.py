"""Repeat single seeds: ``python -m tests.integration.protocol 17 [18 …] [--protocol WithoutReplayCheck]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from tests.integration.protocol.lane import Forge, Lane, Plan, run_lanes


def main() -> int:
    """Run the seeds; returns 1 when one does not recover."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.protocol", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--protocol", default="BatchTransaction")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="exactlyonce-protocol-"))
    with EmbeddedBroker(folder / "broker") as broker, Forge(folder / "forge") as forge:
        config = {"bootstrap.servers": broker.bootstrap_servers}
        lane = Lane(forge, folder / "lane", config, broker, given.protocol)
        outcomes = run_lanes([(lane, [Plan.of(seed) for seed in given.seeds])])
    for outcome in outcomes:
        print(f"{outcome.seconds:.2f} s, {outcome.deaths} deaths, {outcome}")
    return 1 if any(outcome.findings for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
