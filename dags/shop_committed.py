"""What a pipeline has committed, range by range, and hour by hour.

``export_committed`` writes exactly the records of each committed range to a file, and drops a range that is told twice.
``publish_hours`` turns the hours that the watermark has completed into partitions, and ``report_hour`` runs for each.
"""

# [START dag_shop_committed]
import json
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, PartitionedAssetTimetable, task

from airflow_provider_exactlyonce.assets.pipeline import committed_ranges, pipeline_asset

PIPELINE = "shop-totals"
FOLDER = Path("~/.exactlyonce/exports").expanduser()

committed = pipeline_asset(PIPELINE)
completed = pipeline_asset(PIPELINE, partition="hour")
hours = Asset(f"{PIPELINE}-hours")

with DAG("export_committed", schedule=[committed], max_active_runs=1):

    @task(inlets=[committed], retries=2)
    def export(**context: Any) -> list[str]:
        from airflow_provider_exactlyonce.hooks.kafka import client_config
        from airflow_provider_exactlyonce.kafka.range_reader import read_range

        written = []
        FOLDER.mkdir(parents=True, exist_ok=True)
        for found in committed_ranges(committed, context):
            file = FOLDER / f"{found.key}.jsonl"
            if file.exists():
                print(f"commit {found.last} has been told before")
                continue
            records = list(read_range(client_config("kafka_default"), found.sink))
            if len(records) != found.rows:
                raise ValueError(f"{len(records)} records and not {found.rows}: somebody else writes to the topic, too")
            lines = [[record.partition(), record.offset(), (record.value() or b"").decode()] for record in records]
            unfinished = file.with_suffix(".part")
            unfinished.write_text("".join(json.dumps(line) + "\n" for line in lines))
            unfinished.rename(file)
            written.append(file.name)
        return written

    export()

with DAG("publish_hours", schedule=[completed], max_active_runs=1):

    @task(inlets=[completed], outlets=[hours])
    def publish(**context: Any) -> None:
        for found in committed_ranges(completed, context):
            context["outlet_events"][hours].add_partitions(list(found.partitions))

    publish()

with DAG("report_hour", schedule=PartitionedAssetTimetable(assets=hours)):

    @task
    def report(dag_run: Any = None) -> str:
        return f"everything of the hour from {dag_run.partition_key} on is committed"

    report()
# [END dag_shop_committed]
