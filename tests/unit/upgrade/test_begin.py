"""How upgrades and rollbacks begin: what is refused, and what is gone on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.checkpoint.restore import RestoreRequest
from airflow_provider_exactlyonce.control import releases, upgrade_plan
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.releases import Release
from airflow_provider_exactlyonce.control.upgrade_plan import Options, Plan, UpgradeStep
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError
from airflow_provider_exactlyonce.upgrade.begin import begin_rollback, begin_upgrade, what_to_compare


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create("p")
    return home


@pytest.fixture
def job(tmp_path: Path) -> str:
    file = tmp_path / "job.py"
    file.write_text("new")
    return str(file)


def begin(home: Home, job: str, request: str = "a1", **options: object) -> Plan:
    return begin_upgrade(home, "p", job, Options(**options), request=request)  # type: ignore[arg-type]


def test_the_plan_is_on_disk_and_the_same_request_finds_it(home: Home, job: str) -> None:
    plan = begin(home, job, savepoint="night", compare=("a", "b"), allow={"missing": 3})
    assert upgrade_plan.read(home) == plan
    assert (plan.step, plan.options.compare) == (UpgradeStep.CHECK, ("a", "b"))
    Path(job).unlink()
    assert begin(home, job) == plan, "also when the file is gone meanwhile"


def test_another_request_for_the_same_file_goes_on_and_for_another_file_is_refused(home: Home, job: str) -> None:
    plan = begin(home, job)
    assert begin(home, job, "b2") == plan
    Path(job).write_text("newer")
    with pytest.raises(AlreadyRunningError, match=r"at step check.*exactlyonce rollback p"):
        begin(home, job, "b2")
    upgrade_plan.write(home, replace(plan, step=UpgradeStep.ROLLED_BACK), before=upgrade_plan.read(home))
    assert begin(home, job, "b2").id == "b2"


def test_a_dry_run_leaves_the_plan_and_who_waits_for_it_alone(home: Home, job: str) -> None:
    plan = begin(home, job)
    other = Path(job).with_name("other.py")
    other.write_text("other")
    dry = begin_upgrade(home, "p", str(other), Options(), request="d1", dry_run=True)
    assert (upgrade_plan.read(home), upgrade_plan.read(home, dry_run=True)) == (plan, dry)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_unstable": "pray"}, "on_unstable='pray'"),
        ({"stable_after": -1}, "stable_after=-1"),
        ({"allow": {"wrong": None}}, "'wrong': missing, extra, changed or changed.COLUMN"),
        ({"allow": {"missing": "many"}}, "'many' is no number"),
    ],
)
def test_an_option_that_cant_be_is_refused(home: Home, job: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        begin(home, job, **options)
    assert upgrade_plan.read(home) is None


def test_a_file_that_is_not_there_is_refused(home: Home) -> None:
    with pytest.raises(RefusedError, match="no job file"):
        begin(home, "/nowhere/job.py")


def keep(home: Home, tmp_path: Path, version: str) -> None:
    file = tmp_path / f"{version}.py"
    file.write_text(version)
    releases.keep(home, version, file, file.read_bytes())


def roll_back(home: Home, request: str = "c3") -> Plan:
    return begin_rollback(home, "p", Options(), request=request, check=lambda _: None)


def test_a_rollback_goes_to_what_the_last_upgrade_has_replaced(home: Home, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no upgrade to roll back"):
        roll_back(home)
    releases.write(
        home, Release(version="new", since=1, previous="old", savepoint="7-ab", pinned=True), releases.stored(home)
    )
    with pytest.raises(RefusedError, match="no copy of the job's file of version old"):
        roll_back(home)
    keep(home, tmp_path, "old")
    plan = roll_back(home)
    assert (plan.step, plan.old, plan.savepoint, plan.unpin) == (UpgradeStep.STOP_NEW, "old", "7-ab", ("7-ab",))
    assert roll_back(home) == plan
    assert roll_back(home, "d4") == plan, "of one that was lost"


def test_a_rollback_in_the_midst_of_an_upgrade_goes_to_where_that_has_begun(
    home: Home, tmp_path: Path, job: str
) -> None:
    keep(home, tmp_path, "old")
    plan = begin(home, job)
    upgrade_plan.write(
        home,
        replace(plan, step=UpgradeStep.WATCH, old="old", savepoint="9-cd", pinned=True),
        before=upgrade_plan.read(home),
    )
    back = roll_back(home)
    assert (back.old, back.savepoint, back.unpin) == ("old", "9-cd", ("9-cd",))


def test_a_rollback_removes_the_state_of_a_shadow_run_that_was_killed(home: Home, tmp_path: Path, job: str) -> None:
    keep(home, tmp_path, "old")
    plan = begin(home, job)
    upgrade_plan.write(
        home, replace(plan, step=UpgradeStep.WATCH, old="old", savepoint="9-cd"), before=upgrade_plan.read(home)
    )
    of_a_dry_run = upgrade_plan.path_of(home, "shadow", dry_run=True)
    for folder in (upgrade_plan.path_of(home, "shadow"), of_a_dry_run):
        (folder / "run" / "lineage").mkdir(parents=True)
        (folder / "run" / "lineage" / "state").write_text("much")
    roll_back(home)
    assert not upgrade_plan.path_of(home, "shadow").exists()
    assert of_a_dry_run.exists(), "it may be under way"


@pytest.mark.parametrize("end", [UpgradeStep.UNSTABLE, UpgradeStep.FAILED, UpgradeStep.DONE])
def test_a_rollback_unpins_what_an_upgrade_that_ended_badly_could_not(
    home: Home, tmp_path: Path, job: str, end: UpgradeStep
) -> None:
    keep(home, tmp_path, "old")
    releases.write(
        home, Release(version="new", since=1, previous="old", savepoint="9-cd", pinned=True), releases.stored(home)
    )
    plan = begin(home, job)
    ended = replace(plan, step=end, old="old", savepoint="9-cd", pinned=True, unpin=("7-ab",))
    upgrade_plan.write(home, ended, before=plan)
    assert roll_back(home).unpin == (("9-cd",) if end is UpgradeStep.DONE else ("9-cd", "7-ab"))


def test_a_rollback_that_has_no_way_back_touches_nothing(home: Home, tmp_path: Path) -> None:
    keep(home, tmp_path, "old")
    releases.write(
        home, Release(version="new", since=1, previous="old", savepoint="7-ab", pinned=True), releases.stored(home)
    )
    asked = []

    def check(request: RestoreRequest) -> None:
        asked.append(request)
        raise RefusedError("source records are gone")

    with pytest.raises(RefusedError, match="records are gone"):
        begin_rollback(home, "p", Options(accept_nondeterminism=True), request="c3", check=check)
    assert asked == [RestoreRequest(savepoint="7-ab", version="old", accept_nondeterminism=True)]
    assert upgrade_plan.read(home) is None


def module_function(row: dict[str, object]) -> dict[str, object] | None:
    return row


def test_what_is_compared_is_columns_or_the_place_of_a_function() -> None:
    assert what_to_compare(()) == ((), None)
    assert what_to_compare("a, b") == (("a", "b"), None)
    assert what_to_compare(["a"]) == (("a",), None)
    assert what_to_compare("/x/job.py:same") == ((), "/x/job.py:same")
    assert what_to_compare(module_function) == ((), f"{Path(__file__).resolve()}:module_function")
    with pytest.raises(RefusedError, match="a function of a module"):
        what_to_compare(lambda row: row)
