"""What the check of an upgrade foresees of the way back; and what a process can do that was frozen in a step."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.checkpoint import job as jobs
from airflow_provider_exactlyonce.checkpoint.job import JobDescription
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import (
    drivers,
    json_store,
    launching,
    processes,
    releases,
    requests,
    stopping,
    upgrade_plan,
)
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.releases import Release
from airflow_provider_exactlyonce.control.requests import WaitCondition
from airflow_provider_exactlyonce.control.status import DriverState, ReplayReport, Status
from airflow_provider_exactlyonce.control.upgrade_plan import Options, Plan, UpgradeStep
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, ExactlyOnceError, NotAnsweredError
from airflow_provider_exactlyonce.storage.local import LocalStore
from airflow_provider_exactlyonce.storage.store import ChangedError
from airflow_provider_exactlyonce.upgrade import machine, stability
from airflow_provider_exactlyonce.upgrade.begin import begin_rollback, begin_upgrade
from airflow_provider_exactlyonce.upgrade.environment import UpgradeEnvironment
from airflow_provider_exactlyonce.upgrade.machine import Upgrade, _settled
from airflow_provider_exactlyonce.upgrade.transitions import moved
from tests.clocks import StandingClock
from tests.frozen import WRITES, at_each
from tests.unit.checkpoint import crafted

RANDOM = ("Rand is not deterministic",)


class TouchedError(Exception):
    """The check went on to what needs a cluster."""


def config() -> Mapping[str, object]:
    raise TouchedError


def launch(application: str, arguments: Sequence[str]) -> Launch:
    raise TouchedError


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return made(tmp_path)


def made(folder: Path) -> Home:
    """Make the home of a pipeline whose version in use may give other rows each time."""
    home = Home(folder / "home")
    home.create("p")
    old = folder / "old.py"
    old.write_text("old")
    releases.keep(home, "old", old, old.read_bytes())
    releases.write(home, Release(version="old", since=1), releases.stored(home))
    described = JobDescription(
        version="old",
        job_hash=None,
        spark_version="4.2.0",
        output_mode="append",
        sources={},
        sinks=(),
        result_schema="{}",
        nondeterministic=RANDOM,
    )
    jobs.write(home, "lineage", described)
    return home


def upgrade(home: Home, **options: object) -> Upgrade:
    new = home.path.with_name("new.py")
    new.write_text("new")
    plan = begin_upgrade(home, "p", str(new), Options(**options), request="a1")  # type: ignore[arg-type]
    return Upgrade(home, plan, UpgradeEnvironment(config=config, launch=launch))


def test_a_way_back_that_would_give_other_rows_is_refused_before_anything_is_touched(home: Home) -> None:
    plan = upgrade(home, savepoint=False).run()
    assert plan.step is UpgradeStep.REFUSED
    assert "a rollback would replay commits of version old" in str(plan.reason)
    assert RANDOM[0] in str(plan.reason)
    assert "accept_nondeterminism=True" in str(plan.reason)


@pytest.mark.parametrize(
    "options", [{}, {"savepoint": False, "accept_nondeterminism": True}, {"savepoint": False, "on_unstable": "fail"}]
)
def test_other_ways_back_replay_nothing_of_the_old_version_or_are_accepted(
    home: Home, options: dict[str, object]
) -> None:
    with pytest.raises(TouchedError):
        upgrade(home, **options).run()


@pytest.mark.parametrize("has_locks", [True, False])
def test_a_process_that_was_frozen_in_a_step_does_not_replace_the_plan_of_who_went_on(
    home: Home, monkeypatch: pytest.MonkeyPatch, *, has_locks: bool
) -> None:
    monkeypatch.setattr(LocalStore, "has_locks", has_locks)
    frozen = upgrade(home)

    def check(plan: Plan) -> Plan:
        upgrade_plan.write(home, replace(plan, step=UpgradeStep.DONE), before=plan)  # the process that went on
        return replace(plan, step=UpgradeStep.COMPARE)

    monkeypatch.setattr(frozen, "_steps", {UpgradeStep.CHECK: check})
    with pytest.raises(AlreadyRunningError, match="another process has gone on with the upgrade of p"):
        frozen.advance()
    plan = upgrade_plan.read(home)
    assert plan is not None
    assert plan.step is UpgradeStep.DONE


@pytest.mark.parametrize("step", [UpgradeStep.START, UpgradeStep.START_OLD])
def test_a_process_that_has_lost_its_hold_neither_changes_the_version_in_use_nor_starts_a_driver(
    home: Home, monkeypatch: pytest.MonkeyPatch, step: UpgradeStep
) -> None:
    monkeypatch.setattr(LocalStore, "has_locks", False)
    frozen = upgrade(home)
    begun = upgrade_plan.read(home)
    assert begun is not None
    upgrade_plan.write(home, replace(begun, step=step, old="older", new="new", token="t"), before=begun)
    start = frozen._steps[step]

    def thaw(plan: Plan) -> object:
        leases.acquire(home.control / "upgrade.json.lease.json", "p", "another")
        return start(plan)

    monkeypatch.setattr(frozen, "_steps", {step: thaw})
    with pytest.raises(AlreadyRunningError, match="has taken pipeline p over meanwhile"):
        frozen.advance()
    assert releases.read(home) == Release(version="old", since=1)
    assert intents.read(home.intent) is None


@pytest.mark.parametrize("step", [UpgradeStep.START, UpgradeStep.START_OLD])
def test_an_upgrade_that_was_frozen_does_not_undo_the_rollback_of_who_went_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: UpgradeStep
) -> None:
    monkeypatch.setattr(LocalStore, "has_locks", False)
    monkeypatch.setattr(leases, "time", StandingClock())
    refused: list[AlreadyRunningError] = []

    def scene() -> tuple[Callable[[], object], Callable[[], None]]:
        home = made(tmp_path / str(uuid.uuid4()))
        frozen = upgrade(home)
        begun = upgrade_plan.read(home)
        assert begun is not None
        upgrade_plan.write(home, replace(begun, step=step, old="older", new="new", token="t"), before=begun)
        rolled_back: list[Release] = []

        def roll_back() -> None:
            leases.acquire(home.control / "upgrade.json.lease.json", "p", "another")
            there = upgrade_plan.read(home)
            assert there is not None
            upgrade_plan.write(home, replace(there, step=UpgradeStep.ROLLED_BACK), before=there)
            rolled_back.append(Release(version="oldest", since=2))
            releases.write(home, rolled_back[0], releases.stored(home))

        def go_on() -> None:
            try:
                frozen.advance()
            except TouchedError:
                pass
            except AlreadyRunningError as error:
                refused.append(error)
            if rolled_back:
                assert releases.read(home) == rolled_back[0]

        return go_on, roll_back

    assert at_each(("read", *WRITES), LocalStore, scene) > 10
    assert len(refused) > 5


@pytest.mark.parametrize("has_locks", [True, False])
def test_a_version_in_use_that_was_changed_since_is_not_replaced(
    home: Home, monkeypatch: pytest.MonkeyPatch, *, has_locks: bool
) -> None:
    monkeypatch.setattr(LocalStore, "has_locks", has_locks)
    before = releases.stored(home)
    releases.write(home, Release(version="new", since=2), before)
    with pytest.raises(AlreadyRunningError, match=r"another upgrade or rollback has gone on.*release\.json"):
        releases.write(home, Release(version="other", since=3), before)
    assert releases.read(home) == Release(version="new", since=2)


def under_way(home: Home, step: UpgradeStep, **fields: object) -> Plan:
    """Write the plan of an upgrade whose host was lost at a step."""
    plan = Plan(id="a1", pipeline="p", step=step, options=Options(), application="new.py", old="old", savepoint="7-ab")
    plan = replace(plan, **fields)  # type: ignore[arg-type]
    upgrade_plan.write(home, plan, before=upgrade_plan.read(home))
    return plan


def rollback(home: Home, request: str = "b2", savepoint: str = "7-ab") -> Upgrade:
    """Begin a rollback by hand."""
    plan = begin_rollback(
        home, "p", Options(), request=request, check=lambda _: None, version="old", savepoint=savepoint
    )
    return Upgrade(home, plan, UpgradeEnvironment(config=config, launch=launch))


def settles(rolling_back: Upgrade) -> UpgradeStep:
    """Stop what runs; what follows needs a cluster. Returns where the plan leads when the old version has caught up."""
    with pytest.raises(TouchedError):
        rolling_back.advance()
    plan = rolling_back._read()
    assert plan.step is UpgradeStep.RESTORE
    return moved(replace(plan, step=UpgradeStep.WATCH_OLD), _settled(plan)).step


def stop_asked(home: Home, request: str, token: str | None) -> None:
    """Leave what a stop has noted: the driver that it has stopped, None where none ran."""
    json_store.write(home.commands / f"stop-{request}.json", {"token": token, "series": None})


STEPS = [step for step in UpgradeStep if Plan(id="", pipeline="", step=step, options=Options()).holds_starts]


@pytest.mark.parametrize(
    ("was_stopped", "end"), [(False, UpgradeStep.ROLLED_BACK), (True, UpgradeStep.REST)], ids=["ran", "was stopped"]
)
@pytest.mark.parametrize("step", STEPS)
def test_a_rollback_of_an_upgrade_that_was_lost_after_its_stop_ends_as_the_pipeline_was_before(
    home: Home, step: UpgradeStep, end: UpgradeStep, *, was_stopped: bool
) -> None:
    stop_asked(home, "a1", None if was_stopped else "t")
    under_way(home, step, was_stopped=was_stopped and step is not UpgradeStep.STOP)
    first = rollback(home)
    assert settles(rollback(home, "c3", savepoint="3-cd")) is end, "another rollback has replaced the first"
    with pytest.raises(AlreadyRunningError, match="was replaced"):
        first.advance()


@pytest.mark.parametrize("step", [UpgradeStep.CHECK, UpgradeStep.COMPARE])
def test_a_rollback_of_an_upgrade_that_was_lost_before_its_stop_goes_by_what_runs(
    home: Home, step: UpgradeStep
) -> None:
    under_way(home, step)
    assert settles(rollback(home)) is UpgradeStep.REST


def test_a_pipeline_that_was_stopped_before_an_upgrade_is_stopped_when_the_new_version_is_rolled_back(
    home: Home,
) -> None:
    under_way(home, UpgradeStep.WATCH, was_stopped=True, token="t")
    rolling_back = rollback(home)
    stop_asked(home, "b2b", "t")
    assert settles(rolling_back) is UpgradeStep.REST


@pytest.mark.parametrize(
    ("step", "newest", "is_asked", "end"),
    [
        pytest.param(UpgradeStep.UNSTABLE, "new", False, UpgradeStep.ROLLED_BACK, id="its driver has died"),
        pytest.param(UpgradeStep.UNSTABLE, "new", True, UpgradeStep.REST, id="a person has stopped its driver"),
        pytest.param(UpgradeStep.UNSTABLE, "old", False, UpgradeStep.ROLLED_BACK, id="its driver never came up"),
        pytest.param(UpgradeStep.UNSTABLE, "other", False, UpgradeStep.REST, id="another one has run since"),
        pytest.param(UpgradeStep.FAILED, "new", True, UpgradeStep.ROLLED_BACK, id="its way back is blocked"),
        pytest.param(UpgradeStep.DONE, "new", False, UpgradeStep.REST, id="it was done, and its driver has ended"),
    ],
)
def test_a_rollback_after_an_upgrade_that_has_left_nothing_running_ends_as_the_pipeline_was_before(
    home: Home, step: UpgradeStep, newest: str, *, is_asked: bool, end: UpgradeStep
) -> None:
    stop_asked(home, "a1", "old")
    under_way(home, step, token="new")
    statuses.write(home.status, Status(pipeline="p", token=newest, state=DriverState.FAILED))
    if is_asked:
        requests.request_stop(home, "new", reason="maintenance")
    assert settles(rollback(home)) is end


class NewVersion:
    """A new version's driver, as what looks at it sees it."""

    def __init__(self, home: Home) -> None:
        self.home, self.lag, self.answers, self.dies_after_launch = home, 0, True, False
        self.token: str | None = None

    def start(self, _home: Home, _launch: Launch, intent: intents.Intent, *, judged: str | None) -> None:
        assert judged is None, "nobody else has announced a start"
        self.token = intent.token
        if self.dies_after_launch:
            raise KeyboardInterrupt
        self.answers = False

    def lag_of(self, *_: object) -> int:
        if not self.answers:
            raise ExactlyOnceError("how far p is can't be seen")
        return self.lag

    def has_committed(self, commits: int, lag: int) -> None:
        status = Status(pipeline="p", token=str(self.token), state=DriverState.RUNNING, commits_of_run=commits)
        statuses.write(self.home.status, status)
        self.lag, self.answers = lag, True


