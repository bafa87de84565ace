"""``make demo-cluster``, from its first line to its report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import MissingRequirementError
from tests import hadoop_cluster
from tests.integration.test_demo import demo, started_by

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]


def test_the_main_job_on_a_cluster_is_right_when_a_leader_is_killed_in_mid_batch(tmp_path: Path) -> None:
    try:
        hadoop_cluster.jar_directory()
    except MissingRequirementError as error:
        pytest.skip(f"there is no HDFS and YARN: {error}")
    with demo(tmp_path, "demo.cluster") as process:
        text, _ = process.communicate()

    assert process.returncode == 0, text
    killed = re.search(
        r"broker (\d) is killed \(SIGKILL\): it leads partition \d of shop.totals, .* not committed", text
    )
    assert killed, text
    assert re.search(rf"commit \d+ came without broker {killed[1]}, ", text)
    assert "task stream waits in the triggerer" in text
    assert "the pipeline's home, as its ledger has it: s3://bucket/pipelines/shop-totals" in text
    assert re.search(r"^records in +69,659$", text, re.MULTILINE)
    assert re.search(r"^kills, restarts +1, 0$", text, re.MULTILINE)
    assert re.search(r"^rows doubled +0$", text, re.MULTILINE)
    assert re.search(r"^money out, \$ +2,500,315\.63$", text, re.MULTILINE)
    assert "\nRight: 1 kill, and every purchase counts once" in text
    assert started_by(tmp_path) == {}
    assert list(hadoop_cluster.working_in(tmp_path)) == [], "these inherit nothing of the demo's environment"
    assert list(tmp_path.iterdir()) == []
