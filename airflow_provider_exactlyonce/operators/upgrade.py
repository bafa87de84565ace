"""The operators that give a pipeline another version of its job, and the old one back."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.requests import WaitCondition
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError
from airflow_provider_exactlyonce.hooks import arguments, kafka
from airflow_provider_exactlyonce.hooks import home as homes
from airflow_provider_exactlyonce.operators._driver import DriverOperator
from airflow_provider_exactlyonce.operators.retry import StreamingRetryPolicy
from airflow_provider_exactlyonce.polling import retry_while
from airflow_provider_exactlyonce.triggers.polling import BACKSTOP_SECONDS
from airflow_provider_exactlyonce.triggers.upgrade import UpgradeTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_exactlyonce.control.upgrade_plan import Plan
    from airflow_provider_exactlyonce.upgrade.environment import UpgradeEnvironment

#: A step that failed for the cluster's sake is taken again after so long.
_RETRY_DELAY: Final = timedelta(seconds=30)
#: A process that takes a step for longer than this is not about to be killed.
_HELD_SECONDS: Final = 600.0

T = TypeVar("T")


class _PlanOperator(DriverOperator):
    """Carries out a plan that is on disk: a retry, and the return from the triggerer, go on where it is."""

    template_fields: Sequence[str] = ("pipeline", "checkpoint", *DriverOperator.template_fields)
    ui_color = "#d8e4f0"

    def __init__(
        self,
        *,
        pipeline: str | None = None,
        checkpoint: str | None = None,
        stop_timeout: timedelta | float = timedelta(minutes=5),
        accept_nondeterminism: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(stop_timeout=stop_timeout, **kwargs)
        if pipeline is None and checkpoint is None:
            raise ValueError(f"{self.task_id}: give pipeline or checkpoint")
        self.pipeline = pipeline
        self.checkpoint = checkpoint
        self.accept_nondeterminism = accept_nondeterminism
        self.retry_policy = self.retry_policy or StreamingRetryPolicy(_RETRY_DELAY)

    def execute(self, context: Context) -> dict[str, Any]:
        """Take the plan's steps to its end, or defer where it waits.

        :raises ExactlyOnceError: one of :mod:`airflow_provider_exactlyonce.exceptions`; the XCom ``plan`` has the plan
            then, if it is known
        """
        from airflow_provider_exactlyonce.upgrade.machine import Upgrade, facts_of, raise_outcome

        ti = context["ti"]
        home, pipeline = homes.find(self.kafka_conn_id, pipeline=self.pipeline, checkpoint=self.checkpoint)
        request = homes.request_of(home, context)
        tools = self._tools(home)  # what that refuses leaves no plan
        request.begin()
        begun_plan = self._in_turn(home, lambda: self._begin(home, pipeline, request.name))
        upgrade = Upgrade(home, begun_plan, tools)
        while isinstance(plan := self._in_turn(home, upgrade.advance), WaitCondition):
            if self.deferrable and not self.ends_with_its_pod:
                self._defer(home, plan)
            time.sleep(home.look_every(arguments.seconds(self.poll_interval)))
        request.done()
        facts = facts_of(plan)
        try:
            raise_outcome(plan)
        except Exception:
            ti.xcom_push("plan", facts)
            raise
        return facts

    def resume_from_trigger(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Go on where the trigger has found something to do."""
        return self.execute(context)

    def _in_turn(self, home: Home, act: Callable[[], T]) -> T:
        """Run an action that needs the plan's lock; waits while an earlier try, which Airflow is about to kill, has it.

        :raises AlreadyRunningError: when another process holds the lock for too long
        """
        from airflow_provider_exactlyonce.control import upgrade_plan

        def is_held(error: Exception) -> bool:
            if not (isinstance(error, AlreadyRunningError) and upgrade_plan.is_held(error)):
                return False
            self.log.info("%s; waiting for its end", error)
            return True

        pause = home.look_every(arguments.seconds(self.poll_interval))
        try:
            return retry_while(is_held, act, seconds=_HELD_SECONDS, poll_seconds=pause)
        except AlreadyRunningError as error:
            if upgrade_plan.is_held(error):
                raise AlreadyRunningError(f"{error}; waited {_HELD_SECONDS:.0f} s for its end") from error
            raise

    def _defer(self, home: Home, wait: WaitCondition) -> NoReturn:
        deadline = time.time() + wait.seconds
        self.defer(
            trigger=UpgradeTrigger(
                home=home.location,
                token=wait.token,
                request=wait.request,
                commits=wait.commits,
                poll_interval=arguments.seconds(self.poll_interval),
                deadline=deadline,
            ),
            method_name="resume_from_trigger",
            timeout=timedelta(seconds=wait.seconds + BACKSTOP_SECONDS),
        )

    def _tools(self, home: Home) -> UpgradeEnvironment:
        from airflow_provider_exactlyonce.hooks.launch import launch_of
        from airflow_provider_exactlyonce.upgrade.environment import UpgradeEnvironment

        settings = self.driver_settings("")  # of whichever file is launched
        return UpgradeEnvironment(
            config=lambda: kafka.client_config(self.kafka_conn_id),
            find=kafka.source_config,
            launch=lambda file, args: launch_of(replace(settings, application=file), args, home, anywhere=False),
            driver_arguments=settings.application_args,
            conf={name: str(value) for name, value in settings.conf.items()},
            tell=lambda text: self.log.info("%s", text),
        )

    @abstractmethod
    def _begin(self, home: Home, pipeline: str, request: str) -> Plan:
        """Return the plan of this task."""