@pytest.fixture
def new_version(home: Home, monkeypatch: pytest.MonkeyPatch) -> NewVersion:
    new = NewVersion(home)
    monkeypatch.setattr(launching, "start", new.start)
    monkeypatch.setattr(drivers, "is_there", lambda _, token: token == new.token)
    monkeypatch.setattr(stability, "lag_of", new.lag_of)
    monkeypatch.setattr(stability, "_open_seconds", lambda *_: 0.0)
    file = home.path.with_name("new.py")
    file.write_text("new")
    releases.keep(home, "new", file, file.read_bytes())
    return new


def going_on(home: Home) -> Upgrade:
    plan = upgrade_plan.read(home) or under_way(home, UpgradeStep.START, new="new", token="t")
    tools = UpgradeEnvironment(
        config=dict, launch=lambda *_: Launch(command=("new.py",), printable="new.py", environment={})
    )
    return Upgrade(home, plan, tools)


def test_a_version_on_a_busy_source_is_stable_though_the_first_look_at_it_got_no_answer(
    home: Home, new_version: NewVersion
) -> None:
    new_version.lag = 200
    with pytest.raises(ExactlyOnceError, match="can't be seen"):
        going_on(home).advance()
    new_version.has_committed(3, lag=200)
    plan = going_on(home).advance()
    assert isinstance(plan, Plan)
    assert (plan.step, plan.reason) == (UpgradeStep.DONE, "stable after 3 commits, 200 source records to go")


