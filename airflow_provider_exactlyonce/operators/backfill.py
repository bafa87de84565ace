"""The operator that runs a part of a pipeline's source again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import AuditFailedError, DriverFailedError, RefusedError
from airflow_provider_exactlyonce.hooks import arguments
from airflow_provider_exactlyonce.links import pipeline as links
from airflow_provider_exactlyonce.links.audit import AuditReportLink, push_report
from airflow_provider_exactlyonce.operators.streaming import StreamingPipelineOperator

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from airflow_provider_exactlyonce.backfill.request import BackfillRequest
    from airflow_provider_exactlyonce.control.home import Home
    from airflow_provider_exactlyonce.control.launching import Launch


_RANGES: Final = ("commits", "offsets", "watermark", "start", "end")


class BackfillPipelineOperator(StreamingPipelineOperator):
    """Run a range of a pipeline's source again, beside the pipeline: into its sink, to another topic, or to compare.

    The pipeline may run, be stopped or be upgraded meanwhile, and is not touched. Backfills of one pipeline take turns,
    however many tasks start them. The same range, version and output are written once: a second task gets the first
    one's result. The driver is a process of its own, which the next try takes over; one that was killed goes on where
    it was. The range is one of ``commits``, ``offsets``, ``watermark`` or ``start`` and ``end``; without any it is the
    data interval of the DAG run.

    Returns ``pipeline``, ``backfill`` (its name), ``version``, ``output``, ``state``, ``savepoint``, ``commits`` (of a
    range of whole ones), ``source`` (offsets), ``records`` (source records of the range), ``rows`` and ``batches`` that
    were written, ``suppressed_batches`` (before the range, without output), ``compared`` (commits), ``clean``,
    ``violations`` and ``found`` as an audit has them, ``diverged``, ``finished`` and ``restarts``. Differences that a
    comparison finds fail the task; the result is then its XCom ``return_value``.

    .. seealso:: :class:`~airflow_provider_exactlyonce.operators.streaming.StreamingPipelineOperator`, for supervision

    :param pipeline: the pipeline's name; its home is looked up in its ledger. (templated)
    :param checkpoint: the pipeline's home, instead; with ``pipeline`` it need not exist yet. (templated)
    :param application: the job's file, of another version perhaps; default the version that runs. (templated)
    :param commits: first and last commit, as ``"17..25"``. (templated)
    :param offsets: source offsets, ``{topic: {partition: [start, end]}}``, or the same as JSON. (templated)
    :param watermark: ``"FROM..TO"``, two times: the commits after the commit that took the watermark to the first, up
        to the commit that took it to the second. (templated)
    :param start: with ``end``: source records from this time on, by their timestamps. (templated)
    :param end: up to this time, exclusive. (templated)
    :param state: ``savepoint``: the state that the range began with, from the nearest savepoint or the beginning;
        ``empty``: none but ``warm_up``. (templated)
    :param warm_up: with empty state, the part before the range that is run without output: a number of commits, or for
        a range of time a timedelta, or text as ``90s``, ``30m``, ``2h``, ``1d``. (templated)
    :param output_to: ``reemit``: into the sink itself, each record with the header ``exactlyonce.backfill``;
        ``compare``: nothing is written, and the rows are compared with the delivered ones; ``topic=NAME``: to another
        topic. (templated)
    :param conn_id: connection of type ``spark``. (templated)
    :param kafka_conn_id: connection of type ``kafka``. (templated)
    :param source_conn_ids: connections of type ``kafka`` that the job's sources name. (templated)
    :param postgres_conn_ids: none; a backfill writes to Kafka only. (templated)
    :param store_conn_ids: none; a backfill reads and writes Kafka only. (templated)
    :param schema_registry_conn_id: connection of type ``http`` to the schema registry of the job's formats. (templated)
    :param until: ``available``; a backfill has an end of its own. (templated)
    :param if_running: what to do about a driver of the same request that another task has started: ``adopt`` waits for
        its end and takes its result, ``fail`` fails, ``replace`` stops it and goes on where it was
    :param restart_strategy: when a driver that died is started again; default three times, after ten seconds each
    :param health: when a living driver, or one that dies often, is given up; default never
    :param standby: none; a backfill's restart goes on where it was
    :param deferrable: wait in the triggerer, which must see the home, and take a worker's slot only to start a driver
        and to judge its end; default from ``[operators] default_deferrable``
    :param on_worker_shutdown: ``detach``: the driver goes on, the next try takes it over (needs ``retries``; in the
        last try: ``kill``); ``kill``: it stops before its next batch, and the next try goes on. Default ``detach`` for
        a task with retries, else ``kill``
    :param stop_on_kill: whether the driver is stopped before its next batch when a user marks or clears the task
    :param conf: Spark settings; those that the protocol needs are added, contradicting ones refused. (templated)
    :param jars: comma-separated jars, instead of Spark's Kafka connector as this package resolves it. (templated)
    :param packages: comma-separated Maven coordinates, instead of the same. (templated)
    :param application_args: further arguments of the job. (templated)
    :param env_vars: further environment variables of the driver. (templated)
    :param stop_timeout: how long the driver may take to end its batch when it is to stop, before it gets SIGTERM
    :param poll_interval: how often the driver's status is read
    """

    template_fields: Sequence[str] = (
        *StreamingPipelineOperator.template_fields,
        "pipeline",
        "commits",
        "offsets",
        "watermark",
        "start",
        "end",
        "state",
        "warm_up",
        "output_to",
    )
    operator_extra_links: Collection[BaseOperatorLink] = (*links.LINKS, AuditReportLink())
    ui_color = "#e2a51c"

    def __init__(
        self,
        *,
        pipeline: str | None = None,
        checkpoint: str | None = None,
        application: str | None = None,
        commits: str | tuple[int, int] | None = None,
        offsets: Mapping[str, Mapping[Any, Any]] | str | None = None,
        watermark: str | tuple[datetime | str, datetime | str] | None = None,
        start: datetime | str | None = None,
        end: datetime | str | None = None,
        state: str = "savepoint",
        warm_up: timedelta | int | str | None = None,
        output_to: str = "compare",
        **kwargs: Any,
    ) -> None:
        super().__init__(application=application or "", checkpoint=checkpoint or "", **kwargs)
        if pipeline is None and checkpoint is None:
            raise ValueError(f"{self.task_id}: give pipeline or checkpoint")
        if self.on_worker_shutdown == "stop_with_savepoint":
            raise ValueError(f"{self.task_id}: a backfill takes no savepoints; on_worker_shutdown='detach' or 'kill'")
        if self.standby is not None:
            raise ValueError(f"{self.task_id}: a backfill has no standby; a restart goes on where it was")
        self.pipeline = pipeline
        self.commits = commits
        self.offsets = offsets
        self.watermark = watermark
        self.start = start
        self.end = end
        self.state = state
        self.warm_up = warm_up
        self.output_to = output_to
        self._ranges = [name for name in _RANGES if getattr(self, name) is not None]
        arguments.check(self, lambda: _check_until(str(self.until)), "until")
        if self._ranges:  # else it is the run's data interval
            arguments.check(self, lambda: self._request({}), *_RANGES, "state", "warm_up", "output_to")

    def home(self, context: Context) -> Home:
        """Return the home of the request, which is made below the pipeline's.

        :raises RefusedError: when the request can't be, or the pipeline is unknown
        """
        from airflow_provider_exactlyonce.backfill import workspace
        from airflow_provider_exactlyonce.hooks import home as homes

        request = self._request(context)
        if self.pipeline and self.checkpoint:
            pipelines_home, pipeline = homes.home_at(self.checkpoint), self.pipeline
        else:
            pipelines_home, pipeline = homes.find(
                self.kafka_conn_id, pipeline=self.pipeline, checkpoint=self.checkpoint or None
            )
        return workspace.make(pipelines_home, pipeline, request)

    def ledger_of(self, pipeline: str) -> str:
        """Return the ledger of the pipeline's backfills."""
        from airflow_provider_exactlyonce.ledger.records import backfill_pipeline

        return backfill_pipeline(pipeline)

    def owner_of_driver(self, context: Context) -> str:
        """Return the driver's owner: a later try of the task takes it over, unless it names another job's file.

        :raises RefusedError: when that file is nowhere
        """
        from airflow_provider_exactlyonce.backfill.application import owner_of

        application = self.find_application(self.application) if self.application else None
        return owner_of(super().owner_of_driver(context), application)

    def launch(self, home: Home, until: str, goal: str | None) -> Launch:
        """Return how the driver is started.

        :raises RefusedError: when an argument or a connection can't be used
        """
        from airflow_provider_exactlyonce.backfill import workspace
        from airflow_provider_exactlyonce.backfill.application import application_of
        from airflow_provider_exactlyonce.hooks.kafka import client_config
        from airflow_provider_exactlyonce.hooks.launch import build_launch

        _check_until(until)
        if self.application:
            application = self.find_application(self.application)
        else:
            application = application_of(home, client_config(self.kafka_conn_id))
        settings = self.driver_settings(application, *workspace.driver_arguments())
        return build_launch(home, settings, until=until, goal=goal)

    def outcome(self, context: Context, home: Home, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the backfill's result.

        :raises AuditFailedError: when compared rows differ; the result is the task's XCom all the same
        """
        from airflow_provider_exactlyonce.backfill import workspace

        written = workspace.result_of(home)
        if written is None:
            raise DriverFailedError(f"the driver of the backfill in {home} ended without a result")
        result = {**written, "restarts": facts["restarts"]}
        if not result["clean"]:
            push_report(context["ti"], result)
            first = result["found"][0]
            raise AuditFailedError(
                f"{len(result['found'])} of {result['compared']} commits of {result['pipeline']} give other rows than "
                f"were delivered; the first: commit {first['commit']}: {first['message']}"
            )
        return result

    def _request(self, context: Context | Mapping[str, Any]) -> BackfillRequest:
        from airflow_provider_exactlyonce.backfill.request import BackfillRequest

        start, end = self.start, self.end
        if all(getattr(self, name) is None for name in _RANGES):
            if self._ranges:
                raise RefusedError(
                    f"{', '.join(self._ranges)} rendered to None: let it render to the range, or leave it out for the "
                    "data interval of the run"
                )
            start, end = context.get("data_interval_start"), context.get("data_interval_end")
            if start is None or end is None:
                raise RefusedError("this run has no data interval: give commits, offsets, watermark, or start and end")
        if start is not None and str(start) == str(end):
            raise RefusedError(
                f"the range of time is empty: it begins and ends at {start}. The data interval of a run is empty in "
                "Airflow 3, where a cron expression as schedule gives one moment. Use "
                "schedule=CronDataIntervalTimetable('0 * * * *', timezone='UTC'), or give another start and end"
            )
        with arguments.reading(self, *_RANGES, "state", "warm_up", "output_to"):
            return BackfillRequest.parse(
                commits=self.commits,
                offsets=self.offsets,
                watermark=self.watermark,
                start=start,
                end=end,
                state=self.state,
                warm_up=self.warm_up,
                output=self.output_to,
            )


def _check_until(until: str) -> None:
    if until != "available":
        raise RefusedError(f"until={until!r} of a backfill: it ends with its range")
