from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import json_store, moving
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.moving import HomeDocument, Move
from airflow_provider_exactlyonce.control.pipeline_state import outlook
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, HomeMovedError, RefusedError


def homes(folder: Path) -> tuple[Home, Home, HomeDocument, Move]:
    """Make a home, and name another; what they are going to say of the move."""
    old, new = Home(folder / "old"), Home(folder / "new")
    old.create("shop")
    document = moving.document(old.path)
    assert document is not None
    return old, new, document, Move(source=str(old.path), target=str(new.path), lineage="l", run=3)


def seal(home: Home, move: Move) -> None:
    with leases.holding(home.lease, "shop", "copy") as hold, hold.sure():
        moving.seal(home.path, move, hold.pointer)


def test_a_home_that_was_made_where_it_is_can_be_used(tmp_path: Path) -> None:
    old, new, document, _ = homes(tmp_path)
    assert (document.pipeline, document.move, document.is_whole) == ("shop", None, True)
    assert moving.sealed(old.path) is None
    assert (moving.document(new.path), moving.sealed(new.path)) == (None, None)


def test_a_sealed_home_names_the_new_one_to_whoever_would_use_it(tmp_path: Path) -> None:
    old, new, _, move = homes(tmp_path)
    lineage = old.current()
    assert lineage is not None
    seal(old, move)
    assert moving.sealed(old.path) == move
    for use in (old.identity, old.pipeline, old.current, lambda: old.create("shop")):
        with pytest.raises(HomeMovedError, match=f"was moved to {new.path}: name that home"):
            use()
    assert not old.uses(lineage.id)
    assert outlook(old) == f"the home was moved to {new.path}, from where the next one is to be started"


def test_a_copy_that_is_not_finished_is_no_home_and_a_finished_one_is(tmp_path: Path) -> None:
    _, new, document, move = homes(tmp_path)
    moving.begin(new.path, document, move)
    for use in (new.identity, new.pipeline, lambda: new.create("shop")):
        with pytest.raises(HomeMovedError, match=f"not finished. Finish it: exactlyonce home copy {move.source} "):
            use()
    with pytest.raises(FileExistsError):
        moving.begin(new.path, document, move)
    moving.finish(new.path, document, move)
    assert (new.identity(), new.pipeline()) == (document.id, "shop")
    finished = moving.document(new.path)
    moving.finish(new.path, document, move)
    assert finished == moving.document(new.path)
    assert finished is not None
    assert finished.move == move


def test_a_driver_that_has_claimed_the_pipeline_keeps_it(tmp_path: Path) -> None:
    """Its claim comes after the look of a copy that was frozen: the seal is refused, or undone."""
    old, _, _, move = homes(tmp_path)
    lineage = old.current()
    assert lineage is not None

    def seal_late() -> None:
        with leases.holding(old.lease, "shop", "copy") as hold:
            old.use(lineage.id)
            with hold.sure():
                moving.seal(old.path, move, hold.pointer)

    with pytest.raises(AlreadyRunningError, match="another process has taken pipeline shop over meanwhile"):
        seal_late()
    assert old.current() == lineage
    seal(old, move)
    old.use(lineage.id)
    assert old.current() == lineage


def test_an_older_release_refuses_what_it_does_not_understand(tmp_path: Path) -> None:
    old, new, document, move = homes(tmp_path)
    seal(old, move)
    moving.begin(new.path, document, move)
    for path in (old.path / "current", new.path / "home.json"):
        with pytest.raises(RefusedError, match="is of schema 2"):
            json_store.read(path)