def test_what_waited_at_a_versions_start_is_not_what_waits_when_the_lost_start_is_gone_on_with(
    home: Home, new_version: NewVersion
) -> None:
    new_version.lag, new_version.dies_after_launch = 200, True
    with pytest.raises(KeyboardInterrupt):
        going_on(home).advance()
    new_version.has_committed(3, lag=10_000)
    assert isinstance(going_on(home).advance(), WaitCondition), "the lag has grown"
    new_version.has_committed(9, lag=200)
    assert isinstance(going_on(home).advance(), Plan)


@pytest.mark.parametrize("step", [UpgradeStep.START, UpgradeStep.START_OLD])
def test_a_start_that_another_supervisor_forestalled_is_repeated(
    home: Home, new_version: NewVersion, monkeypatch: pytest.MonkeyPatch, step: UpgradeStep
) -> None:
    def start(*_: object, **__: object) -> None:
        raise ChangedError("another start was announced meanwhile")

    monkeypatch.setattr(launching, "start", start)
    under_way(home, step, old="old", new="new", token="t")
    with pytest.raises(AlreadyRunningError, match="another start was announced"):
        going_on(home).advance()
    plan = upgrade_plan.read(home)
    assert plan is not None
    assert plan.step is step
    monkeypatch.setattr(launching, "start", new_version.start)
    new_version.dies_after_launch = True
    with pytest.raises(KeyboardInterrupt):
        going_on(home).advance()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    clock = StandingClock()
    for module in (drivers, leases, processes, machine, stopping):
        monkeypatch.setattr(module, "time", clock)
    return clock


