"""Gates that wait while the triggerer is killed; the test puts this file beside the example."""

import os
from typing import Any

from airflow.sdk import DAG

from airflow_provider_exactlyonce.sensors.commit_gate import CommitGateSensor

with DAG("gates", schedule=None, params={"commit": 0}):
    options: dict[str, Any] = {"pipeline": os.environ["TEST_PIPELINE"], "timeout": 300}
    CommitGateSensor(task_id="deferred", commit="{{ params.commit }}", deferrable=True, **options)
    CommitGateSensor(task_id="without_worker", commit="{{ params.commit }}", start_from_trigger=True, **options)
    CommitGateSensor(task_id="never", commit=10**6, deferrable=True, **{**options, "timeout": 12})
    CommitGateSensor(task_id="up_to_now", up_to_now=True, deferrable=True, **options)
