"""Which version may start, and which file is started."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import releases, upgrade_plan
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.releases import Release
from airflow_provider_exactlyonce.control.supervision import Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.control.upgrade_plan import ENDS, Options, Plan, UpgradeStep
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError, VersionRefusedError
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy


def plan_at(step: UpgradeStep) -> Plan:
    """Return an upgrade whose step has just begun."""
    return Plan(id="a1", pipeline="p", step=step, options=Options(), application="/jobs/new.py", token="mine")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create("p")
    return home


def job(tmp_path: Path, text: str, name: str = "job.py") -> Path:
    file = tmp_path / name
    file.write_text(text)
    return file


def test_before_the_first_upgrade_every_version_may_start(home: Home) -> None:
    releases.check_start(home, "any", "token")


def test_an_older_version_never_undoes_an_upgrade(home: Home) -> None:
    releases.write(home, Release(version="new", since=1, previous="old", savepoint="1-a"), releases.stored(home))
    releases.check_start(home, "new", "token")
    with pytest.raises(VersionRefusedError, match=r"this is version old.*was brought to version new"):
        releases.check_start(home, "old", "token")


@pytest.mark.parametrize("step", list(UpgradeStep))
def test_while_an_upgrade_is_under_way_only_its_own_driver_may_start(home: Home, step: UpgradeStep) -> None:
    upgrade_plan.write(home, plan_at(step), before=upgrade_plan.read(home))
    releases.write(home, Release(version="new", since=1, previous="old", savepoint="1-a"), releases.stored(home))
    releases.check_start(home, "new", "mine")
    with pytest.raises(VersionRefusedError):
        releases.check_start(home, "old", "mine")
    if step in ENDS or step in (UpgradeStep.CHECK, UpgradeStep.COMPARE):
        releases.check_start(home, "new", "another")
        return
    with pytest.raises(AlreadyRunningError, match=rf"at step {step}.*exactlyonce rollback p"):
        releases.check_start(home, "new", "another")


def test_the_file_is_started_where_it_was_while_it_is_the_same_there_and_from_the_copy_after(
    home: Home, tmp_path: Path
) -> None:
    file = job(tmp_path, "old")
    releases.keep(home, "v1", file, file.read_bytes())
    releases.keep(home, "v1", file, file.read_bytes())
    known = releases.application(home, "v1")
    assert known is not None
    assert known.file == file
    job(tmp_path, "new")
    assert known.file == home.path / "applications" / "v1" / "job.py"
    assert known.file.read_text() == "old"
    known.kept.write_text("changed by hand")
    assert releases.application(home, "v1") is None
    assert releases.application(home, "v0") is None


def test_what_runs_is_the_version_in_use_whatever_file_is_asked_for(home: Home, tmp_path: Path) -> None:
    old, new = job(tmp_path, "old", "old.py"), job(tmp_path, "new", "new.py")
    assert releases.application_to_run(home, str(old)) == str(old), "it was never upgraded"
    releases.keep(home, "v2", new, new.read_bytes())
    releases.write(home, Release(version="v2", since=1, previous="v1", savepoint="1-a"), releases.stored(home))
    assert releases.application_to_run(home, str(old)) == str(new)
    copied = job(tmp_path, "new", "copied.py")
    assert releases.application_to_run(home, str(copied)) == str(copied), "the same file elsewhere"
    job(tmp_path, "newer", "new.py")
    assert Path(releases.application_to_run(home, str(new))).read_text() == "new", "it was edited in place"
    assert releases.application_to_run(home, "s3://jobs/job.py") == "s3://jobs/job.py"


@pytest.mark.parametrize("step", [step for step in UpgradeStep if plan_at(step).holds_starts])
def test_a_supervisor_waits_no_longer_for_an_upgrade_whose_task_is_gone_for_good(home: Home, step: UpgradeStep) -> None:
    plan = plan_at(step)
    plan = replace(plan, entered=time.time() - plan.step_seconds - 1)
    upgrade_plan.write(home, plan, before=upgrade_plan.read(home))
    launch = Launch(command=["true"], printable="true", environment={})
    supervisor = Supervisor(
        home, launch, Supervision(owner="o", until="forever", strategy=RestartStrategy.none(), poll_seconds=0.05)
    )
    with pytest.raises(RefusedError, match=rf"at step {step} since 20.*nobody works on it.*exactlyonce rollback p"):
        list(supervisor.run())
    assert not home.intent.exists()
    assert list(home.logs.glob("*")) == []


@pytest.mark.parametrize("step", [step for step in UpgradeStep if plan_at(step).holds_starts])
def test_an_upgrade_is_not_given_up_while_somebody_works_on_it_or_its_step_may_take_longer(
    home: Home, step: UpgradeStep
) -> None:
    plan = replace(plan_at(step), entered=1_000_000.0, options=Options(stop_timeout=5000.0, stable_timeout=7000.0))
    longest = {
        UpgradeStep.STOP: 5000.0,
        UpgradeStep.STOP_NEW: 5000.0,
        UpgradeStep.REST: 5000.0,
        UpgradeStep.WATCH: 7000.0,
        UpgradeStep.WATCH_OLD: 7000.0,
    }.get(step, 0.0)
    over = plan.entered + longest + 600.0
    upgrade_plan.write(home, plan, before=upgrade_plan.read(home))
    assert not upgrade_plan.is_left(home, plan, over)
    assert upgrade_plan.is_left(home, plan, over + 1)
    with upgrade_plan.working_on(home, "p"):
        assert not upgrade_plan.is_left(home, plan, over + 1)
    upgrade_plan.write(home, replace(plan, entered=over), before=upgrade_plan.read(home))
    assert not upgrade_plan.is_left(home, plan, over + 1), "it has just gone on"
    assert not upgrade_plan.is_left(home, replace(plan, step=UpgradeStep.FAILED), over + 1)
