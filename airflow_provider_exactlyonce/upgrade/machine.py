"""Takes the steps of an upgrade's plan. Operators, the retries of their tasks and the command all call this.

Every step is on disk before it is taken and may be taken twice; see
:class:`~airflow_provider_exactlyonce.control.upgrade_plan.UpgradeStep`. What a step finds out is written with the next
one, which :data:`~airflow_provider_exactlyonce.upgrade.transitions.TRANSITIONS` has.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce import failpoints, process_identity
from airflow_provider_exactlyonce.checkpoint import job as jobs
from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
from airflow_provider_exactlyonce.checkpoint.request import SavepointTaker, not_answered
from airflow_provider_exactlyonce.checkpoint.restore import RestoreRequest, restore
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.checkpoint.stop import Stop, Stopped, not_stopped
from airflow_provider_exactlyonce.control import (
    drivers,
    exit_classification,
    launching,
    releases,
    stopping,
    upgrade_plan,
)
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.lease import Sure
from airflow_provider_exactlyonce.control.processes import ChildDriver
from airflow_provider_exactlyonce.control.releases import Release
from airflow_provider_exactlyonce.control.requests import WaitCondition
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.control.upgrade_plan import Plan, UpgradeStep
from airflow_provider_exactlyonce.exceptions import (
    AlreadyRunningError,
    ExactlyOnceError,
    IncompatibleVersionError,
    NotAnsweredError,
    RefusedError,
    ShadowDiffersError,
    UpgradeUnstableError,
)
from airflow_provider_exactlyonce.ledger.reader import tail_of
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.storage.store import ChangedError
from airflow_provider_exactlyonce.upgrade import shadow_run, stability
from airflow_provider_exactlyonce.upgrade.environment import UpgradeEnvironment, check_version
from airflow_provider_exactlyonce.upgrade.transitions import Event, moved

_POLL_SECONDS: Final = 1.0
#: How a plan's error comes back as itself.
_ERRORS: Final[Mapping[str, type[ExactlyOnceError]]] = {
    error.__name__: error
    for error in (RefusedError, IncompatibleVersionError, ShadowDiffersError, UpgradeUnstableError)
}


class Upgrade:
    """One plan, and the tools to carry it out.

    :param home: of the pipeline
    :param plan: as it was begun
    :param dry_run: it is a dry run's
    """

    def __init__(self, home: Home, plan: Plan, tools: UpgradeEnvironment, *, dry_run: bool = False) -> None:
        self._home: Final = home
        self._id: Final = plan.id
        self._pipeline: Final = plan.pipeline
        self._tools: Final = tools
        self._dry_run: Final = dry_run
        self._written: Plan | None = None
        self._sure: Sure = nullcontext
        self._detector: Final = drivers.FailureDetector(home)
        self._child: ChildDriver | None = None  # it is reaped when this object is asked again, or our process ends
        self._steps: Final[Mapping[UpgradeStep, Callable[[Plan], Plan | WaitCondition]]] = {
            UpgradeStep.CHECK: self._check,
            UpgradeStep.COMPARE: self._compare,
            UpgradeStep.STOP: self._stop,
            UpgradeStep.START: self._start,
            UpgradeStep.WATCH: self._watch,
            UpgradeStep.STOP_NEW: self._stop_new,
            UpgradeStep.RESTORE: self._restore,
            UpgradeStep.START_OLD: self._start_old,
            UpgradeStep.WATCH_OLD: self._watch_old,
            UpgradeStep.REST: self._rest,
        }

    def advance(self) -> Plan | WaitCondition:
        """Take all steps that can be taken now; returns the plan when it is over, or what has to happen first.

        :raises AlreadyRunningError: when somebody else works on it, or has replaced it
        :raises ExactlyOnceError: when a step failed and may be taken again
        """
        with upgrade_plan.working_on(self._home, self._pipeline, dry_run=self._dry_run) as self._sure:
            plan = self._read()
            while not plan.is_over:
                failpoints.reach(f"upgrade-{plan.step}")
                outcome = self._steps[plan.step](plan)
                if isinstance(outcome, WaitCondition):
                    return outcome
                failpoints.reach(f"upgrade-{plan.step}-taken")
                plan = self._write(replace(outcome, entered=time.time()))
                self._tools.tell(f"{plan.step}" + (f": {plan.reason}" if plan.reason else ""))
            return plan

    def run(self) -> Plan:
        """Take all steps, and wait where it has to be.

        :raises ExactlyOnceError: as :meth:`advance` does
        """
        while isinstance(outcome := self.advance(), WaitCondition):
            time.sleep(self._home.look_every(_POLL_SECONDS))
        return outcome

    def _read(self) -> Plan:
        plan = upgrade_plan.read(self._home, dry_run=self._dry_run)
        if plan is None or plan.id != self._id:
            state = plan.sentence if plan is not None else "its plan is gone"
            raise AlreadyRunningError(f"this upgrade of {self._pipeline} was replaced: {state}")
        self._written = plan
        return plan

    def _write(self, plan: Plan) -> Plan:
        """Write the plan, if nobody has gone on with it while we were frozen.

        :raises AlreadyRunningError: when somebody has
        """
        with self._sure():
            upgrade_plan.write(self._home, plan, before=self._written, dry_run=self._dry_run)
        self._written = plan
        return plan

    # -- nothing is touched -----------------------------------------------------------------------------------------

    def _check(self, plan: Plan) -> Plan | WaitCondition:
        """Compare the new version with a savepoint of the version in use."""
        try:
            old = self._version_in_use(plan)
            self._check_way_back(plan, old)
            savepoint = self._savepoint_to_check(plan, old)
            if isinstance(savepoint, WaitCondition):
                return savepoint
            file = Path(str(plan.application))
            answer = check_version(self._tools, str(file), plan.pipeline, self._home.savepoints / savepoint.id)
            content = file.read_bytes()
            if {plan.job_hash} != {answer["job_hash"], hashlib.sha256(content).hexdigest()}:
                raise RefusedError(f"{file} was changed since the upgrade began: begin another one")
            self._check_sources(plan, answer["sources"])
            # What follows takes this, whatever becomes of the file.
            releases.keep(self._home, answer["version"], file, content)
        except AlreadyRunningError:
            raise
        except RefusedError as error:
            return _refused(plan, error)
        checked = replace(plan, old=old, new=answer["version"], savepoint=savepoint.id, check=answer)
        if answer["version"] == old:
            self._unpin(plan.unpin)
            return moved(checked, Event.IN_USE, reason=f"version {old} is in use already")
        if answer["verdict"] == "incompatible":
            return _refused(checked, IncompatibleVersionError(_why_incompatible(answer)))
        return moved(checked, Event.COMPATIBLE)

    def _check_sources(self, plan: Plan, sources: Mapping[str, str | None]) -> None:
        """Check that the new version reads its sources on the clusters that they were read from, as its start will.

        :param sources: {topics of a source, as text: its connection}, None for the pipeline's own cluster
        """
        from confluent_kafka import KafkaException

        config = self._tools.config()
        connections = {text: connection for text, connection in sources.items() if connection is not None}
        try:
            tail = tail_of(config, plan.pipeline)
            with closing(SourceClusters(config, connections, self._tools.find)) as clusters:
                clusters.check(tail, map(SourceTopics.parse, sources))
        except KafkaException as error:
            raise ExactlyOnceError(f"where {plan.pipeline} is read from can't be seen: {error.args[0]}") from error

    def _check_way_back(self, plan: Plan, old: str) -> None:
        """Check what a rollback would need."""
        options = plan.options
        if options.on_unstable != "rollback":
            return
        if releases.application(self._home, old) is None:
            raise RefusedError(
                f"{self._home} has no copy of the job's file of version {old}, which a rollback would start: "
                "start the pipeline once with this release of the package, or upgrade with on_unstable=fail"
            )
        reasons = () if options.savepoint or options.accept_nondeterminism else jobs.unsure(self._home, old)
        if reasons:  # with a savepoint at the stop, only commits of the new version are replayed, and not compared
            raise RefusedError(
                f"without a savepoint at the stop a rollback would replay commits of version {old}, which may give "
                f"other rows each time: {'; '.join(reasons)}. Upgrade with savepoint=True, or accept that state and "
                "output may differ: accept_nondeterminism=True"
            )

    def _version_in_use(self, plan: Plan) -> str:
        release = releases.read(self._home)
        if release is not None:
            return release.version
        tail = tail_of(self._tools.config(), plan.pipeline)
        if tail is None or tail.claim is None:
            raise RefusedError(f"pipeline {plan.pipeline} has no ledger on this cluster: nothing was ever committed")
        return tail.claim.version

    def _savepoint_to_check(self, plan: Plan, old: str) -> Savepoint | WaitCondition:
        savepoints, lineage = Savepoints(self._home.savepoints), self._home.current()
        fitting = [
            savepoint
            for savepoint in savepoints.list()
            if lineage is not None
            and savepoint.version == old
            and (savepoint.lineage == lineage.id or savepoint.id == lineage.savepoint)
        ]
        verified = next((savepoint for savepoint in reversed(fitting) if not savepoints.verify(savepoint.id)), None)
        if verified is not None:
            return verified
        taker = SavepointTaker(
            self._home,
            plan.pipeline,
            self._tools.config,
            request=f"{plan.id}a",
            label="before an upgrade",
            detector=self._detector,
        )
        outcome = taker.advance()
        if not isinstance(outcome, WaitCondition):
            return outcome
        return self._wait(plan, outcome, not_answered(self._home, outcome.token))

    def _wait(self, plan: Plan, condition: WaitCondition, error: ExactlyOnceError) -> WaitCondition:
        """Raise when the driver has taken longer than it may; the next try has as long again."""
        if time.time() - plan.entered > plan.options.stop_timeout:
            self._write(replace(plan, entered=time.time()))
            raise error
        return replace(condition, seconds=plan.options.stop_timeout)

    def _not_stopped(self, plan: Plan, token: str | None) -> NotAnsweredError:
        return not_stopped(self._home, plan.pipeline, token, plan.options.stop_timeout)

    def _compare(self, plan: Plan) -> Plan:
        """Repeat the newest commits with the new version, and compare what it gives with what was delivered."""
        as_intended = Event.AS_INTENDED_DRY if self._dry_run else Event.AS_INTENDED
        if plan.options.shadow_commits == 0:
            return moved(plan, as_intended)
        try:
            application = self._job_file(str(plan.new))
            report = shadow_run.run(self._home, plan, application, self._tools, dry_run=self._dry_run)
        except RefusedError as error:
            return _refused(plan, error)
        compared = replace(plan, shadow=report)
        if report["intended"]:
            return moved(compared, as_intended)
        return _refused(compared, ShadowDiffersError(shadow_run.sentence(report)))

    # -- forward ----------------------------------------------------------------------------------------------------

    def _stop(self, plan: Plan) -> Plan | WaitCondition:
        """Stop the old version with a savepoint, which stays until nobody can want to go back to it."""
        reason = f"an upgrade to version {plan.new}"
        outcome = self._stop_driver(plan, request=plan.id, reason=reason, savepoint=plan.options.savepoint)
        if isinstance(outcome, WaitCondition):
            return self._wait(plan, outcome, self._not_stopped(plan, outcome.token))
        savepoint = outcome.savepoint.id if outcome.savepoint is not None else str(plan.savepoint)
        savepoints, release = Savepoints(self._home.savepoints), releases.read(self._home)
        unpin = [release.savepoint] if release is not None and release.pinned and release.savepoint else []
        unpin += plan.unpin
        if not plan.pinned and (savepoint in unpin or not savepoints.get(savepoint).pinned):
            # Before it is: whoever comes after us must not take it for a person's.
            plan = self._write(replace(plan, pinned=True))
        savepoints.pin(savepoint)
        return moved(
            plan,
            Event.STOPPED,
            savepoint=savepoint,
            unpin=tuple(dict.fromkeys(savepoint_id for savepoint_id in unpin if savepoint_id != savepoint)),
            was_stopped=outcome.token is None,
            token=str(uuid.uuid4()),
        )

    def _start(self, plan: Plan) -> Plan:
        """Start the new version's driver; from here on it is the version in use."""
        release = Release(
            version=str(plan.new),
            since=int(plan.entered * 1000),
            previous=plan.old,
            savepoint=plan.savepoint,
            pinned=plan.pinned,
        )
        self._use(plan, release)
        try:
            if not self._is_started(str(plan.token)):  # what it has to catch up with, on disk before it commits
                lag = stability.lag_of(plan.pipeline, self._tools.config(), self._tools.find)
                plan = self._write(replace(plan, lag_peak=lag))
            return moved(plan, Event.STARTED, log=self._start_driver(plan, self._job_file(str(plan.new))))
        except AlreadyRunningError:
            raise
        except RefusedError as error:
            return self._unstable(plan, f"its driver could not be started: {error}")

    def _watch(self, plan: Plan) -> Plan | WaitCondition:
        """Wait until the new version is stable."""
        self._reap()
        report = stability.look(self._home, plan, self._tools.config(), self._tools.find, detector=self._detector)
        if report.unstable is not None:
            return self._unstable(plan, report.unstable)
        if report.stable is not None:
            self._unpin(plan.unpin)
            return moved(plan, _settled(plan), reason=f"stable after {report.stable}")
        if report.commits == 0 and report.lag > plan.lag_peak:
            self._write(replace(plan, lag_peak=report.lag))
        remaining = plan.entered + plan.options.stable_timeout - time.time()
        return WaitCondition(
            token=str(plan.token),
            commits=max(report.commits + 1, plan.options.stable_after),
            seconds=max(remaining, 1.0),
        )

    def _unstable(self, plan: Plan, reason: str) -> Plan:
        event = Event.UNSTABLE if plan.options.on_unstable == "rollback" else Event.UNSTABLE_TO_LEAVE
        return moved(plan, event, reason=reason, error=UpgradeUnstableError.__name__)

    # -- the way back -----------------------------------------------------------------------------------------------

    def _stop_new(self, plan: Plan) -> Plan | WaitCondition:
        """Stop what runs, with force if it does not end its batch in time."""
        reason = f"a rollback to version {plan.old}"
        request = f"{plan.id}b"  # the stop of the old version has the plan's own
        outcome = self._stop_driver(plan, request=request, reason=reason)
        if isinstance(outcome, WaitCondition):
            if time.time() - plan.entered <= plan.options.stop_timeout:
                return replace(outcome, seconds=plan.options.stop_timeout)
            if outcome.token is not None:
                stopping.ask_and_enforce(self._home, outcome.token, reason=reason, timeout_seconds=0)
                if self._detector.is_there(outcome.token):
                    raise self._not_stopped(plan, outcome.token)
        return moved(plan, Event.STOPPED)

    def _restore(self, plan: Plan) -> Plan:
        """Make a lineage of the savepoint, which replays what was committed since without writing it."""
        request = RestoreRequest(
            savepoint=plan.savepoint, version=plan.old, accept_nondeterminism=plan.options.accept_nondeterminism
        )
        try:
            restore(self._home, plan.pipeline, self._tools.config(), request, self._tools.find)
        except AlreadyRunningError:
            raise
        except RefusedError as error:
            return _failed(plan, f"the rollback to savepoint {plan.savepoint} is not possible: {error}")
        return moved(plan, Event.RESTORED, token=str(uuid.uuid4()))

    def _start_old(self, plan: Plan) -> Plan:
        """Start the version that is gone back to; from here on it is the version in use."""
        self._use(plan, Release(version=str(plan.old), since=int(plan.entered * 1000)))
        try:
            log = self._start_driver(plan, self._job_file(str(plan.old)))
        except AlreadyRunningError:
            raise
        except RefusedError as error:
            return _failed(plan, f"the driver of version {plan.old} could not be started: {error}")
        return moved(plan, Event.STARTED, log=log)

    def _watch_old(self, plan: Plan) -> Plan | WaitCondition:
        """Wait until the old version has caught up with the ledger, and is live."""
        self._reap()
        if not self._detector.is_there(str(plan.token)):
            ended = stability.how_it_ended(self._home, plan, self._detector)
            return _failed(plan, f"the driver of version {plan.old} ended after the rollback: {ended}")
        status = exit_classification.status_of(self._home, str(plan.token))
        is_live = status is not None and status.state is DriverState.RUNNING
        if status is None or not is_live or (status.replay is not None and status.replay.pending):
            progressed = max(plan.entered, status.progressed if status is not None else 0.0)
            if time.time() - progressed > plan.options.stable_timeout:
                self._write(replace(plan, entered=time.time()))  # the next try has as long again
                raise self._not_live(plan)
            return WaitCondition(token=str(plan.token), commits=0)
        self._unpin((*plan.unpin, *([str(plan.savepoint)] if plan.pinned else [])))
        return moved(plan, _settled(plan))

    def _not_live(self, plan: Plan) -> NotAnsweredError:
        return NotAnsweredError(
            f"{drivers.describe(self._home, plan.token)} of {plan.pipeline}, which is to run version {plan.old} again, "
            f"has come no further for {plan.options.stable_timeout:g} s, and is not live. Look at its status and its "
            f"output in {self._home.control}, then repeat this to wait longer. If it hangs, end its process first: no "
            "data is lost, and the rollback fails with what is known of its end"
        )

    def _rest(self, plan: Plan) -> Plan | WaitCondition:
        """Stop what was started, because nothing ran before."""
        outcome = self._stop_driver(plan, request=f"{plan.id}c", reason="the pipeline was stopped before")
        self._reap()
        if isinstance(outcome, WaitCondition):
            return self._wait(plan, outcome, self._not_stopped(plan, outcome.token))
        is_upgrade = plan.application is not None and plan.error is None
        return moved(plan, Event.UPGRADE_AT_REST if is_upgrade else Event.ROLLBACK_AT_REST)

    # -- both -------------------------------------------------------------------------------------------------------

    def _job_file(self, version: str) -> str:
        """Return the job's file of a version."""
        application = releases.application(self._home, version)
        if application is None:
            raise RefusedError(f"the copy of the job's file of version {version} is gone from {self._home}")
        return str(application.file)

    def _stop_driver(
        self, plan: Plan, *, request: str, reason: str, savepoint: bool | str = False
    ) -> Stopped | WaitCondition:
        stop = Stop(
            self._home,
            plan.pipeline,
            self._tools.config,
            request=request,
            reason=reason,
            savepoint=savepoint,
            detector=self._detector,
        )
        return stop.advance()

    def _use(self, plan: Plan, release: Release) -> None:
        """Make a version the one in use, if nobody has gone on with the plan while we were frozen.

        :raises AlreadyRunningError: when somebody has
        """
        stored = releases.stored(self._home)  # before the look at the plan: whoever goes on with it changes this later
        self._write(plan)
        with self._sure():
            releases.write(self._home, release, stored)

    def _start_driver(self, plan: Plan, application: str) -> str:
        """Start the driver that the plan names, unless an earlier try has; returns where its output is."""
        token, log = str(plan.token), launching.next_log(self._home)
        intent = Intent(
            token=token,
            owner=f"upgrade {plan.id}",
            until="forever",
            series=token,
            restarts=0,
            log=str(log),
            machine=process_identity.this_machine(),
        )
        last_intent = intents.read(self._home.intent)
        if self._is_started(token):
            return last_intent.log if last_intent is not None and last_intent.token == token else ""
        arguments = ["--home", str(self._home), "--until", "forever", *self._tools.driver_arguments]
        launch = self._tools.launch(application, arguments)
        judged = None if last_intent is None else last_intent.token
        with self._sure():
            try:
                self._child = launching.start(self._home, launch, intent, judged=judged)
            except ChangedError as error:
                raise AlreadyRunningError(f"the driver of pipeline {plan.pipeline} was not started: {error}") from error
        self._tools.tell(f"started {launch.printable}, output in {log}")
        return str(log)

    def _is_started(self, token: str) -> bool:
        """Whether an earlier try has started the driver that the plan names."""
        return drivers.is_there(self._home, token) or exit_classification.status_of(self._home, token) is not None

    def _reap(self) -> None:
        if self._child is not None:
            self._child.ended()

    def _unpin(self, savepoints: tuple[str, ...]) -> None:
        store, release = Savepoints(self._home.savepoints), releases.read(self._home)
        way_back = release.savepoint if release is not None else None  # of the version in use
        for listed in store.list():
            if listed.pinned and listed.id in savepoints and listed.id != way_back:
                store.pin(listed.id, pinned=False)


