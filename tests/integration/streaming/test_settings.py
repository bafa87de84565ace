"""What importing the settings costs."""

from __future__ import annotations

import subprocess
import sys


def test_reading_the_settings_loads_no_client_library() -> None:
    program = (
        "import sys, airflow_provider_exactlyonce.streaming.settings;"
        "print([m for m in ('pyspark', 'kafka', 'confluent_kafka', 'numpy', 'airflow') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