class UpgradePipelineOperator(_PlanOperator):
    """Bring a running pipeline to another version of its job; back, if that turns out not to be stable.

    Checks the new version against a savepoint, compares its output on the newest commits if asked to, stops the driver
    with a savepoint, starts the new version's, and waits until it is stable: ``docs/upgrades.md``. The driver goes on
    when the task is done, unless none ran before; a ``StreamingPipelineOperator`` with ``until="forever"`` takes it
    over. A task that is killed leaves its plan where it is; the next try goes on there.

    Returns ``pipeline``, ``outcome`` (``done``), ``changed`` (False if the version was in use already), ``old`` and
    ``new`` version, ``savepoint``, ``reason``, ``log``, ``seconds``, ``check`` and ``shadow`` (the reports). A task
    that fails pushes the same as the XCom ``plan``; its outcome is ``refused``, ``rolled-back``, ``unstable`` or
    ``failed``.

    :param application: the new version's file; a relative path is looked up beside the DAG's file. (templated)
    :param pipeline: the pipeline's name; its home is looked up in its ledger. (templated)
    :param checkpoint: the pipeline's home, instead. (templated)
    :param savepoint: True, or a label, takes a savepoint at the stop. False goes back to the newest one that there is,
        if it has to. (templated)
    :param shadow_commits: how many of the newest commits the new version repeats before anything is touched, 0 for
        none. (templated)
    :param compare: the columns to compare; or a function that converts a row, a dictionary, to the value to compare, or
        to None to leave it out: a function of a module, or ``FILE.py:NAME``. Default: the columns that both versions
        have. (templated)
    :param allow: intended differences, {kind: at most so many rows, None for any number}; kinds are ``missing``,
        ``extra``, ``changed`` and ``changed.<column>``. (templated)
    :param stable_after: how many commits the new version has to make. (templated)
    :param stable_timeout: within which time
    :param on_unstable: ``rollback`` starts the old version again, ``fail`` leaves the new one as it is
    :param conn_id: connection of type ``spark``. (templated)
    :param kafka_conn_id: connection of type ``kafka``. (templated)
    :param source_conn_ids: connections of type ``kafka`` that the job's sources name. (templated)
    :param postgres_conn_ids: connections of type ``postgres`` that the job's sinks name. (templated)
    :param store_conn_ids: connections of the job's tables: to stores of Delta tables, of a home's types, and to Iceberg
        catalogs, of type ``iceberg``; of another type the extra is taken as it is. (templated)
    :param schema_registry_conn_id: connection of type ``http`` to the schema registry of the job's formats. (templated)
    :param conf: Spark settings of both versions. (templated)
    :param jars: comma-separated jars, instead of Spark's Kafka connector as this package resolves it. (templated)
    :param packages: comma-separated Maven coordinates, instead of the same. (templated)
    :param application_args: further arguments of the job. (templated)
    :param env_vars: further environment variables of the driver. (templated)
    :param stop_timeout: how long a driver may take to end its batch; in a rollback it is ended by force then
    :param accept_nondeterminism: commits that a rollback replays may give other rows than were committed
    :param deferrable: wait in the triggerer, which must see the home; default from ``[operators] default_deferrable``
    :param poll_interval: how often the state is checked
    """

    template_fields: Sequence[str] = (
        "application",
        *_PlanOperator.template_fields,
        "savepoint",
        "shadow_commits",
        "compare",
        "allow",
        "stable_after",
    )

    def __init__(
        self,
        *,
        application: str,
        savepoint: bool | str = True,
        shadow_commits: int | str = 0,
        compare: Sequence[str] | str | Callable[[dict[str, Any]], dict[str, Any] | None] = (),
        allow: Mapping[str, int | None] | None = None,
        stable_after: int | str = 3,
        stable_timeout: timedelta | float = timedelta(minutes=10),
        on_unstable: str = "rollback",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.application = application
        self.savepoint = savepoint
        self.shadow_commits = shadow_commits
        # Airflow calls a function in a templated field, instead of leaving it there.
        self.compare = self._reference_to(compare) if callable(compare) else compare
        self.allow = allow
        self.stable_after = stable_after
        self.stable_timeout = stable_timeout
        self.on_unstable = on_unstable
        arguments.check_choice(self, "on_unstable", ("rollback", "fail"))
        arguments.check_spans(self, "stable_timeout")
        for name in ("shadow_commits", "stable_after"):
            arguments.check(self, partial(_whole_number, name, getattr(self, name)), name)
        arguments.check(self, self._allowed, "allow")

    def _begin(self, home: Home, pipeline: str, request: str) -> Plan:
        from airflow_provider_exactlyonce.control.upgrade_plan import Options
        from airflow_provider_exactlyonce.upgrade.begin import begin_upgrade, what_to_compare

        with arguments.reading(self, "compare"):
            columns, function = what_to_compare(self.compare or ())
        options = Options(
            savepoint=arguments.wish(self.savepoint),
            shadow_commits=_whole_number("shadow_commits", self.shadow_commits),
            compare=columns,
            function=function,
            allow=self._allowed(),
            stable_after=_whole_number("stable_after", self.stable_after),
            stable_timeout=arguments.seconds(self.stable_timeout),
            on_unstable=self.on_unstable,
            stop_timeout=arguments.seconds(self.stop_timeout),
            accept_nondeterminism=self.accept_nondeterminism,
        )
        return begin_upgrade(home, pipeline, self.find_application(self.application), options, request=request)

    def _reference_to(self, function: Callable[..., Any]) -> str:
        from airflow_provider_exactlyonce.upgrade.begin import what_to_compare

        try:
            return str(what_to_compare(function)[1])
        except RefusedError as error:
            raise ValueError(f"{self.task_id}: {error}") from error

    def _allowed(self) -> dict[str, int | None]:
        arguments.check_shapes(self, ["allow"], ["allow"])
        return {
            kind: None if str(number) == "None" else _whole_number(f"allow[{kind!r}]", number)
            for kind, number in (self.allow or {}).items()
        }


class RollbackPipelineOperator(_PlanOperator):
    """Bring a pipeline back to an earlier version of its job, by default the version that the last upgrade replaced.

    Stops the driver, restores the savepoint (later commits are replayed without writing them again) and starts the
    version from the copy of its file in the home: ``docs/upgrades.md``. It may roll back an upgrade that was left
    half-done. A task that is killed leaves its plan where it is; the next try goes on there.

    Returns what :class:`UpgradePipelineOperator` does; ``outcome`` is ``rolled-back``.

    :param pipeline: the pipeline's name; its home is looked up in its ledger. (templated)
    :param checkpoint: the pipeline's home, instead. (templated)
    :param savepoint: the id of the savepoint to go back to; default the one that the last upgrade has kept, or the
        newest of ``version``. (templated)
    :param version: the version to go back to; default the savepoint's, or the one before the last upgrade. (templated)
    :param conn_id: connection of type ``spark``. (templated)
    :param kafka_conn_id: connection of type ``kafka``. (templated)
    :param source_conn_ids: connections of type ``kafka`` that the job's sources name. (templated)
    :param postgres_conn_ids: connections of type ``postgres`` that the job's sinks name. (templated)
    :param store_conn_ids: connections of the job's tables: to stores of Delta tables, of a home's types, and to Iceberg
        catalogs, of type ``iceberg``; of another type the extra is taken as it is. (templated)
    :param schema_registry_conn_id: connection of type ``http`` to the schema registry of the job's formats. (templated)
    :param conf: Spark settings. (templated)
    :param jars: comma-separated jars, instead of Spark's Kafka connector as this package resolves it. (templated)
    :param packages: comma-separated Maven coordinates, instead of the same. (templated)
    :param application_args: further arguments of the job. (templated)
    :param env_vars: further environment variables of the driver. (templated)
    :param stop_timeout: how long the driver may take to end its batch; it is ended by force then
    :param accept_nondeterminism: commits that are replayed may give other rows than were committed
    :param deferrable: wait in the triggerer, which must see the home; default from ``[operators] default_deferrable``
    :param poll_interval: how often the state is checked
    """

    template_fields: Sequence[str] = (*_PlanOperator.template_fields, "savepoint", "version")

    def __init__(self, *, savepoint: str | None = None, version: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.savepoint = savepoint
        self.version = version

    def _begin(self, home: Home, pipeline: str, request: str) -> Plan:
        from airflow_provider_exactlyonce.checkpoint.restore import RestoreRequest, check_restore
        from airflow_provider_exactlyonce.control.upgrade_plan import Options
        from airflow_provider_exactlyonce.hooks.launch import check_runs_here
        from airflow_provider_exactlyonce.upgrade.begin import begin_rollback

        def check(wanted: RestoreRequest) -> None:
            check_runs_here(self.driver_settings(""))  # not when the running driver was stopped for it
            config = kafka.client_config(self.kafka_conn_id)
            check_restore(home, pipeline, config, wanted, find=kafka.source_config)

        for name in ("savepoint", "version"):  # as a template may give it
            if not isinstance(getattr(self, name), str | None):
                raise RefusedError(f"{name}={getattr(self, name)!r}: a text, as exactlyonce savepoint list shows it")
        options = Options(
            stop_timeout=arguments.seconds(self.stop_timeout), accept_nondeterminism=self.accept_nondeterminism
        )
        return begin_rollback(
            home,
            pipeline,
            options,
            request=request,
            check=check,
            version=self.version,
            savepoint=self.savepoint,
        )


def _whole_number(name: str, value: object) -> int:
    if not str(value).isdecimal():
        raise RefusedError(f"{name}={value!r}: a whole number, 0 or more")
    return int(str(value))