def raise_outcome(plan: Plan) -> None:
    """Raise what a plan that is over has failed with; returns when it has not.

    :raises RefusedError: when it was refused; nothing was touched
    :raises UpgradeUnstableError: when the new version was not stable, or the rollback failed
    """
    if plan.step in (UpgradeStep.DONE, UpgradeStep.CHECKED) or (
        plan.step is UpgradeStep.ROLLED_BACK and plan.application is None
    ):
        return
    error = _ERRORS.get(str(plan.error), UpgradeUnstableError)
    was_started = plan.application is not None and plan.step is not UpgradeStep.REFUSED
    subject = f"version {plan.new} of pipeline {plan.pipeline} was not stable: " if was_started else ""
    ending = {
        UpgradeStep.REFUSED: "",
        UpgradeStep.ROLLED_BACK: f". Version {plan.old} is in use again, from savepoint {plan.savepoint}; what version "
        f"{plan.new} has committed stays committed",
        UpgradeStep.UNSTABLE: f". It is left as it is; to go back: exactlyonce rollback {plan.pipeline}",
        UpgradeStep.FAILED: ". No driver runs: a person has to decide",
    }[plan.step]
    first, *more = str(plan.reason).split("\n", 1)
    raise error("\n".join([f"{subject}{first}{ending}", *more]))