def driver_elsewhere(home: Home, token: str = "t") -> None:
    """Let a driver of another host hold the pipeline, and give no sign of life."""
    lease = leases.acquire(home.lease, "p", token, run=7)
    json_store.write(home.lease, asdict(replace(lease, machine="elsewhere", host="worker-2")))


def test_an_upgrade_goes_on_when_its_old_driver_is_lost_with_its_host(home: Home, clock: StandingClock) -> None:
    driver_elsewhere(home)
    savepoint = pinned_savepoint(home, 7)
    under_way(
        home, UpgradeStep.STOP, new="new", entered=clock.now, savepoint=savepoint, options=Options(savepoint=False)
    )
    with pytest.raises(TouchedError):
        Upgrade(home, going_on(home)._read(), UpgradeEnvironment(config=config, launch=launch)).advance()
    plan = upgrade_plan.read(home)
    assert plan is not None
    assert (plan.step, plan.was_stopped) == (UpgradeStep.START, False)
    assert requests.stop_requested(home, "t") is not None


def test_a_rollback_goes_on_when_the_new_driver_is_lost_with_its_host(home: Home, clock: StandingClock) -> None:
    driver_elsewhere(home)
    under_way(home, UpgradeStep.WATCH, token="t", entered=clock.now)
    assert settles(rollback(home)) is UpgradeStep.ROLLED_BACK


