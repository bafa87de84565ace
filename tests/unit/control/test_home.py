from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.exceptions import RefusedError


def test_an_empty_directory_is_no_home(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert (home.identity(), home.pipeline(), home.current()) == (None, None, None)


def test_a_new_home_has_a_lineage_whose_id_is_sparks_query_id(tmp_path: Path) -> None:
    home = Home(tmp_path / "h")
    lineage = home.create("p")
    assert home.current() == lineage
    assert home.pipeline() == "p"
    assert json.loads((home.checkpoint(lineage.id) / "metadata").read_text()) == {"id": lineage.id}


def test_two_drivers_that_create_one_home_get_one_lineage(tmp_path: Path) -> None:
    first, second = Home(tmp_path).create("p"), Home(tmp_path).create("p")
    assert first == second


def test_the_newest_commit_is_remembered(tmp_path: Path) -> None:
    home = Home(tmp_path)
    lineage = home.create("p")
    home.remember(Lineage(id=lineage.id, cluster_id="c", ledger_topic_id="t", last_commit=3))
    home.note_commit(lineage.id, 5)
    assert home.current() == Lineage(id=lineage.id, cluster_id="c", ledger_topic_id="t", last_commit=5)
    (tmp_path / "lineages" / lineage.id / "progress.json").write_text("torn")
    assert home.current() == Lineage(id=lineage.id, cluster_id="c", ledger_topic_id="t", last_commit=3)


def test_the_batch_that_a_reemit_restored_has_the_state_of_an_older_commit() -> None:
    lineage = Lineage(id="l", base_batch=4, base_commit=20)
    assert [lineage.state_of(batch) for batch in (3, 4, 5)] == [19, 20, 21]
    assert [replace(lineage, reemits=5).state_of(batch) for batch in (3, 4, 5)] == [19, 5, 21]


def test_a_pointer_to_a_lineage_that_is_not_there_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    lineage = home.create("p")
    (tmp_path / "lineages" / lineage.id / "lineage.json").unlink()
    with pytest.raises(RefusedError, match=lineage.id):
        home.current()


@pytest.mark.parametrize("name", ["home.json", "current"])
def test_a_torn_document_is_named_and_not_taken_for_an_empty_home(tmp_path: Path, name: str) -> None:
    home = Home(tmp_path)
    home.create("p")
    (tmp_path / name).write_text("{")
    with pytest.raises(RefusedError, match=f"{name} is torn"):
        home.identity() and home.current()


def test_a_file_uri_is_a_path_and_others_are_refused(tmp_path: Path) -> None:
    assert Home(f"file://{tmp_path}").path == tmp_path
    with pytest.raises(RefusedError, match="webhdfs://host/x"):
        Home("webhdfs://host/x")
