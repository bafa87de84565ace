"""The operator that runs a pipeline."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError, StopRequestedError
from airflow_provider_exactlyonce.links import spark as links
from airflow_provider_exactlyonce.restart import RestartStrategy

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from airflow_provider_exactlyonce.control.home import Home
    from airflow_provider_exactlyonce.control.status import Status
    from airflow_provider_exactlyonce.control.supervisor import Launch, Supervisor

__all__ = ["RestartStrategy", "StreamingPipelineOperator"]

_UNTIL: Final = ("available", "forever")
_KILLED: Final = "the task was killed"


class StreamingPipelineOperator(BaseOperator):
    """Run a pipeline's driver, supervise it, and start it again from the retained checkpoint when it dies.

    The driver is a process of its own and outlives the worker. The next try of the task, on this host or on another,
    takes over a living driver and replaces a lost one. Killing the task stops the driver at its next batch boundary.

    Returns ``pipeline``, ``run``, ``lineage``, ``commit``, ``batch``, ``rows``, ``watermark`` (ISO 8601 or None) and
    ``restarts``; ``commit`` is what :class:`~airflow_provider_exactlyonce.sensors.commit_gate.CommitGateSensor` waits
    for, and ``rows`` what the drivers have reported (the ledger counts the batch of a driver that died just after its
    commit, too).

    .. seealso:: :class:`~airflow_provider_exactlyonce.restart.RestartStrategy` for which failures are restarted

    :param application: the job's file; a relative path is looked up beside the DAG's file. Of a pipeline that was
        upgraded to another version, that version's file is run instead, and a warning says so. (templated)
    :param checkpoint: the pipeline's home, a local path or a ``file:`` URI; made if absent. (templated)
    :param conn_id: connection of type ``spark``; deploy mode client or none. (templated)
    :param kafka_conn_id: connection of type ``kafka``. (templated)
    :param until: ``available`` ends when everything that was available at the start is committed, ``forever`` when the
        pipeline is stopped. (templated)
    :param restart_strategy: when a driver that died is started again; default three times, after ten seconds each
    :param conf: Spark settings; those that the protocol needs are added, contradicting ones refused. (templated)
    :param jars: comma-separated jars, instead of Spark's Kafka connector as this package resolves it. (templated)
    :param packages: comma-separated Maven coordinates, instead of the same. (templated)
    :param application_args: further arguments of the job. (templated)
    :param env_vars: further environment variables of the driver. (templated)
    :param stop_timeout: how long the driver may take to end its batch when the task is killed, before it gets SIGTERM
    :param poll_interval: how often the driver's status is read
    """

    template_fields: Sequence[str] = (
        "application",
        "checkpoint",
        "conn_id",
        "kafka_conn_id",
        "until",
        "conf",
        "jars",
        "packages",
        "application_args",
        "env_vars",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"conf": "json", "env_vars": "json"}
    operator_extra_links: Collection[BaseOperatorLink] = links.LINKS
    ui_color = "#e25a1c"
    ui_fgcolor = "#ffffff"

    def __init__(
        self,
        *,
        application: str,
        checkpoint: str,
        conn_id: str = "spark_default",
        kafka_conn_id: str = "kafka_default",
        until: str = "available",
        restart_strategy: RestartStrategy | None = None,
        conf: Mapping[str, Any] | None = None,
        jars: str | None = None,
        packages: str | None = None,
        application_args: Sequence[str] | None = None,
        env_vars: Mapping[str, str] | None = None,
        stop_timeout: timedelta | float = timedelta(seconds=60),
        poll_interval: timedelta | float = timedelta(seconds=1),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.application = application
        self.checkpoint = checkpoint
        self.conn_id = conn_id
        self.kafka_conn_id = kafka_conn_id
        self.until = until
        self.restart_strategy = restart_strategy or RestartStrategy.fixed_delay(3, timedelta(seconds=10))
        self.conf = conf
        self.jars = jars
        self.packages = packages
        self.application_args = application_args
        self.env_vars = env_vars
        self.stop_timeout = stop_timeout
        self.poll_interval = poll_interval
        self.pushed_links: dict[str, str] = {}
        self._supervisor: Supervisor | None = None
        self._killed = False

    def execute(self, context: Context) -> dict[str, Any]:
        """Supervise the driver to its end.

        :raises AirflowFailException: when neither a restart nor a retry would help: refused, fenced, or wrong data
        :raises AirflowException: when it failed and restarts are used up, or the task was killed
        """
        from airflow_provider_exactlyonce.control import progress
        from airflow_provider_exactlyonce.control.home import Home
        from airflow_provider_exactlyonce.hooks import metrics

        last: Status | None = None
        rows: dict[str, int] = {}  # by driver
        try:
            self._supervisor = self._make_supervisor(context, Home(self.checkpoint))
            if self._killed:
                self._supervisor.stop(_KILLED)
            with metrics.reporting(self._supervisor.home):
                for status in self._supervisor.run():
                    last = status
                    rows[status.token] = status.rows
                    self.log.info("%s", progress.sentence(status))
                    links.push(links.LINKS, status, self.pushed_links, context["ti"])
        except ExactlyOnceError as error:
            raise self._airflow_error(error) from error
        return self._result(last, sum(rows.values()))

    def on_kill(self) -> None:
        """Stop the driver at its next batch boundary; a process of its own enforces it if this one is killed."""
        self._killed = True
        if self._supervisor is not None:
            self._supervisor.stop(_KILLED)

    def _make_supervisor(self, context: Context, home: Home) -> Supervisor:
        from airflow_provider_exactlyonce.control.supervisor import Supervisor

        if self.until not in _UNTIL:
            raise RefusedError(f"until={self.until!r}: one of {', '.join(_UNTIL)}")
        ti = context["ti"]
        return Supervisor(
            home,
            self._launch(home),
            owner=f"{ti.dag_id}/{ti.task_id}/{ti.run_id}/{ti.map_index}",
            until=self.until,
            strategy=self.restart_strategy,
            poll_seconds=_seconds(self.poll_interval),
            stop_timeout_seconds=_seconds(self.stop_timeout),
        )

    def _launch(self, home: Home) -> Launch:
        from airflow_provider_exactlyonce.control import releases
        from airflow_provider_exactlyonce.hooks.launch import DriverSettings, build_launch, find_application

        dag = self.get_dag()
        asked = find_application(self.application, dag.fileloc if dag is not None else None)
        application = releases.application_to_run(home, asked)
        if application != asked:
            self.log.warning("%s is not the version that the pipeline was upgraded to; %s is", asked, application)
        settings = DriverSettings(
            application=application,
            name=f"{self.dag_id}.{self.task_id}",
            conn_id=self.conn_id,
            kafka_conn_id=self.kafka_conn_id,
            conf=self.conf or {},
            jars=self.jars,
            packages=self.packages,
            application_args=self.application_args or (),
            env_vars=self.env_vars or {},
        )
        return build_launch(home, settings, until=self.until)

    def _result(self, last: Status | None, rows: int) -> dict[str, Any]:
        from datetime import UTC, datetime

        if last is None or self._supervisor is None:
            raise AirflowException("the driver ended without an account")
        watermark = datetime.fromtimestamp(last.watermark / 1000, UTC).isoformat() if last.watermark else None
        return {
            "pipeline": last.pipeline,
            "run": last.run,
            "lineage": last.lineage,
            "commit": last.commit,
            "batch": last.batch,
            "rows": rows,
            "watermark": watermark,
            "restarts": self._supervisor.restarts,
        }

    def _airflow_error(self, error: ExactlyOnceError) -> AirflowException:
        from airflow_provider_exactlyonce.control import verdict

        supervisor = self._supervisor
        tail = verdict.log_tail(supervisor.log) if supervisor is not None and supervisor.log is not None else ""
        text = f"{error}\n{tail}" if tail else str(error)
        if isinstance(error, StopRequestedError):
            killed = supervisor is not None and supervisor.stopping is not None
            # A killed task may be retried, as after a worker's restart; a pipeline that a person stopped stays stopped.
            return AirflowException(str(error)) if killed else AirflowFailException(str(error))
        return AirflowFailException(text) if verdict.is_final(error) else AirflowException(text)


def _seconds(value: timedelta | float) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)
