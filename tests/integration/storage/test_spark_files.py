"""What Spark does with a checkpoint on S3, through the class of this package."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests import object_stores
from tests.integration.streaming import checkpoint_races
from tests.integration.streaming.checkpoint_races import WRITERS

RACES = 30


@pytest.mark.parametrize("server", ["moto", pytest.param("seaweedfs", marks=pytest.mark.slow)])
def test_of_all_who_create_a_file_of_a_checkpoint_one_does(
    server: str, request: pytest.FixtureRequest, spark_classes: None
) -> None:
    """Spark's own way has several winners in each race on S3."""
    environment = {
        **object_stores.environment_of_commands(request.getfixturevalue(server)),
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    command = [sys.executable, checkpoint_races.__file__, f"s3://bucket/{uuid.uuid4()}", str(RACES)]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr[-6000:]
    assert json.loads(said.stdout.splitlines()[-1]) == {
        "manager": "exactlyonce.ExclusiveCheckpointFileManager",
        "left": False,  # of one that was cancelled
        "created": RACES,
        "FileAlreadyExistsException": RACES * (WRITERS - 1),
    }
