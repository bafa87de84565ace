"""The example of a Delta table and an endpoint: ``dag.test()`` with a real driver that is killed, and a compaction."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_provider_exactlyonce.failpoints import VARIABLE as FAILPOINTS
from tests.http_target import Server
from tests.integration.airflow.conftest import ROOT, Airflow
from tests.integration.streaming.harness import World

RUN = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
assert not bag.import_errors, bag.import_errors
run = bag.dags["payments_archive"].test(run_conf=json.loads(sys.argv[2]))
assert run.state == "success", run.state
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_stream_goes_through_the_dag_and_its_small_files_become_few(
    airflow: Airflow,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    source, table = make_topic(partitions=2), tmp_path / "table"
    world = World(config=kafka_config, pipeline="payments-archive", source=source, sink="", home=tmp_path / "home")
    world.send(400)
    with Server.running() as server:
        environment = {
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
            "ARCHIVE_SOURCE": source,
            "ARCHIVE_PATH": str(tmp_path / "elsewhere"),  # what the run asks for goes before it
            "ARCHIVE_LOG": str(tmp_path / "log"),
            "ARCHIVE_URL": server.url,
            "ARCHIVE_BATCH": "100",
            FAILPOINTS: "after-sink-commit:run=1:batch=1",
        }
        conf = json.dumps({"home": str(world.home), "table": str(table)})
        airflow.run([sys.executable, "-c", RUN, str(ROOT / "dags" / "payments_archive.py"), conf], environment, 300)
        assert sorted(server.ids) == list(range(400))
    delta_table = DeltaTable(table)
    assert sorted(delta_table.to_pyarrow_table()["id"].to_pylist()) == list(range(400))
    assert len(delta_table.file_uris()) == 4, "one for each value of partition_by"
    assert [run.run for run in world.ledger()[1]] == [1, 2]
