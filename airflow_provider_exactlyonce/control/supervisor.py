"""Starts a pipeline's driver, watches it, starts it again; or takes over a driver that an earlier supervisor left.

Rules of a supervisor:

- *Identity before action.* The intent is on disk before the process is started. A later supervisor finds the driver by
  its start token, whenever we die.
- *Adopt a living driver, replace a dead one, wait while it is unknown which*: see
  :mod:`airflow_provider_exactlyonce.control.driver_locator`.
- *The lease protects from mistakes, Kafka's fencing protects the data.*
- *No evidence is a failure.* See :mod:`airflow_provider_exactlyonce.control.exit_classification`.
"""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import (
    exit_classification,
    launching,
    requests,
    restarts,
    stopping,
)
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.clusters import ClusterDriver
from airflow_provider_exactlyonce.control.driver_locator import DriverAttachment, DriverLocator
from airflow_provider_exactlyonce.control.driver_output import DriverOutput
from airflow_provider_exactlyonce.control.driver_watch import DriverWatch
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.lease import Liveness
from airflow_provider_exactlyonce.control.processes import DriverProcess, Ended, ExitedDriver
from airflow_provider_exactlyonce.control.restarts import RestartController
from airflow_provider_exactlyonce.control.standby_keeper import StandbyKeeper
from airflow_provider_exactlyonce.control.status import DriverState, Status
from airflow_provider_exactlyonce.control.supervision import (
    TRANSITIONS,
    StopSignal,
    Supervision,
    SupervisorEvent,
    SupervisorState,
)
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, StopRequestedError
from airflow_provider_exactlyonce.policies import termination as untils
from airflow_provider_exactlyonce.polling import retry_while
from airflow_provider_exactlyonce.storage.store import ChangedError, OutcomeUnknownError, is_no_answer

_log = logging.getLogger(__name__)

#: A home is asked for so long before and after a supervisor's run; not for ever, as Airflow, too, may have gone.
_ANSWER_SECONDS: Final = 3600.0

T = TypeVar("T")


def when_answered(ask: Callable[[], T], *, until: Callable[[], bool], pause: float) -> T:
    """Ask a home before or after a supervisor's run, again while it does not answer.

    :param until: whether to give up
    :param pause: seconds between two questions
    """

    def passes(error: Exception) -> bool:
        if not is_no_answer(error) or until():
            return False
        _log.warning("the home does not answer: %s", error)
        return True

    return retry_while(passes, ask, seconds=_ANSWER_SECONDS, poll_seconds=pause)


