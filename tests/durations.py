"""How long each slow test took when the whole suite last ran on a quiet machine, and where its time went."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

from tests.cpu_seconds import FIXTURE, PROPERTY

FILE = Path(__file__).with_suffix(".json")
LEAST_SECONDS = 1.0
FIXTURES_SHOWN = 12


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
            seconds[_nodeid(case.attrib["classname"], case.attrib["name"])] = time
    FILE.write_text(json.dumps(dict(sorted(seconds.items())), indent=0) + "\n")


def _nodeid(classname: str, name: str) -> str:
    """Return pytest's id of a test; a report has its file and its classes in one, with points."""
    parts = classname.split(".")
    files = (Path(*parts[:length]).with_suffix(".py") for length in range(len(parts), 0, -1))
    file = next(file for file in files if (FILE.parents[1] / file).is_file())
    return "::".join([file.as_posix(), *parts[len(file.parts) :], name])


def table(report: Path) -> str:
    """Return what each folder of tests has taken, as Markdown.

    :param report: as ``pytest -p tests.cpu_seconds --junitxml`` writes it
    """
    folders: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for case in ElementTree.parse(report).iter("testcase"):
        kind, *parts = case.attrib["classname"].split(".")[1:]
        of = folders["/".join([kind, *parts[:-1][:1]]) if kind == "integration" else kind]
        cpu = case.find(f"properties/property[@name='{PROPERTY}']")
        of[0] += 1
        of[1] += float(case.attrib["time"])
        of[2] += float(cpu.attrib["value"]) if cpu is not None else 0.0
    folders["all"] = [sum(of[n] for of in folders.values()) for n in range(3)]
    lines = ["| folder of `tests/` | tests | seconds, one after the other | CPU seconds |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {count:,} | {wall:,.0f} | {cpu:,.0f} |"
        for name, (count, wall, cpu) in sorted(folders.items(), key=lambda of: of[1][2], reverse=True)
    ]
    return "\n".join(lines)


def fixtures_table(report: Path) -> str:
    """Return which fixtures have used most CPU until they were there, as Markdown.

    :param report: as ``pytest -p tests.cpu_seconds --junitxml`` writes it
    """
    fixtures: dict[str, list[float]] = defaultdict(list)
    for noted in ElementTree.parse(report).iter("property"):
        if noted.attrib["name"].startswith(FIXTURE):
            fixtures[noted.attrib["name"].removeprefix(FIXTURE)].append(float(noted.attrib["value"]))
    dearest = sorted(fixtures.items(), key=lambda of: sum(of[1]), reverse=True)[:FIXTURES_SHOWN]
    lines = ["| fixture | times | CPU seconds |", "|---|---|---|"]
    lines += [f"| `{name}` | {len(each):,} | {sum(each):,.0f} |" for name, each in dearest]
    return "\n".join(lines)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
    print(table(Path(sys.argv[1])), fixtures_table(Path(sys.argv[1])), sep="\n\n")
