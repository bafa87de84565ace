"""What a shadow run begins from."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.upgrade.shadow_replay import find_base
from tests.unit.checkpoint import crafted

BATCHES = 6  # commits 1 to 6


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create("p")
    crafted.checkpoint(home.checkpoint(crafted.LINEAGE), batches=BATCHES)
    home.remember(Lineage(id=crafted.LINEAGE))
    home.use(crafted.LINEAGE)
    return home


def take(home: Home, commit: int) -> str:
    checkpoint = Checkpoint(home.checkpoint(crafted.LINEAGE))
    return Savepoints(home.savepoints).take(checkpoint, commit - 1, crafted.record(commit - 1, commit), None).id


def forget(home: Home, *commits: int) -> None:
    """Remove what Spark does of old batches."""
    for commit in commits:
        (home.checkpoint(crafted.LINEAGE) / f"offsets/{commit - 1}").unlink()


@pytest.mark.parametrize(("commits", "begins_at"), [(1, 5), (4, 2), (99, 1)])
def test_it_begins_so_many_commits_before_the_last_one_in_the_lineage_in_use(
    home: Home, commits: int, begins_at: int
) -> None:
    base = find_base(home, commits, BATCHES)
    assert (base.commit, base.batch) == (begins_at, begins_at - 1)
    assert base.name == f"batch {begins_at - 1} of the lineage in use"


def test_it_begins_at_the_nearest_good_savepoint_before_when_spark_has_forgotten_the_batch(home: Home) -> None:
    far, near, after = take(home, 1), take(home, 2), take(home, 5)
    forget(home, 2, 3)
    assert find_base(home, 3, BATCHES).name == f"savepoint {near}"
    next((home.savepoints / near).rglob("*.zip")).write_bytes(b"torn")
    assert find_base(home, 3, BATCHES).name == f"savepoint {far}"
    Savepoints(home.savepoints).delete(far)
    assert find_base(home, 3, BATCHES).name == f"savepoint {after}", "fewer commits than asked for are better than none"


def test_without_any_state_before_it_is_refused(home: Home) -> None:
    take(home, 6)
    forget(home, 2, 3)
    with pytest.raises(RefusedError, match="no state before commit 6"):
        find_base(home, 3, BATCHES)
    with pytest.raises(RefusedError, match="has made 1 commits"):
        find_base(home, 3, 1)
