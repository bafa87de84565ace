"""What Airflow itself shows of the provider."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from airflow_provider_exactlyonce.get_provider_info import get_provider_info


def test_airflow_providers_get_shows_it(tmp_path: Path) -> None:
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    arguments = ["providers", "get", "airflow-provider-exactlyonce", "--full", "--output", "json"]
    command = [sys.executable, "-m", "airflow", *arguments]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    [provider] = json.loads(shown.stdout[shown.stdout.index("[") :])
    assert provider["description"] == get_provider_info()["description"].rstrip(".")  # so Airflow prints them
