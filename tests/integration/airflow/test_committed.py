"""The example that committed ranges schedule: ``dag.test()`` of its DAGs, with events as the watcher makes them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.ledger.following import LedgerFollower
from airflow_provider_exactlyonce.ledger.ranges import Unit
from tests.integration.airflow.conftest import ROOT, Airflow
from tests.integration.hand_written import HandWrittenPipeline
from tests.integration.streaming.harness import read_committed

NEW_YEAR = 1_767_225_600_000  # 2026-01-01T00:00:00Z

RUN = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.models.asset import AssetActive, AssetEvent, AssetModel
from airflow.utils.session import create_session
with create_session() as session:
    for uri, payloads in json.loads(sys.argv[2]).items():
        asset = AssetModel(name=uri, uri=uri)
        session.add(asset)
        session.add(AssetActive.for_asset(asset))
        session.flush()
        session.add_all(
            AssetEvent(asset_id=asset.id, extra={"from_trigger": True, "payload": payload}) for payload in payloads
        )
bag = DagBag(dag_folder=sys.argv[1])
assert not bag.import_errors, bag.import_errors
for name in ("export_committed", "export_committed", "publish_hours", "report_hour"):
    run = bag.dags[name].test()
    assert run.state == "success", (name, run.state)
"""


def ranges_of(pipeline: HandWrittenPipeline, unit: Unit | None) -> list[dict[str, object]]:
    follower = LedgerFollower(pipeline.config, pipeline.name, unit, None)
    follower.beginning(newest=False)
    ranges = [committed.to_json() for committed, _ in follower.ranges(100)]
    follower.close()
    return ranges


@pytest.mark.slow
def test_the_example_exports_each_range_once_and_hands_on_the_hours(
    airflow: Airflow, kafka_config: Mapping[str, str], make_topic: Callable[..., str], tmp_path: Path
) -> None:
    pipeline = HandWrittenPipeline(kafka_config, source=make_topic(partitions=1), sink=make_topic(partitions=2))
    pipeline.claim()
    for at in range(1, 6):
        pipeline.producer.begin_transaction()
        pipeline.send(pipeline.sink, {at % 2: [(b"aborted", b"aborted")]})
        pipeline.producer.abort_transaction(30)
        pipeline.commit({0: 1, 1: at}, read_up_to={0: at}, watermark=NEW_YEAR + at * 1_800_000)
    file = tmp_path / "shop_committed.py"
    file.write_text((ROOT / "dags" / "shop_committed.py").read_text().replace('"shop-totals"', f'"{pipeline.name}"'))
    ranges, hours = ranges_of(pipeline, None), ranges_of(pipeline, "hour")
    asset = f"exactlyonce://kafka_default/{pipeline.name}"
    # The third is told twice, and the last one before the others.
    events = json.dumps({asset: [ranges[4], *ranges[:3], *ranges[2:4]], f"{asset}/hour": hours})
    environment = {"AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path), "HOME": str(tmp_path)}
    airflow.run([sys.executable, "-c", RUN, str(file), events], environment)

    exports = tmp_path / ".exactlyonce" / "exports"
    assert {export.name for export in exports.iterdir()} == {f"{committed['key']}.jsonl" for committed in ranges}
    exported = [json.loads(line) for export in exports.iterdir() for line in export.read_text().splitlines()]
    readable = [
        [record.partition, record.offset, (record.value or b"").decode()]
        for record in read_committed(kafka_config, pipeline.sink)
    ]
    assert sorted(exported) == sorted(readable)
    sql = "SELECT run_id, value FROM xcom WHERE dag_id = 'export_committed' AND key = 'return_value' ORDER BY timestamp"
    first, second = (json.loads(value) for _, value in airflow.query(sql))
    assert first == [f"{committed['key']}.jsonl" for committed in ranges]
    assert second == [], "what has been told before is dropped"
    sql = "SELECT e.partition_key FROM asset_event e JOIN asset a ON a.id = e.asset_id WHERE a.name = ?"
    handed_on = {key for (key,) in airflow.query(sql, f"{pipeline.name}-hours")}
    assert handed_on == {"2025-12-31T23:00:00", "2026-01-01T00:00:00", "2026-01-01T01:00:00"}
