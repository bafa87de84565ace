"""The model of the protocol names the code's steps, holds, and finds what a rule less would break."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.failpoints import NAMES, SINK_NAMES
from airflow_provider_exactlyonce.kafka.transaction import TRANSITIONS

MODEL = Path(__file__).parents[2] / "docs/model"
README = (MODEL / "README.md").read_text()
SOURCE = (MODEL / "protocol.pml").read_text()
SINKS = "".join((MODEL / f"{name}.pml").read_text() for name in ("sinks", "locked_sink", "table_sink"))
HAS_SPIN = shutil.which("spin") is not None and shutil.which("gcc") is not None


def test_every_fail_point_has_its_place_in_the_model() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| `(.+)` \|$", README, re.MULTILINE)

    modelled = [name for name in (*NAMES, *SINK_NAMES) if name != "after-delivery"]  # which follows a decided commit
    assert [name for name, _ in rows] == modelled
    assert [place for name, place in rows if place not in (SOURCE if name in NAMES else SINKS)] == []


def test_every_transition_of_the_producer_session_has_its_place_in_the_model() -> None:
    rows = re.findall(r"^\| ([a-z]+) \| ([a-z ]+) \| ([a-z]+) \| `(.+)` \|$", README, re.MULTILINE)

    assert [row[:3] for row in rows] == [
        (old.value, event.value, new.value) for (old, event), new in TRANSITIONS.items()
    ]
    assert [place for *_, place in rows if place not in SOURCE] == []


@pytest.mark.parametrize(("model", "source", "count"), [("protocol", SOURCE, 8), ("sinks", SINKS, 12)])
def test_every_mutation_of_a_model_is_checked_explained_and_has_a_result(model: str, source: str, count: int) -> None:
    mutations = set(re.findall(r"(?:ifdef|ifndef|defined)\W+([A-Z]+(?:_[A-Z]+)+)", source))

    assert len(mutations) == count
    for mutation in mutations:
        assert mutation in (MODEL / "check.sh").read_text()
        assert f"| `{mutation}` |" in README
        assert re.search(rf"^\| {model} \| {mutation} \|.*\| counterexample", README, re.MULTILINE)


def run_checker(tmp_path: Path, model: str, *definitions: str) -> str:
    commands = (
        ["spin", *definitions, "-a", str(MODEL / f"{model}.pml")],
        ["gcc", "-w", "-O1", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"],
        ["./pan", "-m100000", "-w22"],
    )
    return [
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout for command in commands
    ][-1]


@pytest.mark.skipif(not HAS_SPIN, reason="spin or gcc is not installed; docs/model/README.md has the results")
def test_the_protocol_holds_in_small_bounds(tmp_path: Path) -> None:
    output = run_checker(tmp_path, "protocol", "-DDRIVERS=1", "-DUNITS=3", "-DTRIES=3", "-DTROUBLES=2")

    assert "errors: 0" in output
    assert "Search not completed" not in output


@pytest.mark.slow
@pytest.mark.skipif(not HAS_SPIN, reason="spin or gcc is not installed; docs/model/README.md has the results")
def test_a_commit_in_doubt_that_is_aborted_has_a_counterexample(tmp_path: Path) -> None:
    output = run_checker(
        tmp_path, "protocol", "-DDRIVERS=1", "-DUNITS=2", "-DTRIES=3", "-DTROUBLES=2", "-DABORT_AFTER_COMMIT"
    )

    assert "assertion violated" in output


@pytest.mark.parametrize(
    "bounds", [["-DDRIVERS=2", "-DTROUBLES=1"], ["-DTABLES", "-DDRIVERS=1", "-DTROUBLES=2"]], ids=["locks", "tables"]
)
@pytest.mark.skipif(not HAS_SPIN, reason="spin or gcc is not installed; docs/model/README.md has the results")
def test_several_sinks_hold_in_small_bounds(tmp_path: Path, bounds: list[str]) -> None:
    output = run_checker(tmp_path, "sinks", "-DUNITS=2", "-DSINKS=1", *bounds)

    assert "errors: 0" in output
    assert "Search not completed" not in output


@pytest.mark.slow
@pytest.mark.skipif(not HAS_SPIN, reason="spin or gcc is not installed; docs/model/README.md has the results")
def test_a_ledger_that_commits_before_the_other_sinks_has_a_counterexample(tmp_path: Path) -> None:
    output = run_checker(tmp_path, "sinks", "-DDRIVERS=2", "-DUNITS=2", "-DSINKS=1", "-DTROUBLES=1", "-DLEDGER_FIRST")

    assert "assertion violated" in output
