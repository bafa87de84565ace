"""The operator that runs a pipeline."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from airflow.sdk import XComArg
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_provider_exactlyonce import codec, moments
from airflow_provider_exactlyonce.control import stopping
from airflow_provider_exactlyonce.exceptions import (
    ExactlyOnceError,
    RefusedError,
    StopRequestedError,
    WorkerShutdownError,
)
from airflow_provider_exactlyonce.hooks import arguments
from airflow_provider_exactlyonce.hooks import home as homes
from airflow_provider_exactlyonce.links import pipeline as links
from airflow_provider_exactlyonce.operators._driver import DriverOperator
from airflow_provider_exactlyonce.operators.retry import StreamingRetryPolicy
from airflow_provider_exactlyonce.policies import termination as untils
from airflow_provider_exactlyonce.policies.health_rules import HealthRules
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from airflow_provider_exactlyonce.policies.termination import Commits, Watermark
from airflow_provider_exactlyonce.triggers.pipeline import PipelineTrigger

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from airflow_provider_exactlyonce.control.home import Home
    from airflow_provider_exactlyonce.control.intent import Intent
    from airflow_provider_exactlyonce.control.launching import Launch
    from airflow_provider_exactlyonce.control.status import Status
    from airflow_provider_exactlyonce.control.supervisor import Supervisor

__all__ = [
    "Commits",
    "HealthRules",
    "RestartStrategy",
    "StreamingPipelineOperator",
    "StreamingRetryPolicy",
    "Watermark",
]

T = TypeVar("T")

#: What a task that runs gets into when a user marks or clears it.
_USERS_STATES: Final = frozenset({"failed", "success", "skipped", "restarting", "removed"})

#: A deferrable task gives its slot back after so long, though its driver has not come up yet.
_SLOT_SECONDS: Final = 60.0
#: Between two questions to a home that does not answer.
_SHORTEST_PAUSE_SECONDS: Final = 0.05
#: A delay before a restart that is shorter than this is not worth the way to the triggerer and back.
_WORTH_DEFERRING_SECONDS: Final = 3.0


class StreamingPipelineOperator(DriverOperator):
    """Run a pipeline's driver, supervise it, and start it again from the retained checkpoint when it dies.

    The driver is a process of its own and outlives the worker. The next try of the task, on this host or on another,
    takes over a living driver and replaces a lost one; of one that has done its work meanwhile it returns the result.

    Returns ``pipeline``, ``run``, ``lineage``, ``commit``, ``batch``, ``rows``, ``rows_by_sink``, ``records``,
    ``late_rows``, ``watermark`` (ISO 8601 or None) and ``restarts``; ``commit`` is what
    :class:`~airflow_provider_exactlyonce.sensors.commit_gate.CommitGateSensor` waits for. ``rows`` are those that the
    primary sink was given, which is the Kafka sink, or without one the first that is declared; ``rows_by_sink`` has
    each sink's, ``records`` counts source records once, and ``late_rows`` what operators have left out behind their
    watermark. The four are what the drivers have reported (the ledger counts the batch of a driver that died just after
    its commit, too).

    It fails with the driver's own error, one of :mod:`airflow_provider_exactlyonce.exceptions`, whose ``log_tail`` is
    the end of the driver's output.

    .. seealso:: :class:`~airflow_provider_exactlyonce.policies.restart_strategy.RestartStrategy`
        for which failures are restarted

    :param application: the job's file; a relative path is looked up beside the DAG's file. Of a pipeline that was
        upgraded to another version, that version's file is run instead, and a warning says so. (templated)
    :param checkpoint: the pipeline's home, made if absent: a path, a ``file:`` URI, ``hdfs://HOST:PORT/PATH``,
        ``s3://CONN_ID@BUCKET/PATH``, ``gs://CONN_ID@BUCKET/PATH``, or ``abfss://CONN_ID@CONTAINER/PATH``. A relative
        path begins at the worker's directory. (templated)
    :param conn_id: connection of type ``spark``. (templated)
    :param kafka_conn_id: connection of type ``kafka``. (templated)
    :param source_conn_ids: connections of type ``kafka`` that the job's sources name. (templated)
    :param postgres_conn_ids: connections of type ``postgres`` that the job's sinks name. (templated)
    :param store_conn_ids: connections of the job's tables: to stores of Delta tables, of a home's types, and to Iceberg
        catalogs, of type ``iceberg``; of another type the extra is taken as it is. (templated)
    :param schema_registry_conn_id: connection of type ``http`` to the schema registry of the job's formats. (templated)
    :param until: when the task is done. ``available``: everything that was available at the start is committed.
        ``Commits(n)``, ``Watermark(time)`` or a ``timedelta``: after so many commits, or when the output is complete up
        to that time, or after so long, counted from the first start over all tries; then the driver ends, too.
        ``forever``: when the pipeline is stopped. ``running``: when the driver runs; it goes on, unsupervised.
        Texts: ``commits:N``, ``watermark:TIME``, ``duration:SECONDS``. (templated)
    :param if_running: what to do about a living driver that another task, or a person, has started. ``adopt``: watch
        it if it is to run for ever and so is ours, else wait for its end and start ours; refused for one of a person.
        ``fail``: fail. ``replace``: stop it before its next batch and start ours. A driver of this task instance is
        always taken over
    :param restart_strategy: when a driver that died is started again; default three times, after ten seconds each
    :param health: when a living driver, or one that dies often, is given up; default never
    :param standby: ``warm``: a second driver stands by, with Spark up and the plan checked, and is the next one that is
        started. It costs the memory of an idle driver. Needs ``deferrable=False``, a driver that runs where the task
        does, and an ``until`` other than ``running``. Default none
    :param deferrable: wait in the triggerer, which must see the home, and take a worker's slot only to start a driver
        and to judge its end; default from ``[operators] default_deferrable``
    :param on_worker_shutdown: what happens to the driver when the worker is shut down while it supervises.
        ``detach``: it goes on, the next try takes it over (needs ``retries``; in the last try, and where the driver
        ends with the task's pod: ``kill``).
        ``stop_with_savepoint``: it saves, stops
        before its next batch, and is started again by the next try. ``kill``: the same without the savepoint. Default
        ``detach`` for a task with retries, ``kill`` for one without
    :param stop_on_kill: whether the driver is stopped before its next batch when a user marks or clears the task
    :param conf: Spark settings; those that the protocol needs are added, contradicting ones refused. (templated)
    :param jars: comma-separated jars, instead of Spark's Kafka connector as this package resolves it. (templated)
    :param packages: comma-separated Maven coordinates, instead of the same. (templated)
    :param application_args: further arguments of the job. (templated)
    :param env_vars: further environment variables of the driver. (templated)
    :param stop_timeout: how long the driver may take to end its batch when it is to stop, before it gets SIGTERM
    :param poll_interval: how often the driver's status is read
    """

    template_fields: Sequence[str] = ("application", "checkpoint", *DriverOperator.template_fields, "until")
    operator_extra_links: Collection[BaseOperatorLink] = links.LINKS
    ui_color = "#e25a1c"
    ui_fgcolor = "#ffffff"

    def __init__(
        self,
        *,
        application: str,
        checkpoint: str,
        until: str | Commits | Watermark | timedelta = untils.AVAILABLE,
        if_running: str = "adopt",
        restart_strategy: RestartStrategy | None = None,
        health: HealthRules | None = None,
        standby: str | None = None,
        on_worker_shutdown: str | None = None,
        stop_on_kill: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.application = application
        self.checkpoint = checkpoint
        self.until = until
        self.if_running = if_running
        self.restart_strategy = restart_strategy or RestartStrategy.fixed_delay(3, timedelta(seconds=10))
        self.health = health or HealthRules()
        self.standby = standby
        self.on_worker_shutdown = on_worker_shutdown or ("detach" if self.retries else "kill")
        self.stop_on_kill = stop_on_kill
        self.retry_policy = self.retry_policy or StreamingRetryPolicy()
        self._check_choices()
        self._come_after_what_gives_the_bound()
        self.pushed_links: dict[str, str] = {}
        self.is_signalled = False  # Airflow wants the task's process to end

    def _come_after_what_gives_the_bound(self) -> None:
        """Airflow renders what is in ``until``, and looks for the tasks before this one in lists and dictionaries."""
        # One that a worker makes of a mapped operator is none of its DAG's tasks, and their relations are settled.
        is_of_dag = self.has_dag() and self.dag.task_dict.get(self.task_id) is self  # type: ignore[no-untyped-call]
        if isinstance(self.until, Commits | Watermark) and is_of_dag:
            for name in self.until.template_fields:
                XComArg.apply_upstream_relationship(self, getattr(self.until, name))

    def _check_choices(self) -> None:
        arguments.check_choice(self, "if_running", ("adopt", "fail", "replace"))
        arguments.check_choice(self, "on_worker_shutdown", ("detach", "stop_with_savepoint", "kill"))
        arguments.check_kind(self, "restart_strategy", RestartStrategy, "RestartStrategy.exponential()")
        arguments.check_kind(self, "health", HealthRules, "HealthRules(max_restarts=20)")
        arguments.check(self, lambda: untils.text_of(self.until), "until")
        arguments.check(self, lambda: homes.check(self.checkpoint), "checkpoint")
        if self.standby is not None:
            arguments.check_choice(self, "standby", ("warm",))
            if self.deferrable:
                raise ValueError(
                    f"{self.task_id}: standby='warm' needs deferrable=False: the standby belongs to the task's "
                    "process, which ends when the task defers"
                )
        if self.on_worker_shutdown == "detach" and not self.retries:
            raise ValueError(
                f"{self.task_id}: on_worker_shutdown='detach' needs retries of at least 1: without a next try nobody "
                "would supervise the driver that goes on"
            )

    def execute(self, context: Context) -> dict[str, Any]:
        """Supervise the driver to its end, or defer.

        :raises ExactlyOnceError: the driver's own error when it is not restarted, or what this task has decided
        """
        deadline = None
        if self.deferrable and self.execution_timeout is not None:
            deadline = time.time() + self.execution_timeout.total_seconds()
        return _TaskSupervision(self, context, None, deadline).run()

    def resume_from_trigger(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on where the trigger has found something to do."""
        from airflow_provider_exactlyonce.control.intent import Intent

        intent = codec.load(Intent, event["intent"], "the event of the task's trigger")
        earlier_home = event.get("home")  # an earlier trigger has not told it
        return _TaskSupervision(self, context, intent, event["deadline"], earlier_home).run()

    def on_kill(self) -> None:
        """Note the signal. The supervision, which may exchange messages with Airflow, asks it for the reason."""
        self.is_signalled = True

    def home(self, context: Context) -> Home:
        """Return the home of the pipeline that is run."""
        return homes.home_at(self.checkpoint)

    def owner_of_driver(self, context: Context) -> str:
        """Return the driver's owner: a later try with the same owner takes it over."""
        ti = context["ti"]
        return f"{ti.dag_id}/{ti.task_id}/{ti.run_id}/{ti.map_index}"

    def outcome(self, context: Context, home: Home, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the task's result.

        :param facts: the driver's report of its end
        """
        return facts

    def launch(self, home: Home, until: str, goal: str | None) -> Launch:
        """Return how the driver is started.

        :raises RefusedError: when an argument or a connection can't be used
        """
        from airflow_provider_exactlyonce.control import releases
        from airflow_provider_exactlyonce.hooks.launch import build_launch

        declared = self.find_application(self.application)
        application = releases.application_to_run(home, declared)
        if application != declared:
            self.log.warning("%s is not the version that the pipeline was upgraded to; %s is", declared, application)
        return build_launch(home, self.driver_settings(application), until=until, goal=goal)


class _TaskSupervision:
    """One stay of the task in a worker: from its start, or its return from the triggerer, to its end or deferral.

    :param earlier_driver: the driver that an earlier stay of the same try has left
    :param deadline: the execution time-out, seconds since the epoch; only for a task that defers, which Airflow does
        not time
    :param earlier_home: where that stay has left it, None where that is unknown
    """

    def __init__(
        self,
        task: StreamingPipelineOperator,
        context: Context,
        earlier_driver: Intent | None,
        deadline: float | None,
        earlier_home: str | None = None,
    ) -> None:
        self._task: Final = task
        self._context: Final = context
        self._earlier_driver: Final = earlier_driver
        self._deadline: Final = deadline
        self._earlier_home: Final = earlier_home
        self._attached: tuple[str, float] | None = None  # start token, and since when
        self._has_answered_signal = False
        self._worker_ends = False
        self._has_warned = False

    def run(self) -> dict[str, Any]:
        """Return the task's result."""
        from airflow_provider_exactlyonce.control import exit_classification

        supervisor: Supervisor | None = None
        try:
            self._home = self._before_the_run(lambda: self._task.home(self._context))
            self._check_home()
            self._supervisor = supervisor = self._make_supervisor()
            last = self._supervise()
            facts = self._when_answered(lambda: self._result(last))
            result = self._when_answered(lambda: self._task.outcome(self._context, self._home, facts))
            self._when_answered(self._request.done)
        except AirflowTaskTimeout:
            if supervisor is not None:
                supervisor.stop("the task's execution time-out has passed")
            raise
        except ExactlyOnceError as error:
            if self._worker_ends and isinstance(error, StopRequestedError):
                raise WorkerShutdownError(f"the worker shuts down; {error}") from error
            if self._is_overdue() and isinstance(error, StopRequestedError):
                raise AirflowTaskTimeout(str(error)) from error
            if supervisor is not None and supervisor.output is not None and not isinstance(error, StopRequestedError):
                error.log_tail = exit_classification.log_tail(supervisor.output)
            self._task.log.error("%s: for its meaning and remedy run `%s`", type(error).__name__, error.page())
            raise
        return result

    def _before_the_run(self, ask: Callable[[], T]) -> T:
        # At a first stay nothing is lost by an error, and the home's name may be mistyped.
        return ask() if self._earlier_driver is None else self._when_answered(ask)

    def _check_home(self) -> None:
        """Check that the driver that was left is in the task's home.

        :raises RefusedError: when it is not; a driver of the task's own is asked to stop
        """
        driver = self._earlier_driver
        if driver is None or self._earlier_home in (None, self._home.location):
            return
        earlier = homes.home_at(self._earlier_home)
        if str(earlier) == str(self._home):  # by another connection
            return
        asked, owner = "", self._task.owner_of_driver(self._context)
        if driver.owner == owner:
            reason = "its task has another home now"
            request = stopping.PersistentStopRequest(earlier, driver.token, reason=reason, owner=owner)
            asked = ", and was asked to stop" if request.go_on() else ", and could not be asked to stop"
        raise RefusedError(
            f"the task's home is now {self._home}, and the driver that it has left (start token {driver.token}) runs "
            f"in {earlier}{asked}. Airflow renders templates again whenever a deferred task comes back: let those of "
            "the home, and of a backfill's range, render to the same each time"
        )

    def _when_answered(self, ask: Callable[[], T]) -> T:
        """Ask the home until it answers, or the task is to end."""
        from airflow_provider_exactlyonce.control import supervisor

        pause = max(arguments.seconds(self._task.poll_interval), _SHORTEST_PAUSE_SECONDS)
        return supervisor.when_answered(ask, until=lambda: self._task.is_signalled or self._is_overdue(), pause=pause)

    def _supervise(self) -> Status | None:
        from airflow_provider_exactlyonce.control.status import DriverState, progress_line
        from airflow_provider_exactlyonce.hooks import metrics

        last: Status | None = None
        pushing = links.Pushing(self._task.pushed_links, self._context["ti"], self._supervisor.supervision.cluster)
        with metrics.reporting(self._home):
            for status in self._supervisor.run():
                last = status
                self._task.log.info("%s", progress_line(status))
                pushing.push(status)
                intent = self._supervisor.living
                if status.state is DriverState.RUNNING and intent is not None and not self._task.is_signalled:
                    if self._until == untils.RUNNING:
                        break
                    if self._may_leave(intent):
                        self._defer(intent)
        return last

    def _make_supervisor(self) -> Supervisor:
        from airflow_provider_exactlyonce.control.supervision import IfRunning, Supervision
        from airflow_provider_exactlyonce.control.supervisor import Supervisor
        from airflow_provider_exactlyonce.hooks import spark_submit

        task = self._task
        try:
            self._until = untils.text_of(task.until)
            driver_until = untils.FOREVER if self._until == untils.RUNNING else self._until
            counts = untils.target_of(driver_until) is not None
        except ValueError as error:
            raise RefusedError(str(error)) from error
        cluster = spark_submit.cluster_of(task.conn_id, task.driver_settings(task.application).conf)
        if task.standby is not None and cluster is not None:
            raise RefusedError(
                f"standby='warm' needs a driver that runs where the task does, and connection {task.conn_id} has "
                f"deploy-mode cluster ({cluster.name}), where the manager starts each driver. Leave standby out, or "
                "give the task a connection with deploy-mode client"
            )
        if self._until == untils.RUNNING and cluster is None and self._task.ends_with_its_pod:
            raise RefusedError(
                "until='running' needs a driver that outlives the task, and this task is a pod of Airflow's "
                f"KubernetesExecutor, with which its driver ends. Give connection {task.conn_id} deploy-mode cluster, "
                "or let the task supervise the driver: until='forever'"
            )
        if task.standby is not None and self._until == untils.RUNNING:
            raise RefusedError("standby='warm' and until='running': once the task is done nobody starts the next one")
        self._request = self._before_the_run(lambda: homes.request_of(self._home, self._context))
        supervision = Supervision(
            owner=task.owner_of_driver(self._context),
            until=driver_until,
            strategy=task.restart_strategy,
            cluster=cluster,
            if_running=IfRunning(task.if_running),
            health=task.health,
            clears=self._request.clears,
            poll_seconds=arguments.seconds(task.poll_interval),
            stop_timeout_seconds=arguments.seconds(task.stop_timeout),
            standby=task.standby is not None,
            on_poll=self._on_poll,
            on_delay=self._on_delay,
        )
        goal = self._request.name if counts else None

        def launch() -> Launch:
            driver_launch = task.launch(self._home, driver_until, goal)  # what that refuses leaves nothing in the home
            if goal is not None:
                self._request.begin()
            return driver_launch

        return Supervisor(self._home, launch, supervision, left=self._earlier_driver)

    # -- the supervisor's questions -------------------------------------------------------------------------------

    def _on_poll(self) -> None:
        if self._task.is_signalled and not self._has_answered_signal:
            self._has_answered_signal = True
            self._answer_signal()
        if self._is_overdue():
            self._supervisor.stop("the task's execution time-out has passed")
        intent = self._supervisor.living
        if intent is not None and self._may_leave(intent):
            if self._attached is None or self._attached[0] != intent.token:
                self._attached = intent.token, time.monotonic()
            if time.monotonic() - self._attached[1] > _SLOT_SECONDS:
                self._defer(intent)

    def _may_leave(self, intent: Intent) -> bool:
        """Whether the task may defer while its driver lives."""
        if not self._task.deferrable or self._until == untils.RUNNING or self._task.is_signalled:
            return False
        if not (intent.is_here and self._task.ends_with_its_pod):
            return True
        if not self._has_warned:
            self._has_warned = True
            self._task.log.warning(
                "deferrable=True, and this task waits in its worker: it is a pod of Airflow's KubernetesExecutor, "
                "which ends when the task defers, and its driver with it. To let it defer, give connection %s "
                "deploy-mode cluster",
                self._task.conn_id,
            )
        return False

    def _on_delay(self, dead: Intent, due: float) -> None:
        if self._task.deferrable and due - time.time() > _WORTH_DEFERRING_SECONDS:
            self._defer(dead, due)

    def _is_overdue(self) -> bool:
        return self._deadline is not None and time.time() >= self._deadline

    def _answer_signal(self) -> None:
        """Apply ``on_worker_shutdown``, or ``stop_on_kill`` when a user has marked or cleared the task."""
        if self._is_a_users_wish():
            if not self._task.stop_on_kill:
                raise StopRequestedError("the task was killed; its driver goes on, as stop_on_kill=False wants")
            self._supervisor.stop("the task was killed")
            return
        self._worker_ends = True
        choice = self._task.on_worker_shutdown
        if choice == "detach":
            hindrance = self._hindrance_to_detach()
            if hindrance is None:
                raise WorkerShutdownError("the worker shuts down; the driver goes on, and the next try takes it over")
            self._task.log.warning("%s: it is stopped in spite of on_worker_shutdown='detach'", hindrance)
        if choice == "stop_with_savepoint":
            self._ask_for_savepoint()
        self._supervisor.stop(f"the worker shuts down (on_worker_shutdown={choice!r})")

    def _hindrance_to_detach(self) -> str | None:
        """Return why the driver can't be left to the next try, None when it can."""
        ti, intent = self._context["ti"], self._supervisor.living
        if intent is not None and intent.is_here and self._task.ends_with_its_pod:
            return "this task is a pod of Airflow's KubernetesExecutor, and its driver would end with it"
        if ti.try_number <= ti.max_tries:
            return None
        tries = f"{ti.try_number} of {ti.max_tries + 1}"
        return f"this is the last try, {tries}, and nobody would supervise a driver that goes on"

    def _is_a_users_wish(self) -> bool:
        """Tell a user's mark or clear from a worker that shuts down: both come as SIGTERM, the state tells them apart.

        A scheduler that was replaced may have queued the task again: that is none of a user's states.
        """
        ti = self._context["ti"]
        try:
            states = ti.get_task_states(
                dag_id=ti.dag_id, map_index=ti.map_index, task_ids=[ti.task_id], run_ids=[ti.run_id]
            )
        except Exception as error:  # whatever it is: a user's wish comes with an answer of the API server's
            self._task.log.warning("Airflow does not say what state the task is in: %s", error)
            return False
        return not _USERS_STATES.isdisjoint(
            str(state) for task_states in states.values() for state in task_states.values()
        )

    def _ask_for_savepoint(self) -> None:
        intent = self._supervisor.living
        if intent is not None and not self._supervisor.waits_for_another:
            stopping.ask_for_savepoint(self._home, intent.token, label="worker shutdown")

    def _defer(self, intent: Intent, due: float | None = None) -> NoReturn:
        task = self._task
        is_own = not self._supervisor.waits_for_another
        no_commit_within = task.health.no_commit_within if is_own else None
        task.defer(
            trigger=PipelineTrigger(
                home=self._home.location,
                intent=asdict(intent),
                owner=self._supervisor.supervision.owner,
                poll_interval=arguments.seconds(task.poll_interval),
                due=due,
                deadline=self._deadline,
                no_commit_within=no_commit_within.total_seconds() if no_commit_within is not None else None,
                stop_timeout=arguments.seconds(task.stop_timeout) if task.stop_on_kill and is_own else None,
            ),
            method_name="resume_from_trigger",
        )

    def _result(self, last: Status | None) -> dict[str, Any]:
        from airflow_provider_exactlyonce.control import restarts

        if last is None:
            raise RefusedError("the driver ended in order and without an account")
        earlier = restarts.of_series(self._home.restarts, self._supervisor.series)
        rows_by_sink: Counter[str] = Counter()
        for rows in (*(restart.rows_by_sink for restart in earlier), last.rows_by_sink):
            rows_by_sink.update(rows)
        watermark = moments.text(last.watermark) if last.watermark else None
        return {
            "pipeline": last.pipeline,
            "run": last.run,
            "lineage": last.lineage,
            "commit": last.commit,
            "batch": last.batch,
            "rows": last.rows + sum(restart.rows for restart in earlier),
            "rows_by_sink": dict(rows_by_sink),
            "records": last.records + sum(restart.records for restart in earlier),
            "late_rows": last.late_rows + sum(restart.late_rows for restart in earlier),
            "watermark": watermark,
            "restarts": self._supervisor.restarts,
        }
