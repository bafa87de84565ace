"""Every sink through all single faults, random pairs of them in sequence, and random triples; on real targets.

`make test` has some of them in each sink's own conformance test, `make fault-matrix` all pairs and longer failures.
A failing one names its faults and the seed, and ``rehearse(tmp_path, "again", [Fault(...), ...])`` runs them alone.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.testing.fault_injection import Fault, Rehearsal, single_faults
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from tests.integration.streaming.sinks import test_own_sink as of_own
from tests.integration.streaming.sinks.delta import test_conformance as of_delta
from tests.integration.streaming.sinks.iceberg import test_conformance as of_iceberg
from tests.integration.streaming.sinks.postgres import test_conformance as of_postgres
from tests.integration.streaming.sinks.upsert import test_sink as of_upsert
from tests.integration.streaming.sinks.write_ahead_log import test_delivery as of_write_ahead_log

IS_FAULT_MATRIX = "EXACTLYONCE_FAULT_MATRIX" in os.environ
pytestmark = [pytest.mark.slow, pytest.mark.timeout(6 * 3600 if IS_FAULT_MATRIX else 3600)]

forks = of_delta.forks  # a fixture of its sink's tests, and of the Iceberg sink's

SEED = int(os.environ.get("EXACTLYONCE_FAULT_SEED", "1"))
COMBINATIONS = 300  # of two faults, and of three


class EveryFault(SinkConformance):
    """The tests of this file, for the sink of another class."""

    def faults_of(self, tmp_path: Path, following: Sequence[int]) -> list[Fault]:
        folder = tmp_path / "counted"
        folder.mkdir()
        return single_faults(Rehearsal(self.make_sink(folder), folder, self.make_rows).run(), following=following)

    def rehearse_all(self, tmp_path: Path, cases: Iterable[Sequence[Fault]], *, set_back: bool = False) -> None:
        failed = []
        for number, case in enumerate(cases):
            try:
                self.rehearse(tmp_path, str(number), case, set_back=set_back)
            except AssertionError as error:
                failed.append(str(error))
            shutil.rmtree(tmp_path / str(number))
        assert not failed, f"seed {SEED}: {len(failed)} cases failed:\n" + "\n".join(failed[:20])

    def each_fault(self, tmp_path: Path) -> None:
        self.rehearse_all(tmp_path, ([fault] for fault in self.faults_of(tmp_path, (0, 3))))

    def each_fault_of_a_sink_that_was_set_back(self, tmp_path: Path) -> None:
        self.rehearse_all(tmp_path, ([fault] for fault in self.faults_of(tmp_path, (0,))), set_back=True)

    def random_pairs_of_faults(self, tmp_path: Path) -> None:
        self.rehearse_all(tmp_path, random.Random(SEED).sample(self.pairs_of_faults(tmp_path), COMBINATIONS))

    def random_triples_of_faults(self, tmp_path: Path) -> None:
        faults, generator = self.faults_of(tmp_path, (0, 2, 7)), random.Random(SEED)
        self.rehearse_all(tmp_path, (generator.sample(faults, 3) for _ in range(COMBINATIONS)))

    def each_longer_failure(self, tmp_path: Path) -> None:
        self.rehearse_all(tmp_path, ([fault] for fault in self.faults_of(tmp_path, (1, 12))))

    def each_longer_failure_of_a_sink_that_was_set_back(self, tmp_path: Path) -> None:
        self.rehearse_all(tmp_path, ([fault] for fault in self.faults_of(tmp_path, (3,))), set_back=True)

    def each_pair_of_faults(self, tmp_path: Path) -> None:
        self.rehearse_all(tmp_path, self.pairs_of_faults(tmp_path))

    def pairs_of_faults(self, tmp_path: Path) -> list[tuple[Fault, Fault]]:
        faults = [fault for fault in self.faults_of(tmp_path, (0,)) if fault.call == 1]
        return [(first, second) for first, second in combinations(faults, 2) if first.step != second.step]


IN_TEST_ALL = (
    "each_fault",
    "each_fault_of_a_sink_that_was_set_back",
    "random_pairs_of_faults",
    "random_triples_of_faults",
)
IN_FAULT_MATRIX = ("each_longer_failure", "each_longer_failure_of_a_sink_that_was_set_back", "each_pair_of_faults")


def all_faults_of(tests: type[SinkConformance]) -> type[SinkConformance]:
    """Return a class with the tests of this file, and none of the others, for the sink of a conformance test."""
    tests_of_its_own: dict[str, Any] = {name: None for name in dir(tests) if name.startswith("test_")}
    names = IN_FAULT_MATRIX if IS_FAULT_MATRIX else IN_TEST_ALL
    loses_nothing = {f"test_{name}_loses_and_doubles_nothing": getattr(EveryFault, name) for name in names}
    return type(tests.__name__, (tests, EveryFault), {**tests_of_its_own, **loses_nothing})


TestDelta = all_faults_of(of_delta.TestDeltaSink)
TestDeltaPartitions = all_faults_of(of_delta.TestDeltaPartitions)
TestDeltaUpserts = all_faults_of(of_delta.TestDeltaUpserts)
TestIceberg = all_faults_of(of_iceberg.TestIcebergSink)
TestIcebergPartitions = all_faults_of(of_iceberg.TestIcebergPartitions)
TestIcebergUpserts = all_faults_of(of_iceberg.TestIcebergUpserts)
TestOwnSink = all_faults_of(of_own.TestSqliteSink)
TestPostgres = all_faults_of(of_postgres.TestPostgresSink)
TestPostgresUpserts = all_faults_of(of_postgres.TestPostgresUpserts)
TestUpserts = all_faults_of(of_upsert.TestUpsertSink)
TestFencedUpserts = all_faults_of(of_upsert.TestFencedUpsertSink)
TestWriteAheadLog = all_faults_of(of_write_ahead_log.TestWriteAheadLog)
