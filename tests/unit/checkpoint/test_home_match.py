from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.checkpoint.home_match import is_moved, mismatch_of
from airflow_provider_exactlyonce.control import moving
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.control.moving import HomeDocument, Move
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from tests.ledger_records import claim_record, commit_record

RUN = claim_record(3, lineage="L", home="H", home_path="/homes/p")
TAIL = LedgerTail(
    cluster_id="C", topic_id="T", end_offset=9, claim=RUN, claim_offset=1, commit=commit_record(5), commit_offset=7
)
LINEAGE = Lineage(id="L", cluster_id="C", ledger_topic_id="T", last_commit=5)
FITTING: dict[str, Any] = {
    "pipeline": "p", "home_path": "/homes/p", "home_id": "H", "home_pipeline": "p", "lineage": LINEAGE, "tail": TAIL,
    "accept_home": False,
}  # fmt: skip


def why_not(**changes: Any) -> str | None:
    """Return why a start is refused when something does not fit, None when it is not."""
    mismatch = mismatch_of(**{**FITTING, **changes})
    return None if mismatch is None else mismatch.message


def test_a_home_that_fits_its_ledger_may_start() -> None:
    assert why_not() is None


def test_a_new_pipeline_may_start() -> None:
    for tail in (None, LedgerTail(cluster_id="C", topic_id="T", end_offset=0)):
        assert why_not(home_id=None, home_pipeline=None, lineage=None, tail=tail) is None


def test_a_home_whose_first_start_was_killed_before_its_claim_may_start() -> None:
    assert why_not(lineage=Lineage(id="L"), tail=replace(TAIL, claim=None, commit=None)) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"home_pipeline": "q"}, "home of pipeline q"),
        ({"home_id": None, "home_pipeline": None, "lineage": None}, "is empty, but pipeline p has a home: /homes/p"),
        ({"home_id": "other"}, "is not the home of pipeline p"),
        ({"home_path": "/tmp/copy"}, "/tmp/copy is a copy"),
        ({"lineage": replace(LINEAGE, id="M")}, "points to lineage M; run 3 of pipeline p went on in lineage L"),
        ({"tail": None}, "was deleted"),
        ({"tail": replace(TAIL, topic_id="U")}, "was recreated: its topic has id U"),
        ({"tail": replace(TAIL, cluster_id="D")}, "this is Kafka cluster D"),
        ({"lineage": replace(LINEAGE, last_commit=6)}, "ends at commit 5; /homes/p has seen commit 6"),
        ({"lineage": Lineage(id="L", cluster_id="C", ledger_topic_id="T"), "tail": None}, "was deleted"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    assert reason in str(why_not(**changes))


def test_a_moved_home_may_start_when_that_is_said() -> None:
    assert why_not(home_path="/moved", accept_home=True) is None


def test_a_restored_lineage_starts_once_and_the_one_it_replaced_never_again() -> None:
    restored = replace(LINEAGE, id="M", parent="L", parent_run=3, parent_commit=5)
    assert why_not(lineage=restored) is None
    for since in (replace(restored, parent_run=2), replace(restored, parent_commit=4)):
        assert "went on in lineage L" in str(why_not(lineage=since))
    assert "abandoned for M" in str(why_not(lineage=replace(LINEAGE, abandoned_for="M")))


def test_a_home_that_was_moved_goes_on_after_the_run_that_it_was_moved_after(tmp_path: Path) -> None:
    home, document = Home(tmp_path / "new"), HomeDocument(id="H", pipeline="p")
    moving.finish(home.path, document, Move(source="/homes/p", target=str(home.path), lineage="L", run=3))
    assert is_moved(home, TAIL)
    assert not is_moved(home, replace(TAIL, claim=replace(RUN, run=4))), "the pipeline has gone on elsewhere"
    assert not is_moved(home, replace(TAIL, claim=None))
    (tmp_path / "by hand").mkdir()
    (tmp_path / "by hand/home.json").write_bytes((home.path / "home.json").read_bytes())
    assert not is_moved(Home(tmp_path / "by hand"), TAIL), "it was copied since"
    assert not is_moved(Home(tmp_path / "no home"), TAIL)
