"""``exactlyonce check`` as users run it, against savepoints of a pipeline on Kafka."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel

from airflow_provider_exactlyonce.checkpoint import request
from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
from airflow_provider_exactlyonce.checkpoint.restore import RestoreRequest, restore
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.records import ledger_topic
from tests import commands
from tests.integration.streaming.conftest import world
from tests.integration.streaming.harness import JOBS, World, end_offsets

__all__ = ["world"]  # a fixture

Check = Callable[..., commands.Said]


@pytest.fixture
def check(spark: object, world: World, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Give ``exactlyonce check`` in this process, whose JVM plans the job."""

    def run(*arguments: str, config: Mapping[str, str] = world.config, code: int = 0) -> commands.Said:
        for name, value in {**world.names, "EXACTLYONCE_KAFKA": json.dumps(dict(config))}.items():
            monkeypatch.setenv(name, value)
        return commands.run("check", *arguments, code=code)

    return run


def everything(world: World) -> tuple[dict[str, tuple[int, int]], list[dict[int, int]]]:
    """Return what a check must leave as it is: the home's files, and where topics and ledger end."""
    files = {
        str(file.relative_to(world.home)): (file.stat().st_size, file.stat().st_mtime_ns)
        for file in world.home.rglob("*")
        if file.is_file()
    }
    topics = (world.source, world.sink, ledger_topic(world.pipeline))
    return files, [end_offsets(world.config, topic, IsolationLevel.READ_UNCOMMITTED) for topic in topics]


def saved(world: World) -> Savepoint:
    world.send(300)
    driver = world.start()
    assert driver.wait() == 0, driver.output()[-3000:]
    return request.take(Home(world.home), world.pipeline, world.config)


def test_a_job_is_judged_by_the_savepoints_id_and_by_its_directory_and_nothing_is_touched(
    world: World, check: Check, tmp_path: Path
) -> None:
    savepoint = saved(world)
    assert savepoint.plan is not None, "it was taken while the pipeline was stopped"
    before = everything(world)
    text = (JOBS / "counts.py").read_text()

    changed = tmp_path / "changed.py"
    changed.write_text(text.replace("F.sum(", "F.max("))
    answer = check(str(changed), "--against", savepoint.id, "--json", code=RefusedError.exit_code).body
    assert (answer["verdict"], answer["savepoint"], answer["pipeline"]) == (
        "incompatible",
        savepoint.id,
        world.pipeline,
    )
    worst = answer["findings"][0]
    assert worst["aspect"] == "aggregate: functions"
    assert f"sum({world.source}.v)" in worst["old"]
    assert f"max({world.source}.v)" in worst["new"]
    assert "a pipeline of its own" in worst["way_out"]

    moved = tmp_path / "elsewhere" / "mine"
    moved.parent.mkdir()
    shutil.copytree(Home(world.home).savepoints / savepoint.id, moved)
    nobody = {"bootstrap.servers": "127.0.0.1:1"}
    printed = check(str(JOBS / "counts.py"), "--against", str(moved), config=nobody).out
    assert printed.startswith(f"{JOBS / 'counts.py'} against mine: compatible\n"), printed
    assert "the same in both: pipeline, " in printed
    assert everything(world) == before

    home = Home(world.home)
    restore(home, world.pipeline, world.config, RestoreRequest(savepoint=savepoint.id))
    shutil.rmtree(home.lineages / savepoint.lineage)
    again = request.take(home, world.pipeline, world.config)
    assert (again.plan, again.job_hash) == (savepoint.plan, savepoint.job_hash), (
        "nobody has started the restored lineage"
    )


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("x = (\n", 1, "SyntaxError"),
        ("x = 1\n\nmissing.name\n", 3, "NameError"),
        ("import sys\nsys.exit(3)\n", 2, "__name__ == '__main__'"),
        (
            "from airflow_provider_exactlyonce.streaming import KafkaSource\nKafkaSource('t', schema='x INT')\n",
            None,
            "no pipeline",
        ),
    ],
)
def test_a_job_that_can_not_be_imported_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int | None, message: str
) -> None:
    job = tmp_path / "job.py"
    job.write_text(text)
    printed = commands.run("check", str(job), "--against", str(tmp_path), code=RefusedError.exit_code).err
    assert message in printed
    assert line is None or f"{job}:{line}:" in printed
