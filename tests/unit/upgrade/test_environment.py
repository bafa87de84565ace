"""What an upgrade starts in processes of their own, and how their failures come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.upgrade import shadow_main, shadow_run
from airflow_provider_exactlyonce.upgrade.environment import UpgradeEnvironment, check_version, run_to_end


def launch(*command: str) -> Launch:
    return Launch(command=command, printable=" ".join(command), environment={"SAID": "hello"})


def test_a_program_is_run_to_its_end_and_its_output_is_its_owners(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "shadow.log"
    assert run_to_end(launch("sh", "-c", "echo $SAID; exit 3"), log) == 3
    assert log.read_text() == "hello\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_job_that_cant_be_checked_is_refused_in_the_commands_words(tmp_path: Path) -> None:
    tools = UpgradeEnvironment(config=dict, launch=lambda file, _: launch(file))
    job = tmp_path / "job.py"
    job.write_text("import nothing_like_this\n")
    with pytest.raises(RefusedError) as raised:
        check_version(tools, str(job), "p", tmp_path / "1-ab")
    said = str(raised.value)
    assert said.startswith(f"{job}:1: importing it fails: ModuleNotFoundError")
    assert "exactlyonce help" not in said


def test_the_function_of_a_comparison_is_loaded_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "intended.py"
    file.write_text("def half(row):\n    return {'n': row['n'] / 2}\n\nnone = 1\n")
    assert shadow_main._function(f"{file}:half")({"n": 4}) == {"n": 2}
    for place, said in ((f"{file}:none", "has no function none"), (f"{tmp_path}/no.py:half", "no such Python file")):
        with pytest.raises(RefusedError, match=said):
            shadow_main._function(place)


def test_a_report_for_people_says_what_was_compared_and_shows_the_differences() -> None:
    report = {
        "commits": [4, 6],
        "base": "savepoint 3-ab (commit 3)",
        "delivered": 10,
        "equal": 8,
        "columns": ["k", "n"],
        "columns_left_out": ["shout"],
        "counts": {"changed": 1, "changed.n": 1, "missing": 1},
        "examples": {
            "missing": [{"topic": "t", "key": "k1", "content": {"k": 1, "n": 1}}],
            "changed": [
                {
                    "topic": "t",
                    "key": "k2",
                    "delivered": {"k": 2, "n": 2},
                    "recomputed": {"k": 2, "n": 3},
                    "columns": ["n"],
                }
            ],
        },
        "unintended": ["missing"],
        "intended": False,
    }
    assert shadow_run.text(report).splitlines() == [
        "shadow run of commits 4 to 6: 10 rows were delivered, 8 are equal, 1 missing, 0 extra, 1 changed; not "
        "intended: missing",
        "repeated from savepoint 3-ab (commit 3)",
        "compared: k, n",
        "not compared: shout",
        "1 changed in n",
        "missing  t k1: {'k': 1, 'n': 1}",
        "changed  t k2: n: 2 -> 3  in {'k': 2, 'n': 2}",
    ]
