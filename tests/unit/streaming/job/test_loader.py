"""Which pipeline of a job's file is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.streaming.job import loader
from tests import commands

HEAD = "from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline\n"
DECLARED = """
@pipeline(name="{name}", source=KafkaSource("in"), sink=KafkaSink("out-{name}", key="key"))
def {name}(events):
    return events
"""


@pytest.fixture
def one(tmp_path: Path) -> str:
    return declaring(tmp_path, "shop")


@pytest.fixture
def two(tmp_path: Path) -> str:
    return declaring(tmp_path, "shop", "stock")


def declaring(folder: Path, *names: str) -> str:
    file = folder / f"{len(names)}.py"
    file.write_text(HEAD + "".join(DECLARED.format(name=name) for name in names))
    return str(file)


def test_the_pipeline_that_is_named_is_meant_and_without_a_name_the_only_one(one: str, two: str) -> None:
    assert loader.load(one).name == loader.load(one, "shop").name == loader.load(two, "shop").name == "shop"
    assert loader.load(two, "stock").name == loader.load(two, if_several="stock").name == "stock"
    assert loader.load(one, if_several="stock").name == "shop", "whoever asks so compares the names"


def test_what_a_job_prints_is_no_part_of_a_commands_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Path(declaring(tmp_path, "shop"))
    job.write_text(f"print('imported')\n{job.read_text()}")
    assert loader.load(str(job)).name == "shop"
    with loader.running(str(job), "planning it"):
        print("planned")
    print("the answer")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("the answer\n", "imported\nplanned\n")


def test_what_is_named_and_not_declared_is_refused_with_what_is(one: str, two: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"1\.py declares no pipeline stock, but shop; name one of these"):
        loader.load(one, "stock")
    for of_two in ({"name": "sotck"}, {"if_several": "sotck"}):
        with pytest.raises(RefusedError, match=r"2\.py declares no pipeline sotck, but shop, stock; name one of these"):
            loader.load(two, **of_two)
    with pytest.raises(RefusedError, match=r"2\.py declares several pipelines: shop, stock; name one with --pipeline"):
        loader.load(two)
    for name in (None, "shop"):
        with pytest.raises(RefusedError, match="declares no pipeline: none of its names"):
            loader.load(declaring(tmp_path), name)


@pytest.mark.parametrize(
    "command", [["explain"], ["audit-sinks"], ["check", "--against", "/nowhere/40-ab"]], ids=" ".join
)
def test_no_command_judges_another_pipeline_than_the_one_that_is_named(
    one: str, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "reached", lambda servers: {})
    said = commands.run(*command, one, "--pipeline", "stock", code=RefusedError.exit_code)
    assert "declares no pipeline stock, but shop" in said.err