class Supervisor:
    """One stay with one pipeline's driver, over its restarts. May be left at any time: the driver goes on.

    :param launch: how to start it, or what tells that at each start: the pipeline may be upgraded meanwhile
    :param left: the driver that a supervisor of the same task try has left; its end is ours, wherever it happened
    """

    def __init__(
        self, home: Home, launch: Launch | Callable[[], Launch], supervision: Supervision, *, left: Intent | None = None
    ) -> None:
        self.home: Final = home
        self.supervision: Final = supervision
        self.restarts = 0
        self.series = ""  # start token of the first driver of ours
        self.output: DriverOutput | None = None  # of our driver, or of the one that we follow
        self._launch: Final = launch
        self._left: Final = left
        self.state = SupervisorState.RETURNING
        self._attached: DriverAttachment | None = None
        self._started: str | None = None  # start token of our driver, from before its start until it is attached
        self._is_over = False  # also when an exception has ended the run in the midst of a step
        self._watch: DriverWatch  # of the driver that is attached, or was last
        self._died = 0.0  # when the watched driver ended
        self._dead: Intent | None = None  # our driver that died last; the next one is its successor
        self._stop: Final = StopSignal()
        self._locator: Final = DriverLocator(home, supervision, self._stop)
        self._restarting: Final = RestartController(home, supervision, self._stop)
        self._standbys: Final = StandbyKeeper(home, self._next_launch)

    def __repr__(self) -> str:
        return f"Supervisor({self.supervision.owner!r}, {self.state.name}, {self.home!r})"

    @property
    def living(self) -> Intent | None:
        """The driver that is watched, ours or another owner's, as long as it has not ended."""
        if self._attached is None or self._watch.ended is not None:
            return None
        return self._attached.intent

    @property
    def waits_for_another(self) -> bool:
        """Whether the living driver is another owner's: the supervisor only waits for its end."""
        return self._attached is not None and not self._attached.ours

    def run(self) -> Iterator[Status]:
        """Yield the driver's status whenever something in it has changed, until the work is done.

        :raises StopRequestedError: when it was stopped before its work was done
        :raises ExactlyOnceError: when it failed and is not restarted; the message starts with the driver's own
        """
        steps = {
            SupervisorState.RETURNING: self._return,
            SupervisorState.FINDING: self._find,
            SupervisorState.STARTING: self._start,
            SupervisorState.JUDGING: self._judge,
            SupervisorState.DELAYING: self._delay,
        }
        try:
            while self.state is not SupervisorState.DONE:
                event = self._step(steps[self.state]) if self.state in steps else (yield from self._follow())
                self.state = TRANSITIONS[self.state, event]
        finally:
            self._is_over = True
            self._standbys.end()

    def _step(self, step: Callable[[], SupervisorEvent]) -> SupervisorEvent:
        try:
            return step()
        except (OSError, OutcomeUnknownError) as error:
            if not is_no_answer(error):
                raise
            self._locator.wait(f"{self.home.location} does not answer: {error}")
            return SupervisorEvent.NO_ANSWER

    def stop(self, reason: str) -> None:
        """Stop the driver, and wait for its end if it is watched.

        May be called from a signal handler, and again while it runs: a run that goes on stops a driver that it finds or
        starts by itself. A driver of another owner, whose end is not the end of our work, goes on.
        """
        if self._stop.reason is not None:
            return
        self._stop.reason = reason
        if self._attached is not None:
            self._end(self._attached)
        elif self._is_over and (token := self._unwatched()) is not None:
            stopping.detach(token, self.supervision.stop_timeout_seconds)
            stopping.PersistentStopRequest(self.home, token, reason=reason, owner=self.supervision.owner).go_on()

    def _unwatched(self) -> str | None:
        """Return the start token of a driver of ours that was just started, or is still looked for."""
        if self._started is not None:  # also while the home does not answer
            return self._started
        try:
            intent = intents.read(self.home.intent)
        except (OSError, OutcomeUnknownError) as error:
            if not is_no_answer(error):
                raise
            _log.warning("nobody knows whether there is a driver to stop: %s", error)
            return None
        return intent.token if intent is not None and self.supervision.takes_over(intent) else None

    def _end(self, attached: DriverAttachment) -> None:
        if not attached.ours:
            return
        stopping.stop_and_wait(
            self.home,
            attached.driver,
            reason=self._stop.reason or "",
            timeout_seconds=self.supervision.stop_timeout_seconds,
            owner=self.supervision.owner,
        )

    # -- the states -----------------------------------------------------------------------------------------------

    def _return(self) -> SupervisorEvent:
        intent = self._left
        if intent is None or not self.supervision.is_ours(intent):
            return SupervisorEvent.NOTHING_LEFT
        self.output, self.restarts = self._output_of(intent), intent.restarts
        if self._restarting.is_recorded(intent):  # we have waited for the next start
            self._dead = intent
            return SupervisorEvent.RESTART_RECORDED
        end = self._locator.end_of(intent)
        if end is None:
            return SupervisorEvent.NOTHING_LEFT
        return self._attach(DriverAttachment(driver=ExitedDriver(intent.token, end), intent=intent, ours=True))

    def _find(self) -> SupervisorEvent:
        attached = self._locator.find()
        if attached is None:
            return SupervisorEvent.NONE_LIVES
        if attached.ours and restarts.withdraw(self.home.restarts, attached.intent.token):
            _log.warning("the driver has come back: no restart is needed")
            self._dead = None
        return self._attach(attached)

    def _start(self) -> SupervisorEvent:
        self.supervision.on_poll()
        if self._stop.reason is not None:
            raise StopRequestedError(f"stopped before a driver was started: {self._stop.reason}")
        self.home.check_can_be_made()
        launch = self._next_launch()  # a refusal leaves no trace
        cluster, standby = self.supervision.cluster, self._standbys.ready(launch)
        if cluster is not None:
            cluster.check_access()
        token = standby.driver.token if standby else str(uuid.uuid4())
        log = standby.log if standby else launching.next_log(self.home)
        requests.forget_older(self.home.commands, "account-*.json")
        if self.home.kept_logs is not None:
            requests.forget_older(self.home.kept_logs, "driver-*.log")
        intent = Intent(
            token=token,
            owner=self.supervision.owner,
            until=self.supervision.until,
            series=self._dead.series if self._dead else token,
            restarts=self.restarts,
            log=str(log),
            clears=self.supervision.clears,
            host=cluster.name if cluster is not None else socket.gethostname(),
            machine=cluster.name if cluster is not None else process_identity.this_machine(),
        )
        self.output = self._output_of(intent)
        standby_driver = standby.driver if standby else None
        self._started = token
        try:
            judged = self._locator.judged
            driver = launching.start(
                self.home, launch, intent, judged=judged, announced=self._heed_stop, standby=standby_driver
            )
        except ChangedError as error:
            self._started = None
            _log.info("%s", error)
            return SupervisorEvent.ANOTHER_STARTS
        except BaseException:
            self._standbys.end()  # an intent may name it, and it is unknown whether it goes on
            raise
        self._standbys.handed_over()
        if self._dead is not None:
            restarts.relaunched(self.home.restarts, self._dead.token, time.time())
        _log.info("%s %s", "the standby goes on, as" if standby else "started", launch.printable)
        _log.info("pid %s, output in %s", driver.process.pid, log)
        process: DriverProcess = driver
        if cluster is not None:
            process = ClusterDriver(token, self.home.lease, cluster, submission=driver)
        self._attach(DriverAttachment(driver=process, intent=intent, ours=True))
        return SupervisorEvent.STARTED

    def _next_launch(self) -> Launch:
        return self._launch() if callable(self._launch) else self._launch

    def _heed_stop(self) -> None:
        if self._dead is not None:
            self._restarting.heed_stop(self._dead)

    def _attach(self, attached: DriverAttachment) -> SupervisorEvent:
        self.output = self._output_of(attached.intent)
        if attached.ours:
            self.restarts, self.series = attached.intent.restarts, attached.intent.series
        self._watch = DriverWatch(self.home, self.supervision, attached, self._stop, self.stop, self._keep_standby)
        self._attached, self._started = attached, None
        if self._stop.reason is not None:  # asked while we were starting it
            self._end(attached)
        return SupervisorEvent.FOUND_OURS if attached.ours else SupervisorEvent.FOUND_ANOTHERS

    def _keep_standby(self, status: Status) -> None:
        if self.supervision.standby:
            self._standbys.keep(status)

    def _follow(self) -> Generator[Status, None, SupervisorEvent]:
        yield from self._watch.until_its_end()
        self._attached, self._died = None, time.time()
        return SupervisorEvent.ENDED

    def _judge(self) -> SupervisorEvent:
        intent, ended = self._watch.attached.intent, self._watch.ended or Ended(exit_code=None)
        try:
            event = self._verdict(intent, ended)
        except BaseException as error:
            if not is_no_answer(error):
                self._forget(intent, ended)
            raise
        self._forget(intent, ended)  # not before the record: a stop request finds one of them
        return event

    def _forget(self, intent: Intent, ended: Ended) -> None:
        if not ended.is_silence:  # its intent identifies it when it comes back
            intents.remove(self.home.intent, intent.token)

    def _output_of(self, intent: Intent) -> DriverOutput:
        return DriverOutput(self.home, intent.token, Path(intent.log))

    def _verdict(self, intent: Intent, ended: Ended) -> SupervisorEvent:
        output = self._output_of(intent)
        if intent.is_here:
            output.keep()
        error = exit_classification.failure(self.home, intent.token, ended, output)
        killed = error is None and requests.killed_by(self.home, intent.token) is not None
        if killed and self._stop.reason is None:
            return SupervisorEvent.STOPPED_BEFORE
        if error is None and self._is_done(intent):
            return SupervisorEvent.WORK_DONE
        if isinstance(error, AlreadyRunningError) and (predecessor := self._come_back(intent)) is not None:
            intents.write(self.home.intent, predecessor)
            return SupervisorEvent.PREDECESSOR_LIVES
        if error is None or self._stop.reason is not None:
            raise StopRequestedError(f"the driver was stopped at {self._last_commit(intent)}: {self._stop.reason}")
        self._restarting.record(intent, ended, error, number=self.restarts + 1, died=self._died)
        self._dead = intent
        return SupervisorEvent.RESTART_RECORDED

    def _come_back(self, successor: Intent) -> Intent | None:
        """Return our driver that was lost, if it is the one that its successor has found alive."""
        held, life = leases.observe(self.home.lease)
        if held is None or life is not Liveness.ALIVE:
            return None
        if self._dead is not None and held.token == self._dead.token:
            return self._dead
        for restart in restarts.of_series(self.home.restarts, successor.series):
            if restart.token == held.token and restart.log:  # an earlier stay has lost it
                return replace(
                    successor,
                    token=held.token,
                    restarts=restart.number - 1,
                    log=restart.log,
                    host=held.host,
                    machine=held.machine,
                    pid=held.pid,
                    process_started=held.process_started,
                )
        return None

    def _delay(self) -> SupervisorEvent:
        if self._dead is None:
            raise AssertionError("a restart comes after a death")
        self.restarts = self._restarting.wait(self._dead)
        return SupervisorEvent.RESTART_DUE

    def _is_done(self, intent: Intent) -> bool:
        """Whether a driver that ended in order has done its work, too.

        :raises StopRequestedError: when another process has asked the driver to stop before it had
        """
        status = exit_classification.status_of(self.home, intent.token)
        if status is not None and status.state is DriverState.FINISHED:
            return True
        if self._stop.reason is None and self.supervision.until != untils.FOREVER:
            raise StopRequestedError(
                f"somebody stopped the driver at {self._last_commit(intent)}, before its work was done (until "
                f"{self.supervision.until}): "
                f"{requests.stop_requested(self.home, intent.token)}"
            )
        return self._stop.reason is None

    def _last_commit(self, intent: Intent) -> str:
        status = exit_classification.status_of(self.home, intent.token)
        return f"commit {status.commit}" if status else "an unknown commit"
