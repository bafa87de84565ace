"""The base of all operators that start drivers: connections, Spark settings and arguments."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import BaseOperator, conf

from airflow_provider_exactlyonce.hooks import arguments
from airflow_provider_exactlyonce.hooks.lineage import PipelineLineage

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_exactlyonce.hooks.spark_submit import DriverSettings


_LISTS: Final = ("source_conn_ids", "postgres_conn_ids", "store_conn_ids", "application_args")
_MAPPINGS: Final = ("conf", "env_vars")


#: Airflow's KubernetesExecutor says so to its tasks: the pod ends, with all its processes, when the task defers.
_IN_A_PODS_ENVIRONMENT: Final = "AIRFLOW_IS_K8S_EXECUTOR_POD"


class DriverOperator(PipelineLineage, BaseOperator):
    """Starts drivers, and waits in a worker or in the triggerer. Each operator describes all of its arguments."""

    template_fields: Sequence[str] = (
        "conn_id",
        "kafka_conn_id",
        "source_conn_ids",
        "postgres_conn_ids",
        "store_conn_ids",
        "schema_registry_conn_id",
        "conf",
        "jars",
        "packages",
        "application_args",
        "env_vars",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"conf": "json", "env_vars": "json"}

    def __init__(
        self,
        *,
        conn_id: str = "spark_default",
        kafka_conn_id: str = "kafka_default",
        source_conn_ids: Sequence[str] = (),
        postgres_conn_ids: Sequence[str] = (),
        store_conn_ids: Sequence[str] = (),
        schema_registry_conn_id: str | None = None,
        conf: Mapping[str, Any] | None = None,
        jars: str | None = None,
        packages: str | None = None,
        application_args: Sequence[str] | None = None,
        env_vars: Mapping[str, str] | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        stop_timeout: timedelta | float = timedelta(seconds=60),
        poll_interval: timedelta | float = timedelta(seconds=1),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.conn_id = conn_id
        self.kafka_conn_id = kafka_conn_id
        self.source_conn_ids = source_conn_ids
        self.postgres_conn_ids = postgres_conn_ids
        self.store_conn_ids = store_conn_ids
        self.schema_registry_conn_id = schema_registry_conn_id
        self.conf = conf
        self.jars = jars
        self.packages = packages
        self.application_args = application_args
        self.env_vars = env_vars
        self.deferrable = deferrable
        self.stop_timeout = stop_timeout
        self.poll_interval = poll_interval
        arguments.check_spans(self, "stop_timeout", "poll_interval")
        for name in (*_LISTS, *_MAPPINGS):
            arguments.check(self, partial(arguments.check_shapes, self, [name], _MAPPINGS), name)

    @abstractmethod
    def execute(self, context: Context) -> dict[str, Any]:
        """Do the task's work, or defer."""

    @property
    def ends_with_its_pod(self) -> bool:
        """Whether nothing that this task has started outlives it, or its deferral: it is a pod of its own."""
        return _IN_A_PODS_ENVIRONMENT in os.environ

    def find_application(self, application: str) -> str:
        """Return the path of a job's file; a relative path is looked up beside the DAG's file.

        :raises RefusedError: when it is nowhere
        """
        from airflow_provider_exactlyonce.hooks.launch import find_application

        dag = self.get_dag()
        return find_application(application, dag.fileloc if dag is not None else None)

    def driver_settings(self, application: str, *first_arguments: str) -> DriverSettings:
        """Return the settings that a driver of this task is started with.

        :param application: where the job's file is
        :param first_arguments: arguments of the job that come before the user's
        :raises RefusedError: when a template has given an argument another shape
        """
        from airflow_provider_exactlyonce.hooks.spark_submit import DriverSettings

        arguments.check_shapes(self, (*_LISTS, *_MAPPINGS), _MAPPINGS)
        settings = {name: getattr(self, name) for name in DriverOperator.template_fields}
        settings |= {name: getattr(self, name) or () for name in _LISTS}
        settings |= {
            "conf": self.conf or {},
            "application_args": [*first_arguments, *map(str, self.application_args or ())],
            "env_vars": {name: str(value) for name, value in (self.env_vars or {}).items()},
        }
        return DriverSettings(application=application, name=f"{self.dag_id}.{self.task_id}", **settings)
