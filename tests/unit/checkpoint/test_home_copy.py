"""What of a home is copied, and in which order; and what is refused before anybody is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import pytest

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.checkpoint import home_copy
from airflow_provider_exactlyonce.checkpoint.home_copy import copy_home, in_order
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import moving
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.moving import Move
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, HomeMovedError, RefusedError
from airflow_provider_exactlyonce.storage.local import LocalStore
from tests.clocks import StandingClock

KEPT = (
    "applications/v1/job.py",
    "applications/v1/release.json",
    "backfills/identity.json",
    "backfills/ledger.json",
    "backfills/r/lineages/b/checkpoint/offsets/0",
    "backfills/r/request.json",
    "backfills/r/resolved.json",
    "control/restarts.json",
    "control/status.json",
    "control/upgrade.json",
    "lineages/.unfinished-x",
    "lineages/a/checkpoint/.metadata.crc",
    "lineages/a/checkpoint/metadata",
    "lineages/a/checkpoint/offsets/.0.crc",
    "lineages/a/checkpoint/offsets/0",
    "lineages/a/checkpoint/state/0/0/.1.zip.crc",
    "lineages/a/checkpoint/state/0/_metadata/v2/0",
    "lineages/a/jobs/v1.json",
    "lineages/a/progress.json",
    "release.json",
    "savepoints/5-ab/checkpoint/offsets/0",
    "set-aside/current-12",
    "sinks/log/staging/1/x.arrows",
)
LAST = (
    "backfills/r/current",
    "backfills/r/home.json",
    "backfills/r/lineages/b/lineage.json",
    "lineages/a/lineage.json",
    "savepoints/5-ab/manifest.json",
)
LEFT_OUT = (
    "backfills/r/control/commands/stop.json",
    "backfills/r/control/intent.json",
    "backfills/r/control/lease.json",
    "backfills/turn.lease.json",
    "backfills/turn.lock",
    "control/commands/account-1.json",
    "control/intent.json",
    "control/lease.json",
    "control/lease.lock",
    "control/logs/driver.log",
    "current",
    "current.lock",
    "home.json",
    "lineages/a/checkpoint/state/0/_metadata/v2/.0.crc",
)


def test_what_belongs_to_a_home_is_copied_and_what_makes_it_count_comes_last() -> None:
    first, last = in_order(sorted([*KEPT, *LAST, *LEFT_OUT]))
    assert (*first,) == KEPT
    assert (*last,) == LAST


def test_what_a_release_has_written_belongs_to_a_home_but_for_what_is_of_one_place() -> None:
    release = Path(__file__).parents[2] / "releases/0.1.0/home"
    paths = [str(file.relative_to(release)) for file in release.rglob("*") if file.is_file()]
    first, last = in_order(sorted(paths))
    left_out = {path for path in paths if path not in (*first, *last)}
    commands = {path for path in paths if path.startswith("control/commands/")}
    assert commands
    assert left_out == {"home.json", "current", "control/lease.json", "control/intent.json", *commands}


@pytest.fixture
def source(tmp_path: Path) -> Home:
    home = Home(tmp_path / "old")
    home.create("shop")
    return home


def copy(source: Home, target: Path) -> None:
    copy_home(source, Home(target), {"bootstrap.servers": "nobody.invalid:1"})


@pytest.mark.parametrize("target", ["old", "old/below", ""])
def test_a_home_is_not_copied_into_itself(source: Home, tmp_path: Path, target: str) -> None:
    with pytest.raises(RefusedError, match="are one place, or one is in the other"):
        copy(source, tmp_path / target)


def test_a_target_that_holds_anything_is_refused_and_stays(source: Home, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new/notes.txt").write_text("mine")
    with pytest.raises(RefusedError, match=f"{tmp_path}/new is not empty, and no copy of {source.path}"):
        copy(source, tmp_path / "new")
    Home(tmp_path / "other").create("other")
    with pytest.raises(RefusedError, match=f"{tmp_path}/other is a home of pipeline other"):
        copy(source, tmp_path / "other")
    document = moving.document(source.path)
    assert document is not None
    moving.begin(
        tmp_path / "third", document, Move(source="/elsewhere", target=f"{tmp_path}/third", lineage="l", run=0)
    )
    with pytest.raises(RefusedError, match=f"{tmp_path}/third is a home of pipeline shop"):
        copy(source, tmp_path / "third")
    assert (tmp_path / "new/notes.txt").read_text() == "mine"


def test_only_a_home_is_copied(tmp_path: Path, source: Home) -> None:
    with pytest.raises(RefusedError, match="is no home of a pipeline: there is nothing to copy"):
        copy(Home(tmp_path / "nothing"), tmp_path / "new")
    document = moving.document(source.path)
    assert document is not None
    moving.begin(
        tmp_path / "half", document, Move(source=str(source.path), target=f"{tmp_path}/half", lineage="l", run=0)
    )
    with pytest.raises(HomeMovedError, match="is not finished"):
        copy(Home(tmp_path / "half"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_home_that_was_moved_elsewhere_names_where(source: Home, tmp_path: Path) -> None:
    current = source.current()
    assert current is not None
    move = Move(source=str(source.path), target="s3://bucket/shop", lineage=current.id, run=1)
    with leases.holding(source.lease, "shop", "copy") as hold, hold.sure():
        moving.seal(source.path, move, hold.pointer)
    with pytest.raises(HomeMovedError, match="was moved to s3://bucket/shop"):
        copy(source, tmp_path / "new")


class EmptyLedger:
    """Stands for the reader of a ledger without records."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def tail(self) -> None:
        return None


@pytest.mark.parametrize("gone", [False, True])
def test_a_copy_that_is_frozen_in_its_last_step_changes_nothing_in_the_home_that_is_in_use_since(
    source: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, gone: bool
) -> None:
    """Where there are no locks nothing tells it that another call has ended and let go since."""
    monkeypatch.setattr(LocalStore, "has_locks", False)
    monkeypatch.setattr(home_copy, "LedgerReader", EmptyLedger)
    monkeypatch.setattr(home_copy, "time", clock := StandingClock())
    lineage, new = source.current(), Home(tmp_path / "new")
    assert lineage is not None
    offsets = Path("lineages", lineage.id, "checkpoint/offsets")
    (source.path / offsets).mkdir()
    (source.path / offsets / "0").write_text("0")
    reached: list[str] = []

    def reach(step: str) -> None:
        reached.append(step)
        if gone and reached.count("copy-flushed") == 1 and step == "copy-compared":
            raise InterruptedError
        if step == "copy-flushed" and reached.count(step) == 1 + gone:
            clock.now += 60
            source.lease.unlink()
            (source.backfills / "turn.lease.json").unlink()
            copy(source, new.path)
            (new.path / offsets / "0").write_text("of the new home")
            (new.path / offsets / "1").write_text("of the new home")
            new.use("restored")

    monkeypatch.setattr(failpoints, "reach", reach)
    if gone:
        with pytest.raises(InterruptedError):
            copy(source, new.path)
        (source.path / offsets / "0").unlink()
    with pytest.raises(AlreadyRunningError):
        copy(source, new.path)
    assert new.uses("restored")
    assert [(new.path / offsets / name).read_text() for name in ("0", "1")] == ["of the new home"] * 2
