"""What a shadow run loads, and what it says to people."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.upgrade import shadow_main, shadow_run


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
