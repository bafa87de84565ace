"""Brokers whose clocks differ by half an hour: to the next coordinator a transaction is old, or of the future."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.devkit.launch import log_path
from tests import class_archives
from tests.integration.brokers.cluster import NODES, BrokerCluster
from tests.integration.brokers.network import one_at_a_time, why_impossible
from tests.integration.brokers.trial import NoteProperty, Target, Trial

pytestmark = pytest.mark.cluster

#: Of brokers 1 and 2. Kafka refuses records that are an hour ahead of a broker's clock.
SKEW_SECONDS = {1: 1800, 2: -1800}
SOURCE = Path(__file__).with_name("skewed_clock.c")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    if reason := why_impossible():
        pytest.skip(reason)
    if shutil.which("cc") is None:
        pytest.skip("a clock that differs is made with a C compiler: apt-get install gcc")
    class_archives.ensure_broker()
    folder = tmp_path_factory.mktemp("skewed")
    library = folder / "skewed_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    around = {
        node: ("env", f"LD_PRELOAD={library}", f"SKEW_SECONDS={seconds}") for node, seconds in SKEW_SECONDS.items()
    }
    with one_at_a_time(), BrokerCluster(folder, around=around) as running:
        yield running


@pytest.mark.parametrize("step", ["after-begin", "after-pre-commit", "after-end-transaction"])
def test_the_next_coordinator_s_clock_differs(trial: Trial, note: NoteProperty, step: str) -> None:
    """Whichever of the three coordinates: the next one is half an hour or an hour ahead, or behind."""
    restarts = trial.pipeline.restarts
    batch = trial.hold(step)
    node = trial.broker(Target.COORDINATOR)
    note("case", f"clocks differ; SIGKILL of the transaction coordinator ({SKEW_SECONDS.get(node, 0):+d} s), `{step}`")
    with trial.hold_ups() as held:
        trial.cluster.kill(node)
        trial.pipeline.release()
        note("seconds to the next commit", f"{trial.wait_for_commit(batch):.1f}")
        trial.judge(note, held, restarts)
    trial.is_well = True


def test_the_clocks_differ(cluster: BrokerCluster) -> None:
    for node in NODES:
        log = log_path(cluster.data(node))
        last = re.findall(r"^\d{4}-\d\d-\d\dT[\d:.]+", log.read_text(), re.MULTILINE)[-1]
        ahead = datetime.fromisoformat(last).timestamp() - log.stat().st_mtime
        assert abs(ahead - SKEW_SECONDS.get(node, 0)) < 300, node
