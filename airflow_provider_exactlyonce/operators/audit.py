"""The operator that audits a pipeline."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_exactlyonce.hooks import arguments, kafka
from airflow_provider_exactlyonce.links.audit import AuditReportLink, push_report
from airflow_provider_exactlyonce.operators.retry import failing_for_good

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context


class AuditPipelineOperator(BaseOperator):
    """Fail when the readable rows contradict the pipeline's ledger, or the ledger itself: any of I1 to I7.

    It reads every judged row once, writes nothing, and the pipeline may run meanwhile. Rows in sinks other than Kafka
    are not judged.

    Returns the report: ``pipeline``, ``clean``, ``first`` and ``last`` commit, ``rows``, ``ranges``, ``violations``
    (how many of each invariant), ``found`` (the first hundred with their text), ``unjudged_sinks`` and more counts. A
    task that fails has the same report as its XCom ``return_value``.

    :param pipeline: the pipeline's name. (templated)
    :param kafka_conn_id: connection of type ``kafka``. (templated)
    :param from_commit: the first commit to judge; 0 for the oldest that the ledger has. (templated)
    :param to_commit: the last commit to judge; 0 for the newest. (templated)
    :param allow_foreign: others may write to the sink's topics; their records are passed over
    :param patience: seconds that a transaction which is open at the start may go on before it is a violation.
        (templated)
    """

    template_fields: Sequence[str] = ("pipeline", "kafka_conn_id", "from_commit", "to_commit", "patience")
    operator_extra_links: Collection[BaseOperatorLink] = (AuditReportLink(),)
    ui_color = "#cfe8cf"

    def __init__(
        self,
        *,
        pipeline: str,
        kafka_conn_id: str = "kafka_default",
        from_commit: int | str = 0,
        to_commit: int | str = 0,
        allow_foreign: bool = False,
        patience: float | str = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.kafka_conn_id = kafka_conn_id
        self.from_commit = from_commit
        self.to_commit = to_commit
        self.allow_foreign = allow_foreign
        self.patience = patience
        arguments.check(self, self._options, "from_commit", "to_commit", "patience")

    def execute(self, context: Context) -> dict[str, Any]:
        """Judge the pipeline's output.

        :raises AirflowFailException: when an invariant is violated, or there is nothing to judge
        :raises ExactlyOnceError: when the cluster does not answer
        """
        from airflow_provider_exactlyonce.audit.check import AuditOptions, audit

        with failing_for_good():
            options = AuditOptions(**self._options(), allow_foreign=self.allow_foreign, progress=self.log.info)
            report = audit(kafka.client_config(self.kafka_conn_id), self.pipeline, options)
        facts = report.to_json()
        for violation in report.found:
            self.log.error("%s", violation)
        if not report.is_clean:
            push_report(context["ti"], facts)
            counts = ", ".join(f"{invariant} {count}" for invariant, count in report.violations.items())
            raise AirflowFailException(f"{self.pipeline} violates {counts}; the earliest: {report.found[0]}")
        self.log.info("%s: commits %d to %d, %d rows agree", self.pipeline, report.first, report.last, report.rows)
        if report.unjudged:
            self.log.warning("%s: %s", self.pipeline, report.unjudged)
        return facts

    def _options(self) -> dict[str, Any]:
        with arguments.reading(self, "from_commit", "to_commit", "patience"):
            return {
                "first": int(self.from_commit),
                "last": int(self.to_commit),
                "patience_seconds": float(self.patience),
            }
