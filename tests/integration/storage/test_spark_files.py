"""What Spark does with a checkpoint in a bucket, through the classes of this package, and on HDFS."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests import azurite, object_stores
from tests.hadoop_cluster import HadoopCluster
from tests.integration.streaming import checkpoint_races
from tests.integration.streaming.checkpoint_races import WRITERS

RACES = 5


S3 = "exactlyonce.ExclusiveCheckpointFileManager"
GCS = "exactlyonce.UploadingCheckpointFileManager"
RENAMING = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "manager"),
    [("moto", S3), ("seaweedfs", S3), ("gcs", GCS), ("azure", RENAMING), ("hadoop", RENAMING)],
)
def test_of_all_who_create_a_file_of_a_checkpoint_one_does(
    server: str, manager: str, request: pytest.FixtureRequest
) -> None:
    """Spark's own way has several winners in each race on S3; on HDFS and Azure it is the one that is used."""
    running = request.getfixturevalue(server)
    if isinstance(running, HadoopCluster):
        root, address = running.hdfs, {}
    elif server == "gcs":
        root, address = "gs://bucket", object_stores.gcs_environment(running)
    elif server == "azure":
        root, address = "abfss://bucket", azurite.environment(running)
    else:
        root, address = "s3://bucket", object_stores.environment(running)
    environment = {**object_stores.environment_of_commands(address), "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, checkpoint_races.__file__, f"{root}/{uuid.uuid4()}", str(RACES)]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr[-6000:]
    ended = json.loads(said.stdout.splitlines()[-1])
    assert ended.pop("manager") == manager
    assert ended.pop("left") is False, "of one that was cancelled"
    assert ended.pop("created") == RACES
    # Azure's says of a rename that failed only that it did.
    assert ended.keys() <= {"FileAlreadyExistsException", *(["IOException"] if server == "azure" else [])}
    assert sum(ended.values()) == RACES * (WRITERS - 1)
