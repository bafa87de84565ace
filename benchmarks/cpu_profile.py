"""Where the CPU of a row goes: one run of an engine under perf, drawn as a flame graph.

Perf sees the JVM's functions because the JVM keeps frame pointers and writes down where its compiled code is, which
costs a few percent. It needs Linux's ``perf`` and the right to use it.

Run: ``make bench-profile``, or ``python benchmarks/cpu_profile.py --help``.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from benchmarks.engines.assignment import Assignment
from benchmarks.engines.engines import ENGINES, FLINK, OURS, Engine
from benchmarks.engines.figures import steady_samples
from benchmarks.engines.flame_graph import shares, stacks, svg
from benchmarks.engines.flink_jars import flink_jars
from benchmarks.engines.runs import Runs
from benchmarks.engines.workloads import AVRO, WORKLOADS
from benchmarks.peers import avro_values

TIMES_A_SECOND: Final = 199
#: What the table counts, first what is told by a more special function.
GROUPS: Final = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("compiling and collecting garbage", r"^JVM: (compiler|garbage)"),
        ("reading and parsing JSON", r"(?i)json|jackson"),
        ("Kafka's consumer", r"(?i)kafka.*(consumer|fetch)|KafkaDataConsumer|KafkaBatchReader"),
        ("Kafka's producer", r"(?i)kafka.*(producer|sender)"),
        ("between JVM and Python", r"(?i)arrow|ArrowPython|PythonRunner"),
        ("Python: encoding, compressing, sending", r"^Python$"),
        ("Spark's rows and expressions", r"(?i)spark.*(catalyst|codegen|expressions|unsafe)|GeneratedIterator"),
    )
)


@dataclass(frozen=True)
class Profiled:
    """An engine that perf starts.

    :param into: perf's file
    """

    engine: Engine
    into: Path

    def command(self, given: Assignment) -> list[str]:
        perf = ["perf", "record", "--quiet", "-F", str(TIMES_A_SECOND), "-g", "-k", "CLOCK_MONOTONIC"]
        return [*perf, "-o", str(self.into), "--", *self.engine.command(given)]

    def environment(self, given: Assignment) -> Mapping[str, str]:
        jvm_options = "-XX:+PreserveFramePointer -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit"
        return {**self.engine.environment(given), "JDK_JAVA_OPTIONS": jvm_options}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    workloads = {workload.name: workload for workload in WORKLOADS}
    engines = {engine.name: engine for engine in ENGINES}
    parser.add_argument("--workload", choices=workloads, default="json", help="(default: %(default)s)")
    parser.add_argument("--engine", choices=engines, default=OURS.name, help="(default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("bench-report"), help="folder for the drawing")
    given = parser.parse_args()
    if shutil.which("perf") is None:
        parser.error("perf is not installed")
    engine, workload = engines[given.engine], workloads[given.workload]
    given.output.mkdir(exist_ok=True)
    if engine is FLINK:
        flink_jars()
    with tempfile.TemporaryDirectory(prefix="bench-profile-") as work:
        recorded = Path(work) / "perf.data"
        registry = avro_values(Path(work)) if workload.name == AVRO else nullcontext()
        with EmbeddedBroker(Path(work) / "broker") as broker, registry as avro:
            if workload.name == AVRO and avro is None:
                return 1
            watched_run = Runs(broker, Path(work)).watched(Profiled(engine, recorded), replace(workload, avro=avro))
        first, last = (watched_run.samples[number].at for number in steady_samples(watched_run.visible))
        script = ["perf", "script", "-i", str(recorded), "-F", "comm,pid,time,ip,sym"]
        script_output = subprocess.run(script, check=True, capture_output=True, text=True, errors="replace")
    profile = stacks(script_output.stdout.splitlines(), first, last)
    title = f"{engine.name}, {workload.name}: {profile.total():,} samples of {last - first:.1f} s in the steady state"
    drawing = given.output / f"profile-{given.engine}-{given.workload}.svg".replace(" ", "-")
    drawing.write_text(svg(profile, title))
    print(title)
    for group, share in shares(profile, GROUPS).items():
        print(f"{share:6.1%} {group}")
    print(drawing)
    return 0


if __name__ == "__main__":
    sys.exit(main())