def facts_of(plan: Plan) -> dict[str, object]:
    """Return what people want to know of an upgrade or a rollback, as JSON values."""
    return {
        "pipeline": plan.pipeline,
        "outcome": plan.step.value,
        "changed": plan.token is not None,
        "old": plan.old,
        "new": plan.new,
        "savepoint": plan.savepoint,
        "reason": plan.reason,
        "log": plan.log,
        "seconds": round(plan.entered - plan.started, 3),
        "check": plan.check,
        "shadow": plan.shadow,
    }


def _settled(plan: Plan) -> Event:
    return Event.SETTLED_TO_REST if plan.was_stopped else Event.SETTLED


def _refused(plan: Plan, error: RefusedError) -> Plan:
    return moved(plan, Event.REFUSED, reason=str(error), error=type(error).__name__)


def _failed(plan: Plan, reason: str) -> Plan:
    """Return the plan's end when the way back is blocked, too."""
    prefix = f"{plan.reason}; then " if plan.reason else ""
    return moved(plan, Event.FAILED, reason=f"{prefix}{reason}", error=UpgradeUnstableError.__name__)


def _why_incompatible(answer: Mapping[str, Any]) -> str:
    reasons = [
        f"{finding['aspect']}: {finding['old']} -> {finding['new']}: {finding['reason']}; {finding['way_out']}"
        for finding in answer["findings"]
        if finding["verdict"] == "incompatible"
    ]
    return f"version {answer['version']} can't go on from savepoint {answer['savepoint']}: " + ". ".join(reasons)
