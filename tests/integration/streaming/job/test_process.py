"""Jobs that can't be run, in processes of their own: how they end, and what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming import settings

DECLARED = """
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline

@pipeline(name="shop", source=KafkaSource("a"), sink=KafkaSink("b"), output_mode="{mode}")
def shop(records):
    return records
"""
MISSPELT = DECLARED.format(mode="updat")
NEVER_RUN = DECLARED.format(mode="update")


def ended(command: list[str], **environment: str) -> tuple[int, list[str]]:
    """Run a job where there is no Java, so that it can't have started Spark; return exit code and lines of stderr."""
    free = {name: value for name, value in os.environ.items() if name != settings.TOKEN_VARIABLE}
    done = subprocess.run(
        command, env={**free, "JAVA_HOME": "/nowhere", **environment}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "", "stdout is the job's"
    return done.returncode, done.stderr.splitlines()


def by_hand(job: Path) -> list[str]:
    return [sys.executable, *settings.program_of(str(job))]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (MISSPELT, ":4", "output_mode='updat' of pipeline shop: one of append, update, complete"),
        (NEVER_RUN, "", "declares pipeline shop and does not run it: end the file with .*: shop.main()"),
        ("x = 1\n", "", "declares no pipeline and runs none"),
        ("def f(:\n", ":1", "SyntaxError: invalid syntax"),
        ("\nimport absent_package\n", ":2", "ModuleNotFoundError: No module named 'absent_package'; install it where"),
        ("len(3)\n", ":1", r"TypeError: object of type 'int' has no len\(\); repair the job"),
        ("def f():\n    return {}['a']\nf()\n", ":2", "KeyError: 'a'"),
        ("open('/absent/file')\n", ":1", "FileNotFoundError: .*/absent/file"),
    ],
)
def test_a_job_that_can_not_be_run_ends_with_64_and_one_sentence_that_names_its_line(
    tmp_path: Path, text: str, line: str, said: str
) -> None:
    job = tmp_path / "job.py"
    job.write_text(text)
    code, lines = ended(by_hand(job))
    assert code == RefusedError.exit_code
    assert len(lines) == 1, "one sentence"
    assert lines[0].partition(" ERROR RefusedError: ")[2].startswith(f"{job}{line}")
    assert re.search(said, lines[0])


def test_what_may_pass_by_itself_is_no_refusal_and_the_jobs_own_exit_code_stays(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("raise ConnectionError('the registry does not answer')\n")
    code, lines = ended(by_hand(job))
    assert (code, lines[-1]) == (1, "ConnectionError: the registry does not answer")
    job.write_text("import sys\nsys.exit(3)\n")
    assert ended(by_hand(job)) == (3, [])


def test_a_job_imports_what_lies_beside_it_and_is_main(tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text("EXIT_CODE = 5\n")  # as one of our own modules is called
    job = tmp_path / "job.py"
    job.write_text(
        "import sys, settings\nif __name__ == '__main__' and sys.argv == [__file__, '--x']:\n    sys.exit(5)\n"
    )
    assert ended([*by_hand(job), "--x"]) == (5, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [(MISSPELT, "output_mode='updat'"), (NEVER_RUN, "does not run it"), (f"{NEVER_RUN}\nlen(3)\n", "TypeError")],
)
def test_spark_submit_by_hand_ends_with_64_for_what_comes_after_the_import_of_this_package(
    tmp_path: Path, text: str, said: str
) -> None:
    job = tmp_path / "job.py"
    job.write_text(text)
    code, lines = ended([sys.executable, str(job)], PYSPARK_GATEWAY_PORT="1")  # as Spark's launcher starts it
    assert (code, len(lines)) == (RefusedError.exit_code, 1)
    assert said in lines[0]


def test_a_python_without_this_package_is_named(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("")
    code, lines = ended([sys.executable, "-S", "-E", *settings.program_of(str(job))])
    assert code == RefusedError.exit_code
    assert sys.executable in lines[0]
    assert "spark.pyspark.driver.python" in lines[0]