def test_a_new_version_whose_driver_is_lost_with_its_host_is_not_stable(home: Home, clock: StandingClock) -> None:
    driver_elsewhere(home)
    statuses.write(home.status, Status(pipeline="p", token="t", state=DriverState.RUNNING, commits_of_run=1))
    under_way(home, UpgradeStep.WATCH, token="t", log="/none", options=Options(on_unstable="fail"))
    plan = going_on(home).advance()
    assert isinstance(plan, Plan)
    assert plan.step is UpgradeStep.UNSTABLE
    assert "worker-2, run 7" in str(plan.reason)
    assert "gives no sign of life" in str(plan.reason)


@pytest.mark.parametrize("state", [None, DriverState.STARTING, DriverState.RUNNING])
def test_a_rollback_fails_when_the_old_versions_driver_is_lost_with_its_host(
    home: Home, clock: StandingClock, state: DriverState | None
) -> None:
    driver_elsewhere(home)
    if state is not None:
        replay = ReplayReport(first=1, last=9, done=3)
        statuses.write(home.status, Status(pipeline="p", token="t", state=state, replay=replay))
    under_way(home, UpgradeStep.WATCH_OLD, token="t", log="/none", entered=clock.now)
    plan = going_on(home).advance()
    assert isinstance(plan, Plan)
    assert plan.step is UpgradeStep.FAILED
    assert "gives no sign of life" in str(plan.reason)


@pytest.mark.parametrize("state", [None, DriverState.STARTING, DriverState.RUNNING])
def test_an_old_version_that_comes_no_further_is_not_waited_for_without_an_end(
    home: Home, clock: StandingClock, state: DriverState | None
) -> None:
    leases.acquire(home.lease, "p", "t", run=7)
    begun = clock.now
    under_way(home, UpgradeStep.WATCH_OLD, token="t", entered=begun, options=Options(stable_timeout=600))
    progressed = 0.0
    if state is not None:
        replay = ReplayReport(first=1, last=9, done=3)
        progressed = begun + 300 if state is DriverState.RUNNING else 0.0
        status = Status(pipeline="p", token="t", state=state, replay=replay, progressed=progressed)
        statuses.write(home.status, status)
    clock.now = max(begun, progressed) + 600
    assert isinstance(going_on(home).advance(), WaitCondition), "a replay may take longer, if it goes on"
    clock.now += 1
    with pytest.raises(NotAnsweredError, match="has come no further for 600 s"):
        going_on(home).advance()
    assert isinstance(going_on(home).advance(), WaitCondition), "the next try has as long again"


