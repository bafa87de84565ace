"""How long each slow test took when the whole suite last ran on a quiet machine: make durations."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")
LEAST_SECONDS = 1.0


def read() -> dict[str, float]:
    """Return the seconds of tests by their ids; quick and new ones are absent."""
    return dict(json.loads(FILE.read_text()))


def record(report: Path) -> None:
    """Note what a report of pytest says.

    :param report: as ``pytest --junitxml`` writes it
    """
    seconds = {}
    for case in ElementTree.parse(report).iter("testcase"):
        time = round(float(case.attrib["time"]), 1)
        if time >= LEAST_SECONDS:
            seconds[f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}"] = time
    FILE.write_text(json.dumps(dict(sorted(seconds.items())), indent=0) + "\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
