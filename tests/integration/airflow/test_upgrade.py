"""The example of a nightly upgrade, and of a rollback by hand: ``dag.test()`` with real drivers under load."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.airflow.conftest import ROOT, Airflow
from tests.integration.streaming.harness import World
from tests.integration.upgrade.harness import Story

RUN = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
assert not bag.import_errors, bag.import_errors
run = bag.dags[sys.argv[2]].test(run_conf=json.loads(sys.argv[3]))
assert run.state == sys.argv[4], run.state
"""


@pytest.fixture
def story(world: World, tmp_path: Path) -> Iterator[Story]:
    """Give a pipeline that has never run, and end whatever of it runs afterwards."""
    made = Story(world, tmp_path)
    yield made
    made.end()


def run(airflow: Airflow, story: Story, dag: str, **params: Any) -> None:
    folder = str(ROOT / "dags" / "upgrade.py")
    conf = json.dumps({"pipeline": story.world.pipeline, **params})
    environment = {**story.world.names, "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags")}
    airflow.run([sys.executable, "-c", RUN, folder, dag, conf, "success"], environment)


def result(airflow: Airflow, dag: str, task_id: str) -> Any:
    rows = airflow.query(
        "SELECT value FROM xcom WHERE dag_id = ? AND key = 'return_value' AND task_id = ? ORDER BY timestamp",
        dag,
        task_id,
    )
    return json.loads(rows[-1][0])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_night_brings_the_new_version_once_and_a_rollback_brings_the_old_one_back(
    airflow: Airflow, story: Story
) -> None:
    with story.load():
        story.start()
        night = {"application": story.file("shouts"), "shadow_commits": 3, "stable_after": 2, "rehearse": True}
        run(airflow, story, "shop_upgrade", **night)
        done = result(airflow, "shop_upgrade", "upgrade")
        assert (done["outcome"], done["changed"], story.in_use()) == ("done", True, "shouts")
        assert done["shadow"]["intended"]
        assert done["shadow"]["columns_left_out"] == ["shout"]
        driver = story.state().token

        run(airflow, story, "shop_upgrade", **night)
        again = result(airflow, "shop_upgrade", "upgrade")
        assert (again["outcome"], again["changed"]) == ("done", False), "a night without a new version"
        assert story.state().token == driver

        run(airflow, story, "shop_rollback")
        back = result(airflow, "shop_rollback", "rollback")
        assert (back["outcome"], back["savepoint"], story.in_use()) == ("rolled-back", done["savepoint"], "first")
    story.drain()
    story.run("stop")
    assert story.check() == ["first", "shouts", "first"]