def pinned_savepoint(home: Home, commit: int) -> str:
    savepoints = Savepoints(home.savepoints)
    made = crafted.checkpoint(home.path.with_name(f"checkpoint-{commit}"))
    return savepoints.pin(savepoints.take(made, 2, crafted.record(2, commit=commit), None, request=f"a{commit}").id).id


def pinned(home: Home) -> list[str]:
    return [savepoint.id for savepoint in Savepoints(home.savepoints).list() if savepoint.pinned]


def begun_after(home: Home, end: UpgradeStep, **fields: object) -> Plan:
    """Begin an upgrade after one that has ended so, and another one that was refused."""
    under_way(home, end, pinned=True, **fields)
    new = str(home.path.with_name("new.py"))
    refused = begin_upgrade(home, "p", new, Options(savepoint=False), request="e5")
    upgrade_plan.write(home, replace(refused, step=UpgradeStep.REFUSED), before=refused)
    return begin_upgrade(home, "p", new, Options(savepoint=False), request="f6")


@pytest.mark.parametrize("is_reused", [False, True], ids=["its own savepoint", "the same savepoint"])
@pytest.mark.parametrize("end", [UpgradeStep.UNSTABLE, UpgradeStep.FAILED])
def test_what_an_upgrade_that_ended_badly_has_pinned_is_unpinned_when_the_next_ends_well(
    home: Home, new_version: NewVersion, end: UpgradeStep, *, is_reused: bool
) -> None:
    first, second = pinned_savepoint(home, 10), pinned_savepoint(home, 20)
    plan = begun_after(home, end, savepoint=second, unpin=(first,))
    third = second if is_reused else pinned_savepoint(home, 30)
    if not is_reused:
        Savepoints(home.savepoints).pin(third, pinned=False)
    at_stop = replace(plan, step=UpgradeStep.STOP, old="old", new="new", savepoint=third)
    upgrade_plan.write(home, at_stop, before=plan)
    stop_asked(home, "f6", "t")
    with pytest.raises(ExactlyOnceError, match="can't be seen"):
        going_on(home).advance()
    new_version.has_committed(3, lag=0)
    done = going_on(home).advance()
    assert isinstance(done, Plan)
    assert (done.step, pinned(home)) == (UpgradeStep.DONE, [third])
    release = releases.read(home)
    assert release is not None
    assert (release.savepoint, release.pinned) == (third, True), "the next upgrade unpins it"


def test_an_upgrade_to_the_version_in_use_unpins_all_but_the_way_back(
    home: Home, new_version: NewVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pinned_savepoint(home, 10), pinned_savepoint(home, 20)
    releases.write(
        home, Release(version="new", since=1, previous="old", savepoint=second, pinned=True), releases.stored(home)
    )
    plan = begun_after(home, UpgradeStep.UNSTABLE, savepoint=second, unpin=(first,))
    going = going_on(home)
    monkeypatch.setattr(going, "_savepoint_to_check", lambda *_: Savepoints(home.savepoints).get(second))
    monkeypatch.setattr(going, "_check_sources", lambda *_: None)
    answer: dict[str, object] = {"version": "new", "job_hash": plan.job_hash, "sources": {}, "verdict": "compatible"}
    monkeypatch.setattr(machine, "check_version", lambda *_: answer)
    done = going.advance()
    assert isinstance(done, Plan)
    assert (done.step, pinned(home)) == (UpgradeStep.DONE, [second])
